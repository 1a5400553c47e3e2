"""A Delta table as a sink: ``DeltaSink``. Runs in the Spark driver.

The rows are staged beside the table. The commit writes them into the table in one commit of Delta, which also says that this transaction is
decided (``delta_chain.py``).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.functions import lit

from airflow_checkpoint_provider.errors import InvalidConfig, NotSupportedYet, OverwrittenSince, RowsStand
from airflow_checkpoint_provider.protocol.metadata import DELTA
from airflow_checkpoint_provider.protocol.transactions import Transaction
from airflow_checkpoint_provider.sinks.log import ABORT, BEGIN, COMMIT, CommitLog, LogEntry, RunOfSink
from airflow_checkpoint_provider.sinks.staging import rows_key
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.queries.sinks.delta_table import DeltaTable
from airflow_checkpoint_provider.spark.queries.writer import need_package
from airflow_checkpoint_provider.spark.s3a import spark_uri
from airflow_checkpoint_provider.spark.sinks.base import Committed, Leftover, OpenSink, Prepared, Sink, SinkContext
from airflow_checkpoint_provider.spark.sinks.delta_chain import DeltaChain, TableEntry
from airflow_checkpoint_provider.spark.sinks.files import APPEND, MODES, OVERWRITE, check_columns, check_folder
from airflow_checkpoint_provider.spark.sinks.run_column import (
    of_transactions,
    quoted,
    refuse_taken,
    run_text,
    tag,
    transactions_in,
)
from airflow_checkpoint_provider.spark.sinks.staged_rows import StagedForTable, StagedRows
from airflow_checkpoint_provider.spark.sinks.target_store import open_target, uri_of
from airflow_checkpoint_provider.spark.stages.schemas import schema_json, stored_schema
from airflow_checkpoint_provider.text import sink_messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OVERWRITES = "airflow-checkpoint/overwrite"
"""The chain of all overwrites of a table, of any run and any job."""
STATIC = {"partitionOverwriteMode": "static"}  # whatever the session says
ONE_DRIVER = "S3SingleDriverLogStore"


@dataclass(frozen=True)
class DeltaSink(Sink):
    """The Delta table at ``path`` as a sink: each row is there once, and only if the checkpoint that holds it is completed.

    ``path`` is a folder that all hosts share, or ``s3a://bucket/prefix``. The first commit makes the table if it is not there.
    ``mode="append"`` adds rows; ``"overwrite"`` replaces all of them. With ``run_column`` the sink adds a column of that name with the run
    and the transaction of each row, and can replace the rows of a run that is computed again; without it, such a run is refused in append.

    Raises ``InvalidConfig`` for other options.
    """

    path: str | os.PathLike[str]
    _: KW_ONLY
    mode: str = APPEND
    partition_by: Sequence[str] = ()
    run_column: str | None = None
    kind: ClassVar[str] = DELTA

    def __post_init__(self) -> None:
        check_folder("path", self.path)
        if not isinstance(self.mode, str) or self.mode not in MODES:
            raise InvalidConfig(f'mode={self.mode!r}: a DeltaSink has mode="append" and mode="overwrite"')
        check_columns("partition_by", self.partition_by)
        if self.run_column is not None and (self.mode == OVERWRITE or not self.run_column):
            raise InvalidConfig(f'run_column={self.run_column!r}: it is the name of a column, and for mode="append"')

    @property
    def target(self) -> str:
        return os.fspath(self.path)

    def open(self, context: SinkContext) -> OpenSink:
        need_package(context.spark, f"sink '{context.uid}'", DELTA)
        return OpenDeltaSink(self, context)


class OpenDeltaSink(OpenSink):
    """A Delta table that one run writes to."""

    def __init__(self, options: DeltaSink, context: SinkContext) -> None:
        self._options, self._spark, self._run = options, context.spark, context.run
        self._store = open_target(context.spark, uri_of(context.spark, options.target))
        self._staged = StagedRows(context.spark, self._store)
        self._table = DeltaTable(context.spark, options.target)
        self._by = RunOfSink(history=context.history, run=context.run, uid=context.uid, generation=context.generation)
        overwrite = options.mode == OVERWRITE
        self._chain = OVERWRITES if overwrite else f"airflow-checkpoint/{context.incarnation}/{context.uid}"
        self._began = self._begin() if overwrite else 0
        self.replaces = overwrite or options.run_column is not None
        if self._table.log_store == ONE_DRIVER:
            say(sink_messages.one_driver_only(context.uid, options.target))

    def _begin(self) -> int:
        """Note that the run begins to write, unless it has. Of several runs that overwrite, the last to begin has the last word."""
        log = CommitLog(self._store)
        log.append(lambda found: None if found.began(self._by) else LogEntry(kind=BEGIN, by=self._by))
        return log.read().began(self._by)

    # -- staging -----------------------------------------------------------------------------------------------------

    def prepare(self, df: DataFrame, name: str, version: int) -> Prepared:
        if self._options.run_column:
            refuse_taken(self._options.run_column, df)
        schema, base = schema_json(df), self._table.version + 1
        staged = StagedForTable(name=name, by=self._by, base=base, began=self._began, chain=self._chain, schema=schema)
        rows, sizes = self._staged.stage(df, staged)
        content = {
            "files": sizes,
            "schema": schema,
            "rows_at": spark_uri(self._store, rows_key(name)),
            "format": "parquet",
            "base": base,
            "began": self._began,
            "chain": self._chain,
            "run_column": self._options.run_column,
            "partition_by": list(self._options.partition_by),
            "by": self._by.to_json(),
        }
        return Prepared(rows=rows, bytes=sum(sizes.values()), content=content)

    def leftovers(self) -> Sequence[Leftover]:
        return [Leftover(left.name, left.by.history) for left in self._staged.leftovers()]

    # -- commit and abort --------------------------------------------------------------------------------------------

    def commit(self, transaction: Transaction) -> bool:
        """Write the rows. Raises ``OverwrittenSince``, ``CommitFailed`` if the table refuses them, ``Damaged`` if staged rows are lost."""
        prepared, name = transaction.prepared, transaction.name
        partitions: list[str] = prepared["partition_by"]
        chain, overwrite = DeltaChain(self._table, prepared["chain"]), prepared["chain"] == OVERWRITES
        entry = TableEntry(
            kind=COMMIT,
            run_column=prepared["run_column"] or "",
            by=RunOfSink.from_json(prepared["by"]),  # who wrote the rows: another run may commit them
            transactions=(name,),
            version=transaction.version,
            began=prepared["began"],
            overwrite=overwrite,
        )

        def write(options: dict[str, str]) -> None:
            rows = self._staged.read(name, prepared["files"], prepared["schema"])
            if column := prepared["run_column"]:
                rows = rows.withColumn(column, lit(run_text(transaction.run, name)))
            if chain.has_only_aborts():
                self._save(rows, OVERWRITE, partitions, {**options, **STATIC, "overwriteSchema": "true"})
            elif overwrite:
                self._save(rows, OVERWRITE, partitions, {**options, **STATIC})
            elif column and transaction.replaces:
                mine = tag(column, transaction.run, (name, *transaction.replaces))
                self._save(rows, OVERWRITE, partitions, {**options, **STATIC, "replaceWhere": mine})
            else:
                self._save(rows, APPEND, partitions, options)

        fate = chain.decide(entry, prepared["base"], write).get(name)
        if fate is None:
            self.abort([name])
            raise OverwrittenSince(sink_messages.overwritten_since(self._options.target))
        self._staged.delete([name])
        return fate.committed

    def _save(self, rows: DataFrame, mode: str, partition_by: Sequence[str], options: dict[str, str]) -> None:
        writer = rows.write.format(DELTA).mode(mode).options(**options)
        if partitions := [column for column in partition_by if column in rows.columns]:
            writer = writer.partitionBy(*partitions)
        writer.save(self._table.folder)

    def abort(self, names: Collection[str]) -> tuple[str, ...]:
        staged = {left.name: left for left in self._staged.leftovers() if left.name in names}
        committed = set[str]()
        for chain in {left.chain for left in staged.values()} | {self._chain}:
            own = {name for name in names if (staged[name].chain if name in staged else self._chain) == chain}
            committed |= self._abort_in(chain, own, staged)
        self._staged.delete(set(names))
        return tuple(sorted(committed))

    def _abort_in(self, chain: str, names: Collection[str], staged: dict[str, StagedForTable]) -> set[str]:
        """Abort transactions of one chain. Return those that are committed."""
        schemas = [staged[name].schema for name in names if name in staged]
        if not names or (not schemas and self._table.version < 0):
            return set()
        base = min(staged[name].base if name in staged else 0 for name in names)
        found = DeltaChain(self._table, chain).fates(names, base)
        if left := tuple(sorted(names - found.keys())):
            entry = LogEntry(kind=ABORT, by=self._by, transactions=left)
            found |= DeltaChain(self._table, chain).decide(entry, base, lambda options: self._mark(schemas, options))
        return {name for name, fate in found.items() if fate.committed}

    def _mark(self, schemas: Sequence[str], options: dict[str, str]) -> None:
        """Write a commit without rows. It makes the table if it is not there."""
        there = self._table.version >= 0
        schema = self._table.schema if there else stored_schema(schemas[0])
        partitions = () if there else self._options.partition_by  # a table that is there keeps its own
        self._save(self._spark.createDataFrame([], schema), APPEND, partitions, options)

    # -- what the table holds ----------------------------------------------------------------------------------------

    def position(self) -> str:
        return f"version {self._table.version}"

    def standing(self) -> tuple[str, ...]:
        """Return the transactions of this run. Raises ``RowsStand`` if some have no column by which this sink could replace them."""
        if not self._options.run_column:
            return tuple(made.name for made in self._committed() if made.run == self._run)
        if bare := [made for made in self._committed(tagged=False) if made.run == self._run]:
            raise RowsStand(sink_messages.rows_without_column(self._by.uid, self._options.target, len(bare)))
        return tuple(name for run, name in self._in_column() if run == self._run)

    def later(self, version: int) -> Sequence[Committed]:
        later = [made for made in self._committed() if made.version > version]
        if later and self._options.run_column:
            found = {name for _, name in self._in_column()}
            later = [made for made in later if made.name in found]
        return later

    def take_out(self, names: Collection[str]) -> None:
        """Delete rows by the column of their run. Raises ``NotSupportedYet`` without that column."""
        if self._options.run_column is None:
            raise NotSupportedYet(sink_messages.no_run_column(self._options.target, len(names)))
        where = of_transactions(self._options.run_column, names)
        self._spark.sql(f"DELETE FROM {DELTA}.{quoted(self._table.folder)} WHERE {where}")

    def _committed(self, *, tagged: bool = True) -> list[Committed]:
        """Return what this history has appended, as far as the table's log goes back; not ``tagged``: only what has no column of its run.

        An overwrite leaves nothing to stand.
        """
        chain = DeltaChain(self._table, self._chain)
        if self._options.mode == OVERWRITE or not chain.newest():
            return []
        commits = [entry for entry in chain.entries() if entry.kind == COMMIT and (tagged or not entry.run_column)]
        return [Committed(name, entry.version, entry.by.run) for entry in commits[::-1] for name in entry.transactions]

    def _in_column(self) -> list[tuple[str, str]]:
        """Return the runs and transactions whose rows are in the table."""
        if not self._options.run_column or self._table.version < 0:
            return []
        return transactions_in(self._spark.read.format(DELTA).load(self._table.folder), self._options.run_column)
