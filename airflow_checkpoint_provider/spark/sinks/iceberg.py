"""An Iceberg table as a sink: ``IcebergSink``. Runs in the Spark driver.

The rows are written once, into a branch that readers of the table do not see. The commit moves the main branch (``iceberg_branches.py``): no
row is copied, unless an overwrite finds that others have written meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.functions import lit

from airflow_checkpoint_provider.errors import CommitFailed, InvalidConfig, NotSupportedYet, OverwrittenSince
from airflow_checkpoint_provider.protocol.query_details import ICEBERG
from airflow_checkpoint_provider.protocol.transactions import Transaction
from airflow_checkpoint_provider.sinks.log import ABORT, COMMIT, same_history
from airflow_checkpoint_provider.spark.java_errors import JAVA_ERRORS, java_name
from airflow_checkpoint_provider.spark.queries.sinks.iceberg_table import IcebergSnapshot
from airflow_checkpoint_provider.spark.queries.writer import SESSION_BRANCHES, need_package
from airflow_checkpoint_provider.spark.sinks.base import Leftover, OpenSink, Prepared, Sink, SinkContext
from airflow_checkpoint_provider.spark.sinks.files import APPEND, MODES
from airflow_checkpoint_provider.spark.sinks.iceberg_branches import (
    MAIN,
    NOTE,
    OVERWRITTEN_BY,
    STAGED_AS,
    BranchedTable,
    Branches,
    Change,
    note,
    remove_branches,
)
from airflow_checkpoint_provider.spark.sinks.run_column import check_run_column, refuse_taken, run_text, tag
from airflow_checkpoint_provider.spark.sinks.tables import OpenTableSink, TableEntry
from airflow_checkpoint_provider.text import sink_messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Beginnings of the last part of a name, by which Iceberg selects a part of a table
SELECTORS = ("branch_", "tag_", "snapshot_id_", "at_timestamp_")


@dataclass(frozen=True)
class IcebergSink(Sink):
    """The Iceberg table ``table`` as a sink: each row is there once, and only if the checkpoint that holds it is completed.

    ``table`` is its name with the catalog, ``lake.sales.orders``; it exists. ``mode="append"`` adds rows; ``"overwrite"`` replaces all of
    them. ``run_column`` names a text column of the table, which the sink fills with the run and the transaction of each row. With it the
    sink can replace the rows of a run that is computed again; without it, such a run is refused in append.

    Raises ``InvalidConfig`` for other options.
    """

    table: str
    _: KW_ONLY
    mode: str = APPEND
    run_column: str | None = None
    kind: ClassVar[str] = ICEBERG

    def __post_init__(self) -> None:
        if not isinstance(self.table, str) or self.table.count(".") < 1:
            raise InvalidConfig(
                f'table={self.table!r}: write its name with the catalog: IcebergSink("lake.sales.orders")'
            )
        if not isinstance(self.mode, str) or self.mode not in MODES:
            raise InvalidConfig(f'mode={self.mode!r}: an IcebergSink has mode="append" and mode="overwrite"')
        check_run_column(self.run_column, self.mode)

    @property
    def target(self) -> str:
        return self.table

    @property
    def compared_options(self) -> Mapping[str, Any]:
        return {"mode": self.mode, "run_column": self.run_column}

    def open(self, context: SinkContext) -> OpenSink:
        writer = f"sink '{context.uid}'"
        need_package(context.spark, writer, ICEBERG)
        if wanted := [conf for conf in SESSION_BRANCHES if context.spark.conf.get(conf, None)]:
            raise NotSupportedYet(
                f"{writer} writes to branches of its own, and {wanted[0]} sends rows to another one. Unset it"
            )
        opened = OpenIcebergSink(self, context)
        opened.check_table()
        return opened


class OpenIcebergSink(OpenTableSink):
    """An Iceberg table that one run writes to."""

    going_back = (
        "its history table names the snapshot before them, CALL <catalog>.system.rollback_to_snapshot goes back to it"
    )

    def __init__(self, options: IcebergSink, context: SinkContext) -> None:
        super().__init__(context, options.table, options.mode, options.run_column)
        self._table = BranchedTable(context.spark, options.table)
        self._began = 0

    def check_table(self) -> None:
        """Raise ``WrongUse`` if the table does not exist, and ``InvalidConfig`` if it does not have the column of runs.

        Notes that the run begins, if it overwrites: of several runs, the last to begin has the last word.
        """
        last = self._target.rpartition(".")[2].strip("`")
        if last.startswith(SELECTORS) and not self._table.own_name.endswith(f".{last}"):
            raise InvalidConfig(
                f"IcebergSink('{self._target}'): name the table, not {last}. The sink has branches of its own"
            )
        self._table.read()
        if self._run_column and not self._table.has_column(self._run_column):
            raise InvalidConfig(sink_messages.add_run_column(self._by.uid, self._target, self._run_column))
        if self._overwrites:
            self._began = self._table.begin(self._by)

    # -- staging -----------------------------------------------------------------------------------------------------

    def prepare(self, df: DataFrame, name: str, version: int) -> Prepared:
        if self._run_column:
            refuse_taken(self._run_column, df)
            df = df.withColumn(self._run_column, lit(run_text(self._run, name)))
        entry = TableEntry(
            kind=COMMIT,
            by=self._by,
            transactions=(name,),
            version=version,
            began=self._began,
            overwrite=self._overwrites,
            run_column=self._run_column or "",
        )
        base, branch = self._table.read().metadata.current, self._table.make_branch(entry)
        self._write(df, branch, entry)
        staged = self._table.read().head(branch)
        rows, size = (int(staged.summary.get(key, 0)) for key in ("added-records", "added-files-size"))
        return Prepared(rows, size, content=self._content(staged, name, base or 0))

    def _content(self, staged: IcebergSnapshot, name: str, base: int) -> dict[str, Any]:
        """Return what a checkpoint holds. ``base`` was the current snapshot; the rows lie between two snapshots, or are those of ``where``."""
        if self._overwrites or self._run_column:
            options = {"versionAsOf": str(staged.id)}
        else:
            options = {"start-snapshot-id": str(staged.before), "end-snapshot-id": str(staged.id)}
        where = tag(self._run_column, self._run, [name]) if self._run_column else ""
        return {"base": base, "table": self._target, "options": options, "where": where}

    def _write(self, df: DataFrame, branch: str, entry: TableEntry) -> None:
        """Write the rows of a transaction into a branch."""
        # Not by the option "branch": without Iceberg's SQL extensions the rows might go to the main branch
        writer = df.writeTo(_in_sql(self._target, branch)).option(f"snapshot-property.{STAGED_AS}", note(entry))
        if entry.overwrite:
            writer.overwrite(lit(True))
        else:
            writer.append()

    def leftovers(self) -> Sequence[Leftover]:
        waiting = sorted(self._table.read().waiting().items())
        return [Leftover(name, entry.by.history, entry.by.incarnation) for name, entry in waiting]

    # -- commit and abort --------------------------------------------------------------------------------------------

    def commit(self, transaction: Transaction) -> bool:
        """Let the main branch take the rows. Raises ``OverwrittenSince``, ``Damaged`` if somebody removed the branch, ``CommitFailed``."""
        name, base = transaction.name, int(transaction.prepared["base"])

        def turn(found: Branches) -> Change | None:
            if found.fate(name, base) is not None:
                return None
            entry = found.waiting()[name]
            if entry.overwrite and found.overwritten_by > entry.began:
                with suppress(Exception):  # the next start aborts it too; this error must not be lost
                    self.abort([name])
                raise OverwrittenSince(sink_messages.overwritten_since(self._target))
            return self._publication(found, entry, transaction)

        return self._table.change(turn).fate(name, base) is True

    def _publication(self, found: Branches, entry: TableEntry, transaction: Transaction) -> Change:
        """Return the change that publishes the rows of a transaction, and removes its branches."""
        branches, replaces = found.of(transaction.name), bool(entry.run_column and transaction.replaces)
        complete = [branch for branch in (branches[1:] if replaces else branches) if found.holds_rows(branch)]
        ready = [branch for branch in complete if found.continues_main(branch)]
        if not ready and (replaces or entry.overwrite):
            try:
                ready = [self._write_again(entry, transaction)]
            except JAVA_ERRORS as error:
                if self._table.read().is_open(transaction.name):
                    raise CommitFailed(sink_messages.not_written_again(self._target, java_name(error))) from None
                return lambda _: None  # somebody has decided it meanwhile, and removed what was read or written
            branches = [*branches, *ready]
        staged = found.head(branches[0])

        def publish(iceberg: Any) -> None:
            refs = iceberg.manageSnapshots()
            refs = refs.fastForwardBranch(MAIN, ready[0]) if ready else refs.cherrypick(staged.id)
            remove_branches(refs, branches)
            if entry.overwrite:
                iceberg.updateProperties().set(OVERWRITTEN_BY, str(entry.began)).commit()

        return publish

    def _write_again(self, entry: TableEntry, transaction: Transaction) -> str:
        """Write the rows that wait into another branch, which begins with what the table is now, and without the rows that they replace."""
        branch = self._table.make_branch(entry, again=True)
        if not entry.overwrite:
            where = tag(entry.run_column, transaction.run, transaction.replaces)
            self._spark.sql(f"DELETE FROM {_in_sql(self._target, branch)} WHERE {where}")
        self._write(read_prepared(self._spark, transaction.prepared), branch, entry)
        return branch

    def abort(self, names: Collection[str]) -> tuple[str, ...]:
        def turn(found: Branches) -> Change | None:
            branches = [branch for name in names for branch in found.of(name)]
            undecided = tuple(sorted(name for name in names if found.is_open(name)))
            return partial(self._remove, branches, undecided) if branches else None

        found = self._table.change(turn)
        return tuple(sorted(name for name in names if found.decision(name)))

    def _remove(self, branches: Sequence[str], undecided: tuple[str, ...], iceberg: Any) -> None:
        """Remove branches, and note in the main branch that these transactions are aborted."""
        if undecided:
            aborts = TableEntry(kind=ABORT, by=self._by, transactions=undecided)
            iceberg.newFastAppend().set(NOTE, note(aborts)).commit()
        remove_branches(iceberg.manageSnapshots(), branches)

    # -- what the table holds ----------------------------------------------------------------------------------------

    def position(self) -> str:
        return f"snapshot {self._table.read().metadata.current or 'none'}"

    @property
    def sql_name(self) -> str:
        return self._target

    def rows(self) -> DataFrame | None:
        return self._spark.table(self._target)

    def entries(self) -> Sequence[TableEntry]:
        by, uids = self._by, {writer.uid for writer in self._writers}
        own = (entry for entry in self._table.read().entries() if entry.by.uid in uids)
        return [
            entry
            for entry in own
            if same_history(entry.by, by) or any(entry.by.same_run(writer) for writer in self._writers)
        ]

    def remembers_since(self) -> float:
        oldest = self._table.read().oldest_if_forgetful()
        return oldest.at_ms / 1000 if oldest else 0.0


def _in_sql(table: str, branch: str) -> str:
    """Return the name of a branch of a table."""
    return f"{table}.`branch_{branch}`"


def read_prepared(spark: SparkSession, prepared: Mapping[str, Any]) -> DataFrame:
    """Return the rows of a transaction that waits."""
    rows = spark.read.options(**prepared["options"]).table(prepared["table"])
    return rows.where(prepared["where"]) if prepared["where"] else rows
