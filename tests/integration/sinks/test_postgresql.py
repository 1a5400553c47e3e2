"""A table of a real PostgreSQL as a target, without Spark: what a commit does that is killed, sleeps, or gets no answer at any statement."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
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
from airflow_checkpoint_provider.sinks import postgresql
from airflow_checkpoint_provider.sinks.log import below_root
from airflow_checkpoint_provider.sinks.postgresql import PostgresTable
from airflow_checkpoint_provider.sinks.postgresql_names import UPSERT, Options, grants, staging_name
from airflow_checkpoint_provider.spark.sinks.jdbc_connection import transactions
from tests.integration.sinks.tables import (
    FIRST,
    LAB,
    OVERWRITES,
    SECOND,
    STORIES,
    UPSERTS,
    WITH_RUN,
    At,
    Target,
    asleep,
    commit,
    hidden,
    prepared,
    sleeping,
)
from tests.support.postgres import PASSWORD, Client
from tests.support.targets import MONDAY, TUESDAY, name_of

MOST = 60  # statements of one commit


class Killed(BaseException):
    """The process ended here. Its connection is closed, as the kernel does it."""


# -- one process -------------------------------------------------------------------------------------------------------


def test_rows_are_visible_after_the_commit_and_once(target: Target) -> None:
    table = target.open()
    held = target.prepare(table, FIRST, (1, "a"), (2, "b"))
    assert target.rows() == []
    assert table.leftovers() == ((FIRST, MONDAY.history, ""),)
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
    writer = target.sql(
        f"select history, run, uid from {target.schema}.checkpoint_commits where transaction = '{FIRST}'"
    )
    assert writer == [f"{MONDAY.history}|{MONDAY.run}|{MONDAY.uid}"]


def test_rows_from_before_the_run_column_are_untold(target: Target) -> None:
    """Until they are deleted: a person's rows, or those of another run, are no reason for a refusal."""
    before = target.open()
    before.commit(target.prepare(before, FIRST, (1, "a")))
    other = target.open(TUESDAY, WITH_RUN)
    other.commit(target.prepare(other, name_of(9), (9, "z")))
    table = target.open(replace(MONDAY, generation=1), WITH_RUN)
    table.commit(target.prepare(table, SECOND, (2, "b")))
    assert before.untold([FIRST]) == ()  # such a sink replaces nothing
    assert table.untold(table.standing()) == (FIRST,)
    target.sql(f"delete from {target.schema}.rows where id = 2")
    assert table.untold(table.standing()) == (FIRST, SECOND)
    target.sql(f"delete from {target.schema}.rows where id = 1")
    assert table.untold(table.standing()) == ()


def test_rows_under_an_earlier_name_of_the_sink_are_its_own(target: Target) -> None:
    before = target.open()
    before.commit(target.prepare(before, FIRST, (1, "a")))
    renamed, other = replace(MONDAY, uid="rapport"), replace(MONDAY, uid="other")
    assert target.open(other).standing() == ()
    assert target.open(other).later(0) == ()
    table = target.open(renamed, also=("older", MONDAY.uid))
    assert table.standing() == (FIRST,)
    table.commit(target.prepare(table, name_of(8), (8, "again")))
    assert table.standing() == (FIRST, name_of(8))
    assert target.open(replace(TUESDAY, uid="rapport"), also=(MONDAY.uid,)).later(0) == ()  # of another history
    assert target.open(renamed, OVERWRITES, also=(MONDAY.uid,)).standing() == (FIRST, name_of(8))


@pytest.mark.parametrize("later", [WITH_RUN, OVERWRITES])
def test_rows_that_later_options_do_not_tell_are_not_taken_out(target: Target, later: Options) -> None:
    """An overwrite takes out all rows of the table, but only if an overwrite has written them."""
    before = target.open()
    before.commit(target.prepare(before, FIRST, (1, "a")))
    other = target.open(TUESDAY)
    other.commit(target.prepare(other, name_of(9), (9, "z")))
    with pytest.raises(NotSupportedYet, match="nothing tells which rows"):
        target.open(options=later).take_out([FIRST])
    assert target.rows() == ["1a", "9z"]
    assert target.outcomes()[FIRST] == "committed"


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
    gone = (name_of(2, 2),) if options is WITH_RUN else ()  # what was overwritten is not taken out
    assert table.taken_out([FIRST, name_of(2, 2)]) == gone


@pytest.mark.parametrize(
    ("root", "incarnation", "known"),
    [
        pytest.param("s3://new-lake/checkpoints", "1nc", True, id="its root was moved"),
        pytest.param("s3://new-lake/checkpoints", "0ther", False, id="another history"),
        pytest.param("memory://lake", "", True, id="an earlier version"),
    ],
)
def test_history_knows_its_rows_wherever_its_root_is(target: Target, root: str, incarnation: str, known: bool) -> None:
    monday = replace(MONDAY, incarnation="1nc")
    before = target.open(monday, WITH_RUN)
    before.commit(target.prepare(before, FIRST, (1, "a")))
    now = replace(monday, history=f"{root}/{below_root(MONDAY.history)}", incarnation=incarnation)
    moved = target.open(now, WITH_RUN)
    assert moved.standing() == ((FIRST,) if known else ())
    assert [name for name, _, _ in moved.later(0)] == ([FIRST] if known else [])
    assert (moved._began == before._began) is known, "the retry does not begin anew"


def test_table_of_commits_of_an_earlier_version_gets_the_incarnation(target: Target) -> None:
    before = target.open()
    before.commit(target.prepare(before, FIRST, (1, "a")))
    target.sql(f"alter table {target.schema}.checkpoint_commits drop column incarnation")
    role = f"writer_{target.schema}"
    target.sql(f"create role {role} login password '{PASSWORD}'")
    target.sql(grants(role, target.schema, "rows", Options()))
    begun = transactions(lambda: target.client.connect(role), LAB)
    with pytest.raises(StoreDenied, match="must be owner") as denied:
        PostgresTable(begun, f"{target.schema}.rows", MONDAY, Options(), LAB).open()
    target.sql(denied.value.message.partition(" runs: ")[2])
    now = target.open(replace(MONDAY, incarnation="1nc"))
    assert now.standing() == (FIRST,)
    assert now._began == before._began


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


def test_overwrite_since_is_told_though_the_clean_up_fails(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that was tried again would find the abort, and the job would end without its rows."""
    monday, tuesday = target.open(options=OVERWRITES), target.open(TUESDAY, OVERWRITES)
    late = target.prepare(monday, FIRST, (1, "monday"))
    tuesday.commit(target.prepare(tuesday, name_of(9), (1, "tuesday")))

    def fails() -> None:
        raise StoreUnavailable("the server is shutting down")

    monkeypatch.setattr(monday, "_drop_over", fails)
    with pytest.raises(OverwrittenSince):
        monday.commit(late)


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


STEPS = pytest.mark.parametrize(
    "every", [pytest.param(3, id="third"), pytest.param(1, id="each", marks=pytest.mark.slow)]
)
"""A third of the steps shows it; tests/unit/sinks/test_sleepers.py kills and sleeps at each one, in a store."""


def stories(fast: str) -> list[Any]:
    """All of them, the others slow: each has some twenty rounds."""
    return [name if name == fast else pytest.param(name, marks=pytest.mark.slow) for name in STORIES]


@STEPS
@pytest.mark.parametrize("fault", [killed, pytest.param(lost, marks=pytest.mark.slow)])
@pytest.mark.parametrize("story", stories("run starts over"))
def test_commit_that_ended_at_any_step(
    targets: Callable[[], Target], story: str, fault: Callable[[], object], every: int
) -> None:
    options, meanwhile, expected = STORIES[story]
    number = 0
    for number in range(1, MOST, every):
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


@STEPS
@pytest.mark.parametrize("story", stories("retry commits, tuesday overwrites"))
def test_commit_that_slept_before_any_step(targets: Callable[[], Target], story: str, every: int) -> None:
    options, meanwhile, expected = STORIES[story]
    number = 0
    for number in range(1, MOST, every):
        target = targets()
        prepared(target, options)
        at = At(number, sleeping(target, partial(meanwhile, target, options)))
        commit(target, options, at)
        if not at.done:
            break
        assert target.rows() == expected, f"slept before step {number}"
        assert target.staging() == []
    assert number > 10


@STEPS
def test_abort_that_slept_before_any_step(targets: Callable[[], Target], every: int) -> None:
    """Rows are visible if it says that they are committed, and only then."""
    outcomes = set()
    for number in range(1, MOST, every):
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


@STEPS
def test_prepare_that_slept_before_any_step_leaves_nothing(targets: Callable[[], Target], every: int) -> None:
    """The next attempt aborts what it finds, and the one after that removes what the sleeper has left."""
    number = 0
    for number in range(1, MOST, every):
        target = targets()

        def next_attempt(target: Target = target) -> None:
            table = target.open()
            table.abort([name for name, *_ in table.leftovers()])

        at = At(number, sleeping(target, next_attempt))
        with suppress(CheckpointError, Py4JJavaError):
            target.prepare(asleep(target.open(), target, at), FIRST, (1, "a"))
        if not at.done:
            break
        next_attempt()
        assert (target.rows(), target.staging()) == ([], []), f"slept before step {number}"
    assert number > 10
