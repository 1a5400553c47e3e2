"""Tables of a real PostgreSQL as targets, without Spark, and what others do while a commit sleeps. Runs on Linux."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from airflow_checkpoint_provider.errors import OverwrittenSince, StoreUnavailable
from airflow_checkpoint_provider.protocol.transactions import Origin, Transaction
from airflow_checkpoint_provider.sinks.log import RunOfSink
from airflow_checkpoint_provider.sinks.postgresql import PostgresTable
from airflow_checkpoint_provider.sinks.postgresql_names import APPEND, OVERWRITE, UPSERT, Options
from airflow_checkpoint_provider.sinks.postgresql_target import Database, Transactions
from airflow_checkpoint_provider.spark.sinks.jdbc_connection import transactions
from tests.support.postgres import Client, Postgres, staging_tables
from tests.support.targets import MONDAY, TUESDAY, name_of

LAB = "jdbc:postgresql://lab"
FIRST, SECOND = name_of(1), name_of(2)
OVERWRITES, UPSERTS = Options(mode=OVERWRITE), Options(mode=UPSERT, key=("id",))
WITH_RUN = Options(mode=APPEND, run_column="run")


@dataclass
class Target:
    """A table in a schema of its own, with the rows ``before``."""

    server: Postgres
    client: Client
    schema: str
    held: Transaction | None = None
    """What Monday's run has prepared, as the journal keeps it."""

    def open(self, by: RunOfSink = MONDAY, options: Options | None = None, also: tuple[str, ...] = ()) -> PostgresTable:
        """Return the table as a new process of a run sees it."""
        begun = transactions(self.client.connect, LAB)
        table = PostgresTable(begun, f"{self.schema}.rows", by, options or Options(), LAB, also)
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


# -- what others do meanwhile ------------------------------------------------------------------------------------------


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


Meanwhile = Callable[[Target, Options], None]
STORIES: dict[str, tuple[Options, Meanwhile, list[str]]] = {
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


def commit(target: Target, options: Options, hook: Callable[[str], object] = lambda _: None) -> bool:
    """Let a process that opened the sink long ago commit Monday's rows; a driver tries again if it gets no answer.

    Return whether they are committed.
    """
    table = asleep(target.open(options=options), target, hook)
    assert target.held
    for _ in range(3):
        try:
            return table.commit(target.held)
        except OverwrittenSince:
            return False
        except StoreUnavailable:
            continue
    raise AssertionError("no try ended")


def abort(target: Target, options: Options, hook: Callable[[str], object] = lambda _: None) -> bool:
    """Let a process that opened the sink long ago abort Monday's rows. Return whether they are committed."""
    table = asleep(target.open(options=options), target, hook)
    while True:
        try:
            return bool(table.abort([FIRST]))
        except StoreUnavailable:  # its session was ended: the driver ends, and the next one aborts
            continue


def sleeping(target: Target, meanwhile: Callable[[], object]) -> Callable[[], None]:
    """Return what a process is asleep for. The server ends a session that sleeps with locks, as after ``IDLE``."""

    def sleep() -> None:
        target.sql("select pg_terminate_backend(pid) from pg_stat_activity where state = 'idle in transaction'")
        meanwhile()

    return sleep
