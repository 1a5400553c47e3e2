"""A table of PostgreSQL as a target: rows staged in a table beside it, published by one database transaction. Runs anywhere.

The table ``checkpoint_commits`` of the target's schema knows each transaction: prepared, committed or aborted. Whoever commits or aborts one
locks its row first, and looks. So exactly one of both happens, whoever repeats it and however late: the driver of another run, or one that
slept. A driver that is stopped inside a database transaction holds its locks; the server ends its session after ``IDLE``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from airflow_checkpoint_provider.errors import (
    Damaged,
    NotSupportedYet,
    OverwrittenSince,
    RowsRefused,
    StoreUnavailable,
)
from airflow_checkpoint_provider.protocol.transactions import Transaction
from airflow_checkpoint_provider.sinks.log import RunOfSink, same_history
from airflow_checkpoint_provider.sinks.postgresql_names import (
    APPEND,
    OVERWRITE,
    SETTINGS,
    STAGING,
    STAGING_OVER,
    UPSERT,
    WRITER,
    Column,
    Options,
    insertion,
    listed,
    quoted,
    staging_name,
    text,
)
from airflow_checkpoint_provider.sinks.postgresql_target import (
    Database,
    TargetTable,
    Transactions,
    check_commits,
    find_target,
    has_commits,
    make_commits,
)

PREPARED, COMMITTED, REPLACED, ABORTED = "prepared", "committed", "replaced", "aborted"
IDLE = "30s"  # for which a driver may be silent inside a database transaction
LOCK_WAIT = "60s"  # for a session of an earlier task that still writes to a staging table
LOCK_NOT_AVAILABLE = "55P03"


@dataclass(frozen=True)
class StagedTable:
    """What a staging table holds: rows, and bytes on the disk."""

    rows: int
    bytes: int


class PostgresTable:
    """The table ``table`` for the run ``by``, whose sink was also called ``also``. ``shown`` names the database in errors. ``open`` comes first."""

    def __init__(
        self,
        transactions: Transactions,
        table: str,
        by: RunOfSink,
        options: Options,
        shown: str,
        also: Sequence[str] = (),
    ) -> None:
        self._transactions, self._given, self._by, self._options, self._shown = transactions, table, by, options, shown
        self._uids = (by.uid, *also)
        self._named = f"uid in ({', '.join('?' * len(self._uids))})"
        self._target: TargetTable
        self._began = 0

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return the columns of the table, as they were when it was opened."""
        return self._target.columns

    @property
    def _commits(self) -> str:
        return self._target.commits

    def staging(self, transaction: str) -> str:
        """Return the staging table of a transaction, as SQL names it."""
        return quoted(self._target.schema, staging_name(transaction))

    # -- the run begins ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Find the target, check the rights, and note that the run begins, unless it has begun before.

        Of several runs that overwrite, the last to begin has the last word. A cleared task begins anew. Raises ``InvalidConfig`` and
        ``StoreDenied``.
        """
        with self._transactions() as database:
            self._target = find_target(database, self._given, self._options, self._shown)
            complete = has_commits(database, self._target)
        if not complete:
            make_commits(self._transactions, self._target)
        with self._transactions() as database:
            check_commits(database, self._target, self._options)
            self._begin(database)
        self._drop_over()

    def _begin(self, database: Database) -> None:
        by = self._by
        spelled = json.dumps([self._target.name, by.history, by.run, by.uid, by.generation])
        row = f"begun {hashlib.sha256(spelled.encode()).hexdigest()[:32]}"
        insert = (
            f"insert into {self._commits} (transaction, target, outcome, history, run, uid, generation, incarnation)"
            " values (?, ?, ?, ?, ?, ?, ?, ?) on conflict (transaction) do nothing"
        )
        for name, outcome in ((self._lock, "target"), (row, "begun")):
            database.execute(insert, name, self._target.name, outcome, *self._run)
        begun = f"select number, {WRITER} from {self._commits} where target = ? and outcome = 'begun' and generation = ? and run = ? and uid = ?"
        found = database.rows(f"{begun} order by number", self._target.name, by.generation, by.run, by.uid)
        self._began = next(number for number, *writer in found if self._wrote(*writer).same_run(by))

    @property
    def _run(self) -> tuple[str, str, str, int, str]:
        by = self._by
        return by.history, by.run, by.uid, by.generation, by.incarnation

    def _wrote(self, history: str, incarnation: str | None) -> RunOfSink:
        """Return a run of this name and sink in the history that a row names."""
        return replace(self._by, history=history, incarnation=incarnation or "")

    @property
    def _lock(self) -> str:
        """The row that is locked by whoever publishes into the target."""
        return f"target {self._target.name}"

    # -- prepare -----------------------------------------------------------------------------------------------------

    def note(self, name: str, version: int) -> None:
        """Note that a transaction is being prepared. Its staging table comes after that, so nobody misses one."""
        insert = (
            f"insert into {self._commits} (transaction, target, outcome, mode, history, run, uid, generation, incarnation, version, began)"
            " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        )
        with self._transactions() as database:
            database.execute(
                insert, name, self._target.name, PREPARED, self._options.mode, *self._run, version, self._began
            )

    def make_staging(self, name: str, columns: Collection[str]) -> None:
        """Make the staging table anew, with these columns of the target: its types, and what it demands of single rows."""
        staging = self.staging(name)
        others = [f"drop column {quoted(column.name)}" for column in self.columns if column.name not in columns]
        with self._transactions() as database:
            database.execute(f"set local lock_timeout = '{LOCK_WAIT}'")
            database.execute(f"drop table if exists {staging}")
            database.execute(f"create table {staging} (like {self._target.quoted} including constraints)")
            if others:
                database.execute(f"alter table {staging} {', '.join(others)}")

    def seal(self, name: str) -> StagedTable:
        """Let nobody add rows any more, and return what is there.

        Waits for tasks that still write. A task that Spark has given up, and that comes later, gets an error.
        """
        staging = self.staging(name)
        with self._transactions() as database:
            database.execute(f"set local lock_timeout = '{LOCK_WAIT}'")
            database.execute(f"alter table {staging} add constraint checkpoint_sealed check (false) not valid")
            ((rows, size),) = database.rows(f"select count(*), pg_table_size({text(staging)}) from {staging}")
        return StagedTable(rows, size)

    def prepared(self, name: str, columns: Sequence[str]) -> dict[str, Any]:
        """Return what ``commit`` needs. Raises ``RowsRefused`` if an upsert could not tell which of its rows shall stay."""
        options = self._options
        if options.mode == UPSERT:
            self._check_keys(name)
        return {
            "table": self.staging(name), "columns": list(columns), "mode": options.mode, "key": list(options.key),
            "run_column": options.run_column,
        }  # fmt: skip

    def _check_keys(self, name: str) -> None:
        keys, staging = listed(self._options.key), self.staging(name)
        null = " or ".join(f"{quoted(key)} is null" for key in self._options.key)
        with self._transactions() as database:
            twice = database.rows(f"select 1 from {staging} group by {keys} having count(*) > 1 limit 1")
            nulls = database.rows(f"select 1 from {staging} where {null} limit 1")
        if twice or nulls:
            problem = "two rows with one key" if twice else "a row whose key is null"
            raise RowsRefused(
                f"the DataFrame for {self._given} holds {problem}, key={list(self._options.key)}. Keep one row for each key before write()"
            )

    # -- commit and abort --------------------------------------------------------------------------------------------

    def commit(self, transaction: Transaction) -> bool:
        """Publish the rows of a transaction in one database transaction. Return False if it was aborted.

        May be repeated, by any process. Raises ``OverwrittenSince`` if a run that began later has overwritten the target: then the
        transaction is aborted. Raises ``Damaged`` if its row or its staging table is lost.
        """
        overwritten = False
        with self._transactions() as database:
            outcome, began = self._locked(database, transaction.name)
            if outcome == PREPARED:
                overwritten = self._overwritten(database, transaction, began)
                if not overwritten:
                    self._publish(database, transaction)
        if overwritten:
            with suppress(Exception):  # the next start aborts it too; this error must not be lost
                self.abort([transaction.name])
            raise OverwrittenSince(
                f"{self._shown}: a run that began later has overwritten {self._given}, so the rows of this run were not published. If they"
                " shall replace the later ones, clear this task: then it begins anew"
            )
        self._drop_over()
        return outcome != ABORTED

    def _locked(self, database: Database, name: str) -> tuple[str, int]:
        """Lock the target against other commits, then the transaction against aborts. Return its outcome, and when its run began."""
        lock = f"select outcome, began from {self._commits} where transaction = ? for update"
        target, found = database.rows(lock, self._lock), database.rows(lock, name)
        if not target or not found:
            raise Damaged(
                f"{self._shown}: {self._commits} has no row '{name if target else self._lock}'. Somebody deleted it. Bring it back; else the"
                f" rows of transaction {name} are lost"
            )
        outcome, began = found[0]
        return outcome, began

    def _overwritten(self, database: Database, transaction: Transaction, began: int) -> bool:
        if Options.of(transaction.prepared).mode != OVERWRITE:
            return False
        later = (
            f"select 1 from {self._commits} where target = ? and mode = '{OVERWRITE}' and outcome in ('{COMMITTED}', '{REPLACED}')"
            " and began > ? limit 1"
        )
        return bool(database.rows(later, self._target.name, began))

    def _publish(self, database: Database, transaction: Transaction) -> None:
        name, staging = transaction.name, self.staging(transaction.name)
        if not database.rows("select 1 where to_regclass(?) is not null", staging):
            raise Damaged(
                f"{self._shown}: the staging table {staging} is missing. Somebody dropped it. Bring it back; else the rows of transaction"
                f" {name} are lost"
            )
        options = Options.of(transaction.prepared)
        self._take_out(database, transaction, options)
        insert = insertion(self._target.quoted, staging, transaction.prepared["columns"], options)
        run = [f"{transaction.run} {name}"] if options.run_column else []
        rows = database.execute(insert, *run)
        update = f"update {self._commits} set outcome = ?, rows = ?, at = clock_timestamp() where transaction = ?"
        database.execute(update, COMMITTED, rows, name)

    def _take_out(self, database: Database, transaction: Transaction, options: Options) -> None:
        """Delete the rows that the transaction replaces, and note whose they were."""
        replaced = f"update {self._commits} set outcome = '{REPLACED}' where target = ? and outcome = '{COMMITTED}'"
        if options.mode == OVERWRITE:
            database.execute(f"delete from {self._target.quoted}")
            database.execute(replaced, self._target.name)
        elif names := transaction.replaces:
            marks = ", ".join("?" * len(names))
            if column := options.run_column:
                values = (f"{transaction.run} {name}" for name in names)
                database.execute(f"delete from {self._target.quoted} where {quoted(column)} in ({marks})", *values)
            database.execute(f"{replaced} and transaction in ({marks})", self._target.name, *names)

    def abort(self, names: Collection[str]) -> tuple[str, ...]:
        """See to it that no transaction of ``names`` is ever committed, and drop its table. Return those that are committed already."""
        by, committed = self._by, []
        insert = (
            f"insert into {self._commits} as c (transaction, target, outcome, history, run, uid) values (?, ?, '{ABORTED}', ?, ?, ?)"
            f" on conflict (transaction) do update set outcome = '{ABORTED}', at = clock_timestamp() where c.outcome = '{PREPARED}'"
        )
        for name in sorted(names):
            with self._transactions() as database:
                database.execute(insert, name, self._target.name, by.history, by.run, by.uid)
                ((outcome,),) = database.rows(f"select outcome from {self._commits} where transaction = ?", name)
            if outcome != ABORTED:
                committed.append(name)
        self._drop_over()
        return tuple(committed)

    def _drop_over(self) -> None:
        """Drop the staging tables of transactions that have ended, whoever left them, as far as this role may.

        One that somebody reads just now stays: the next call takes it.
        """
        query = STAGING_OVER.format(commits=self._commits, staging=STAGING)
        with self._transactions() as database:
            tables = database.rows(query, self._target.schema)
        for (table,) in tables:
            try:
                with self._transactions() as database:
                    database.execute("set local lock_timeout = '5s'")
                    database.execute(f"drop table if exists {quoted(self._target.schema, table)}")
            except StoreUnavailable as error:
                if error.about.get("sqlstate") != LOCK_NOT_AVAILABLE:
                    raise

    # -- questions ---------------------------------------------------------------------------------------------------

    def position(self) -> str:
        """Return the transaction that was committed last."""
        query = f"select transaction from {self._commits} where target = ? and outcome = '{COMMITTED}' order by at desc limit 1"
        with self._transactions() as database:
            rows = database.rows(query, self._target.name)
        return f"transaction {rows[0][0]}" if rows else "no transaction"

    def standing(self) -> tuple[str, ...]:
        """Return the transactions of this run whose rows readers see."""
        by = self._by
        query = f"select transaction, {WRITER} from {self._commits} where target = ? and outcome = '{COMMITTED}' and run = ?"
        with self._transactions() as database:
            rows = database.rows(f"{query} and {self._named} order by number", self._target.name, by.run, *self._uids)
        return tuple(name for name, *writer in rows if self._wrote(*writer).same_run(by))

    def untold(self, names: Collection[str]) -> tuple[str, ...]:
        """Return those committed transactions of this run whose rows are there, and the run column does not tell them from others.

        A person may have deleted the rows of a transaction. They are taken to be there if the target has any row that no transaction has marked.
        """
        column = self._options.run_column
        if not column or not names:
            return ()
        marked, run = f"select 1 from {self._target.quoted} where {quoted(column)} = ?", self._by.run
        known = f"select run || ' ' || transaction from {self._commits} where target = ? and run is not null"
        others = f"select 1 from {self._target.quoted} where {quoted(column)} is null or {quoted(column)} not in ({known}) limit 1"
        wrote = f"select 1 from {self._commits} where transaction = ? and rows > 0 and not exists ({marked})"
        with self._transactions() as database:
            found = tuple(name for name in names if database.rows(wrote, name, f"{run} {name}"))
            return found if found and database.rows(others, self._target.name) else ()

    def later(self, version: int) -> tuple[tuple[str, int, str], ...]:
        """Return the committed transactions of this history's sink after ``version``: name, version, run.

        None for an upsert: when those runs are run again, their rows take the place of the earlier ones.
        """
        if self._options.mode == UPSERT:
            return ()
        query = f"select transaction, version, run, {WRITER} from {self._commits} where target = ? and outcome = '{COMMITTED}'"
        with self._transactions() as database:
            rows = database.rows(
                f"{query} and {self._named} and version > ? order by version", self._target.name, *self._uids, version
            )
        own = (row for row in rows if same_history(self._wrote(*row[3:]), self._by))
        return tuple((name, of_version, run) for name, of_version, run, *_ in own)

    def take_out(self, names: Collection[str]) -> None:
        """Delete the rows of committed transactions of this sink. Raises ``NotSupportedYet`` if nothing tells them from others."""
        end = f"update {self._commits} set outcome = '{REPLACED}' where transaction = ? and outcome = '{COMMITTED}' returning run, mode, rows"
        named = "1 transaction" if len(names) == 1 else f"{len(names)} transactions"
        with self._transactions() as database:
            database.rows(f"select 1 from {self._commits} where transaction = ? for update", self._lock)
            for name in sorted(names):
                for run, mode, rows in database.rows(end, name):
                    if not self._delete(database, f"{run} {name}", mode) and rows:
                        raise NotSupportedYet(
                            f"{self._shown}: nothing tells which rows of {self._given} are those of {named}. Delete them, and"
                            f" set their outcome in {self._commits} to '{REPLACED}'; with run_column= the sink does that"
                        )

    def _delete(self, database: Database, mark: str, mode: str) -> int:
        """Delete the rows of a transaction that was committed with ``mode``. Return their number: 0 if nothing tells them from others."""
        if column := self._options.run_column:
            return database.execute(f"delete from {self._target.quoted} where {quoted(column)} = ?", mark)
        if mode == self._options.mode == OVERWRITE:  # nothing else is there
            return database.execute(f"delete from {self._target.quoted}")
        return 0

    def taken_out(self, names: Collection[str]) -> tuple[str, ...]:
        """Return those whose rows were taken out. In other modes than append, newer rows have taken their place."""
        query = f"select transaction from {self._commits} where transaction = ? and mode = '{APPEND}' and outcome = '{REPLACED}'"
        with self._transactions() as database:
            return tuple(name for name in names if database.rows(query, name))

    def leftovers(self) -> tuple[tuple[str, str, str], ...]:
        """Return the transactions that are prepared and not ended, of any run, each with URI and incarnation of its history."""
        query = f"select transaction, {WRITER} from {self._commits} where target = ? and outcome = '{PREPARED}' order by number"
        with self._transactions() as database:
            rows = database.rows(query, self._target.name)
        return tuple((name, history, incarnation or "") for name, history, incarnation in rows)


def settings() -> str:
    """Return the statement with which each database transaction begins."""
    return SETTINGS.format(idle=IDLE)
