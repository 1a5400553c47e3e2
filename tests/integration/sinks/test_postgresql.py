"""A table of a real PostgreSQL as a target, without Spark: what a commit does that is killed, sleeps, or gets no answer at any statement."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from airflow_checkpoint_provider.errors import (
    CheckpointError,
    Damaged,
    InvalidConfig,
    NotSupportedYet,
    OverwrittenSince,
    RowsRefused,
    StoreDenied,
    StoreUnavailable,
)
from airflow_checkpoint_provider.protocol.transactions import Origin, Transaction
from airflow_checkpoint_provider.sinks import postgresql
from airflow_checkpoint_provider.sinks.log import RunOfSink
from airflow_checkpoint_provider.sinks.postgresql import Database, PostgresTable, Transactions
from airflow_checkpoint_provider.sinks.postgresql_names import APPEND, OVERWRITE, UPSERT, Options, staging_name
from airflow_checkpoint_provider.spark.sinks.jdbc_connection import transactions
from tests.support.postgres import PASSWORD, Client, Postgres, staging_tables
from tests.support.targets import MONDAY, TUESDAY, name_of

LAB = "jdbc:postgresql://lab"
MOST = 60  # statements of one commit
numbers = itertools.count(1)


class Killed(BaseException):
    """The process ended here. Its connection is closed, as the kernel does it."""


@dataclass
class Target:
    """A table in a schema of its own, with the rows ``before``."""

    server: Postgres
    client: Client
    schema: str
    held: Transaction | None = None
    """What Monday's run has prepared, as the journal keeps it."""

    def open(self, by: RunOfSink = MONDAY, options: Options | None = None) -> PostgresTable:
        """Return the table as a new process of a run sees it."""
        begun = transactions(self.client.connect, LAB)
        table = PostgresTable(begun, f"{self.schema}.rows", by, options or Options(), LAB)
        table.open()
        return table

    def prepare(
        self, table: PostgresTable, name: str, *rows: tuple[int, str], replaces: tuple[str, ...] = ()
    ) -> Transaction:
        """Stage rows as Spark would do it, and return the transaction."""
        version, columns = int(name.split("-", maxsplit=1)[0]), ("id", "day")
        table.note(name, version)
        table.make_staging(name, columns)
        self.fill(table, name, *rows)
        assert table.seal(name).rows == len(rows)
        prepared, by = table.prepared(name, columns), table._by
        return Transaction(
            name=name, version=version, run=by.run, write=0, origin=Origin(plan="p", inputs="i"), rows=len(rows),
            prepared=prepared, replaces=replaces,
        )  # fmt: skip

    def fill(self, table: PostgresTable, name: str, *rows: tuple[int, str]) -> None:
        values = ", ".join(f"({number}, '{text}')" for number, text in rows)
        if rows:
            self.sql(f"insert into {table.staging(name)} values {values}")

    def sql(self, text: str) -> list[str]:
        """Run a statement as ``Postgres.sql`` does, a little faster."""
        return self.client.sql(text)

    def rows(self) -> list[str]:
        """Return what a reader sees."""
        return self.sql(f"select id || day from {self.schema}.rows order by 1")

    def staging(self) -> list[str]:
        return self.sql(staging_tables(self.schema))

    def outcomes(self) -> dict[str, str]:
        found = self.sql(
            f"select transaction || '=' || outcome from {self.schema}.checkpoint_commits where transaction ~ '^[0-9]'"
        )
        return dict(line.split("=") for line in found)


def hidden(begun: Transactions, hook: Callable[[str], object]) -> Transactions:
    """Return transactions that call ``hook`` before each statement, before each commit and after it."""

    class Hooked:
        def __init__(self, database: Database) -> None:
            self._database = database

        def execute(self, statement: str, *values: object) -> int:
            hook(statement)
            return self._database.execute(statement, *values)

        def rows(self, query: str, *values: object) -> list[tuple[object, ...]]:
            hook(query)
            return self._database.rows(query, *values)

    @contextmanager
    def opened() -> Iterator[Database]:
        hook("connect")
        with begun() as database:
            yield Hooked(database)
            hook("commit")
        hook("committed")

    return opened


@pytest.fixture(scope="module")
def client(postgres: Postgres) -> Iterator[Client]:
    with Client(postgres) as client:
        yield client


@pytest.fixture
def targets(postgres: Postgres, client: Client) -> Callable[[], Target]:
    def new() -> Target:
        schema = f"lab{next(numbers)}"
        client.sql(
            f"create schema {schema}; create table {schema}.rows (id bigint primary key, day text not null default 'x', run text)"
        )
        return Target(postgres, client, schema)

    return new


@pytest.fixture
def target(targets: Callable[[], Target]) -> Target:
    return targets()


FIRST, SECOND = name_of(1), name_of(2)
OVERWRITES, UPSERTS = Options(mode=OVERWRITE), Options(mode=UPSERT, key=("id",))
WITH_RUN = Options(mode=APPEND, run_column="run")

# -- one process -------------------------------------------------------------------------------------------------------


def test_rows_are_visible_after_the_commit_and_once(target: Target) -> None:
    table = target.open()
    held = target.prepare(table, FIRST, (1, "a"), (2, "b"))
    assert target.rows() == []
    assert table.leftovers() == ((FIRST, MONDAY.history),)
    for _ in range(2):
        assert table.commit(held)
    assert target.rows() == ["1a", "2b"]
    assert target.staging() == []
    assert (table.position(), table.standing(), table.leftovers()) == (f"transaction {FIRST}", (FIRST,), ())


def test_aborted_transaction_is_never_committed(target: Target) -> None:
    table = target.open()
    held = target.prepare(table, FIRST, (1, "a"))
    assert table.abort([FIRST, SECOND]) == ()
    assert target.staging() == []
    assert not table.commit(held)
    with pytest.raises(CheckpointError):
        table.note(SECOND, 2)  # a driver that slept before its first statement
    assert target.rows() == []


def test_committed_transaction_is_not_aborted(target: Target) -> None:
    table = target.open()
    assert table.commit(target.prepare(table, FIRST, (1, "a")))
    assert table.abort([FIRST]) == (FIRST,)
    assert target.rows() == ["1a"]


def test_overwrite_takes_out_what_is_there(target: Target) -> None:
    target.sql(f"insert into {target.schema}.rows values (9, 'z')")
    table = target.open(options=OVERWRITES)
    table.commit(target.prepare(table, FIRST, (1, "a")))
    table.commit(target.prepare(table, SECOND, (1, "b")))
    assert target.rows() == ["1b"]
    assert target.outcomes() == {FIRST: "replaced", SECOND: "committed"}


def test_upsert_replaces_rows_with_the_same_key(target: Target) -> None:
    target.sql(f"insert into {target.schema}.rows values (1, 'z', 'kept'), (9, 'z', null)")
    table = target.open(options=UPSERTS)
    table.commit(target.prepare(table, FIRST, (1, "a"), (2, "b")))
    assert target.rows() == ["1a", "2b", "9z"]
    assert target.sql(f"select run from {target.schema}.rows where id = 1") == ["kept"]


def test_run_column_tells_the_rows_that_a_run_replaces(target: Target) -> None:
    table = target.open(options=WITH_RUN)
    table.commit(target.prepare(table, FIRST, (1, "a"), (2, "b")))
    other = target.open(TUESDAY, WITH_RUN)
    other.commit(target.prepare(other, name_of(9), (9, "z")))
    again = target.open(replace(MONDAY, generation=1), WITH_RUN)
    again.commit(target.prepare(again, SECOND, (1, "c"), replaces=again.standing()))
    assert target.rows() == ["1c", "9z"]
    assert target.sql(f"select distinct run from {target.schema}.rows order by 1") == [
        f"monday {SECOND}",
        f"tuesday {name_of(9)}",
    ]
    assert again.standing() == (SECOND,)


def test_rows_are_published_as_they_were_prepared(target: Target) -> None:
    """Whoever commits them: a later run of a changed script."""
    table = target.open(options=OVERWRITES)
    table.commit(target.prepare(table, name_of(9), (9, "z")))
    monday = target.open(options=WITH_RUN)
    held = target.prepare(monday, FIRST, (1, "a"))
    assert target.open(TUESDAY, OVERWRITES).commit(held)
    assert target.rows() == ["1a", "9z"]
    assert target.sql(f"select run from {target.schema}.rows where id = 1") == [f"monday {FIRST}"]


@pytest.mark.parametrize(("options", "left"), [(WITH_RUN, ["1a", "9z"]), (OVERWRITES, [])])
def test_job_goes_back(target: Target, options: Options, left: list[str]) -> None:
    table = target.open(options=options)
    table.commit(target.prepare(table, FIRST, (1, "a")))
    other = target.open(TUESDAY, WITH_RUN)  # of another history
    other.commit(target.prepare(other, name_of(9), (9, "z")))
    table.commit(target.prepare(table, name_of(2, 2), (2, "b")))
    assert table.later(1) == ((name_of(2, 2), 2, "monday"),)
    for _ in range(2):
        table.take_out([name_of(2, 2)])
    assert target.rows() == left
    assert table.later(1) == ()


def test_rows_that_nothing_tells_are_not_taken_out(target: Target) -> None:
    table = target.open()
    table.commit(target.prepare(table, FIRST, (1, "a")))
    with pytest.raises(NotSupportedYet, match="run_column="):
        table.take_out([name for name, _, _ in table.later(0)])
    assert target.rows() == ["1a"]


def test_later_run_has_the_last_word(target: Target) -> None:
    monday, tuesday = target.open(options=OVERWRITES), target.open(TUESDAY, OVERWRITES)
    late = target.prepare(monday, FIRST, (1, "monday"))
    tuesday.commit(target.prepare(tuesday, name_of(9), (1, "tuesday")))
    with pytest.raises(OverwrittenSince):
        monday.commit(late)
    assert not monday.commit(late)
    assert target.rows() == ["1tuesday"]
    cleared = target.open(replace(MONDAY, generation=1), OVERWRITES)
    cleared.commit(target.prepare(cleared, SECOND, (1, "cleared")))
    assert target.rows() == ["1cleared"]


# -- staging -----------------------------------------------------------------------------------------------------------


def test_task_that_comes_late_adds_nothing(target: Target) -> None:
    table = target.open()
    held = target.prepare(table, FIRST, (1, "a"))
    with pytest.raises(Py4JJavaError, match="checkpoint_sealed"):
        target.fill(table, FIRST, (2, "late"))
    assert table.commit(held)
    assert target.rows() == ["1a"]


def test_seal_waits_for_a_task_that_still_writes(
    target: Target, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "LOCK_WAIT", "100ms")
    table = target.open()
    table.note(FIRST, 1)
    table.make_staging(FIRST, ("id", "day"))
    late = client.connect()
    late.setAutoCommit(False)
    late.createStatement().execute(f"insert into {table.staging(FIRST)} values (1, 'a')")
    with pytest.raises(StoreUnavailable):
        table.seal(FIRST)
    late.commit()
    assert table.seal(FIRST).rows == 1
    late.close()


def test_staging_demands_what_the_table_demands_of_single_rows(target: Target) -> None:
    target.sql(f"alter table {target.schema}.rows add constraint small check (id < 10)")
    table = target.open()
    table.note(FIRST, 1)
    table.make_staging(FIRST, ("id", "day"))
    for wrong in ("(11, 'a')", "(1, null)"):
        with pytest.raises(Py4JJavaError):
            target.sql(f"insert into {table.staging(FIRST)} values {wrong}")


@pytest.mark.parametrize("rows", [[(1, "a"), (1, "b")]])
def test_upsert_of_two_rows_with_one_key_is_refused(target: Target, rows: list[tuple[int, str]]) -> None:
    table = target.open(options=UPSERTS)
    with pytest.raises(RowsRefused, match="two rows with one key"):
        target.prepare(table, FIRST, *rows)


def test_rows_that_the_table_refuses_stay_staged(target: Target) -> None:
    target.sql(f"insert into {target.schema}.rows values (1, 'z')")
    table = target.open()
    held = target.prepare(table, FIRST, (1, "a"))
    with pytest.raises(RowsRefused, match="duplicate key value") as refused:
        table.commit(held)
    assert refused.value.permanent
    assert target.staging() == [staging_name(FIRST)]
    target.sql(f"delete from {target.schema}.rows")
    assert table.commit(held)
    assert target.rows() == ["1a"]


@pytest.mark.parametrize("lost", ["drop table {staging}", "delete from {commits} where transaction like '1-%'"])
def test_lost_part_of_a_transaction_is_named(target: Target, lost: str) -> None:
    table = target.open()
    held = target.prepare(table, FIRST, (1, "a"))
    target.sql(lost.format(staging=table.staging(FIRST), commits=f"{target.schema}.checkpoint_commits"))
    with pytest.raises(Damaged):
        table.commit(held)


# -- open --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (Options(mode=UPSERT, key=("day",)), "create unique index"),
        (Options(mode=UPSERT, key=("lost",)), "`lost`"),
        (Options(run_column="lost"), "`lost`"),
        (Options(run_column="id"), "of the type bigint"),
    ],
)
def test_wrong_column_is_refused(target: Target, options: Options, named: str) -> None:
    with pytest.raises(InvalidConfig, match=named):
        target.open(options=options)


def test_missing_table_is_refused(target: Target) -> None:
    target.sql(f"drop table {target.schema}.rows")
    with pytest.raises(InvalidConfig, match="does not create it"):
        target.open()


def test_missing_right_is_refused_with_the_grants(target: Target) -> None:
    role = f"writer_{target.schema}"
    target.sql(f"create role {role} login password '{PASSWORD}'")
    begun = transactions(lambda: target.client.connect(role), LAB)
    table = PostgresTable(begun, f"{target.schema}.rows", MONDAY, OVERWRITES, LAB)
    with pytest.raises(StoreDenied, match=f"permission denied for schema {target.schema}"):
        table.open()
    owner = target.open(TUESDAY)  # makes checkpoint_commits
    target.sql(f"grant usage on schema {target.schema} to {role}")
    with pytest.raises(StoreDenied, match=f"{role} lacks CREATE on schema {target.schema}, SELECT on") as denied:
        table.open()
    target.sql(denied.value.message.partition("The owner runs: ")[2])
    table.open()
    target.sql(f"grant insert on all tables in schema {target.schema} to {role}")
    held = target.prepare(table, FIRST, (1, "a"))
    target.prepare(owner, SECOND, (2, "b"))
    assert table.commit(held)
    assert table.abort([SECOND]) == ()
    assert target.rows() == ["1a"]
    assert target.staging() == [staging_name(SECOND)]  # this role may not drop it: its owner's next driver does
    target.open()
    assert target.staging() == []


def test_first_drivers_may_open_at_once(targets: Callable[[], Target]) -> None:
    """All of them try to make the table of commits."""
    for _ in range(3):
        target = targets()
        with ThreadPoolExecutor(4) as threads:
            runs = [replace(MONDAY, run=f"run-{number}") for number in range(4)]
            opened = list(threads.map(target.open, runs))
        assert len({table._began for table in opened}) == 4
        assert len(target.sql(f"select 1 from {target.schema}.checkpoint_commits")) == 5


# -- killed at any statement, or asleep before any ---------------------------------------------------------------------


def tuesday_overwrites(target: Target, _: Options) -> None:
    table = target.open(TUESDAY, OVERWRITES)
    table.commit(target.prepare(table, name_of(9), (1, "today")))


def retry_commits(target: Target, options: Options) -> None:
    commit(target, options)


def retry_commits_and_tuesday_overwrites(target: Target, options: Options) -> None:
    retry_commits(target, options)
    tuesday_overwrites(target, options)


def run_starts_over(target: Target, options: Options) -> None:
    """A cleared task gives up what its run has prepared, and computes all again."""
    table = target.open(replace(MONDAY, generation=1), options)
    committed = table.abort([FIRST])
    table.commit(target.prepare(table, name_of(8), (8, "again"), replaces=committed))


def tuesday_appends(target: Target, _: Options) -> None:
    table = target.open(TUESDAY, WITH_RUN)
    table.commit(target.prepare(table, name_of(9), (9, "today")))


STORIES: dict[str, tuple[Options, Callable[[Target, Options], None], list[str]]] = {
    "tuesday overwrites": (OVERWRITES, tuesday_overwrites, ["1today"]),
    "retry commits, tuesday overwrites": (OVERWRITES, retry_commits_and_tuesday_overwrites, ["1today"]),
    "retry commits": (Options(), retry_commits, ["0z", "1a", "2b"]),
    "retry upserts": (UPSERTS, retry_commits, ["0z", "1a", "2b"]),
    "run starts over": (WITH_RUN, run_starts_over, ["0z", "8again"]),
    "tuesday appends": (Options(), tuesday_appends, ["0z", "1a", "2b", "9today"]),
}


def prepared(target: Target, options: Options) -> None:
    """Let Monday's run prepare its rows in a table that holds one already."""
    target.sql(f"insert into {target.schema}.rows values (0, 'z')")
    table = target.open(options=options)
    target.held = target.prepare(table, FIRST, (1, "a"), (2, "b"))


class At:
    """Does something at step ``number`` of a process, once."""

    def __init__(self, number: int, action: Callable[[], object]) -> None:
        self._number, self._action, self.done = number, action, False

    def __call__(self, _: str) -> None:
        self._number -= 1
        if self._number == 0:
            self.done = True
            self._action()


def asleep(table: PostgresTable, target: Target, hook: Callable[[str], object]) -> PostgresTable:
    """Let a process that has opened the sink call ``hook`` at each of its steps from now on."""
    table._transactions = hidden(transactions(target.client.connect, LAB), hook)
    return table


def commit(target: Target, options: Options, hook: Callable[[str], object] = lambda _: None) -> None:
    """Let a process that opened the sink long ago commit Monday's rows; a driver tries again if it gets no answer."""
    table = asleep(target.open(options=options), target, hook)
    assert target.held
    for _ in range(3):
        try:
            table.commit(target.held)
            return
        except OverwrittenSince:
            return
        except StoreUnavailable:
            continue
    raise AssertionError("no try ended")


def sleeping(target: Target, meanwhile: Callable[[], object]) -> Callable[[], None]:
    """Return what a process is asleep for. The server ends a session that sleeps with locks, as after ``IDLE``."""

    def sleep() -> None:
        target.sql("select pg_terminate_backend(pid) from pg_stat_activity where state = 'idle in transaction'")
        meanwhile()

    return sleep


def test_session_that_sleeps_with_locks_is_ended(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    table = target.open()
    held = target.prepare(table, FIRST, (1, "a"))
    monkeypatch.setattr(postgresql, "IDLE", "1ms")
    table._transactions = hidden(transactions(target.client.connect, LAB), lambda _: time.sleep(0.1))
    with pytest.raises(StoreUnavailable, match="idle-in-transaction timeout"):
        table.commit(held)
    monkeypatch.undo()
    assert target.open().commit(held)
    assert target.rows() == ["1a"]


def killed() -> None:
    raise Killed


def lost() -> None:
    raise StoreUnavailable("no answer")


def stories(fast: str) -> list[Any]:
    """All of them, the others slow: each has some twenty rounds."""
    return [name if name == fast else pytest.param(name, marks=pytest.mark.slow) for name in STORIES]


@pytest.mark.parametrize("fault", [killed, pytest.param(lost, marks=pytest.mark.slow)])
@pytest.mark.parametrize("story", stories("run starts over"))
def test_commit_that_ended_at_any_step(targets: Callable[[], Target], story: str, fault: Callable[[], object]) -> None:
    options, meanwhile, expected = STORIES[story]
    number = 0
    for number in range(1, MOST):
        target = targets()
        prepared(target, options)
        at = At(number, fault)
        with suppress(Killed):
            commit(target, options, at)
        if not at.done:
            break
        meanwhile(target, options)
        if story != "run starts over":
            commit(target, options)
        assert target.rows() == expected, f"{fault.__name__} at step {number}"
        assert target.staging() == []
    assert number > 10


@pytest.mark.parametrize("story", stories("retry commits, tuesday overwrites"))
def test_commit_that_slept_before_any_step(targets: Callable[[], Target], story: str) -> None:
    options, meanwhile, expected = STORIES[story]
    number = 0
    for number in range(1, MOST):
        target = targets()
        prepared(target, options)
        at = At(number, sleeping(target, partial(meanwhile, target, options)))
        commit(target, options, at)
        if not at.done:
            break
        assert target.rows() == expected, f"slept before step {number}"
        assert target.staging() == []
    assert number > 10


def test_abort_that_slept_before_any_step(targets: Callable[[], Target]) -> None:
    """Rows are visible if it says that they are committed, and only then."""
    outcomes = set()
    for number in range(1, MOST):
        target = targets()
        prepared(target, WITH_RUN)
        at = At(number, sleeping(target, partial(commit, target, WITH_RUN)))
        try:
            committed = asleep(target.open(options=WITH_RUN), target, at).abort([FIRST])
        except StoreUnavailable:  # its session was ended: the driver ends, and the next one aborts
            committed = target.open(options=WITH_RUN).abort([FIRST])
        if not at.done:
            break
        assert target.rows() == (["0z", "1a", "2b"] if committed else ["0z"]), f"slept before step {number}"
        assert target.staging() == []
        outcomes.add(committed)
    assert outcomes == {(), (FIRST,)}


def test_prepare_that_slept_before_any_step_leaves_nothing(targets: Callable[[], Target]) -> None:
    """The next attempt aborts what it finds, and the one after that removes what the sleeper has left."""
    number = 0
    for number in range(1, MOST):
        target = targets()

        def next_attempt(target: Target = target) -> None:
            table = target.open()
            table.abort([name for name, _ in table.leftovers()])

        at = At(number, sleeping(target, next_attempt))
        with suppress(CheckpointError, Py4JJavaError):
            target.prepare(asleep(target.open(), target, at), FIRST, (1, "a"))
        if not at.done:
            break
        next_attempt()
        assert (target.rows(), target.staging()) == ([], []), f"slept before step {number}"
    assert number > 10
