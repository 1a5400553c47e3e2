"""A Delta table as a sink: ``DeltaSink``. Runs in the Spark driver.

The rows are staged beside the table. The commit writes them into the table in one commit of Delta, which also says that this transaction is
decided (``delta_chain.py``).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.functions import lit

from airflow_checkpoint_provider.errors import InvalidConfig, OverwrittenSince
from airflow_checkpoint_provider.protocol.query_details import DELTA
from airflow_checkpoint_provider.protocol.transactions import Transaction
from airflow_checkpoint_provider.sinks.log import ABORT, BEGIN, COMMIT, CommitLog, LogEntry, RunOfSink
from airflow_checkpoint_provider.sinks.staging import rows_key
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.queries.sinks.delta_table import DeltaTable
from airflow_checkpoint_provider.spark.queries.writer import need_package
from airflow_checkpoint_provider.spark.s3a import spark_uri
from airflow_checkpoint_provider.spark.sinks.base import Leftover, OpenSink, Prepared, Sink, SinkContext
from airflow_checkpoint_provider.spark.sinks.delta_chain import DeltaChain
from airflow_checkpoint_provider.spark.sinks.files import APPEND, MODES, OVERWRITE, check_columns, check_folder
from airflow_checkpoint_provider.spark.sinks.run_column import check_run_column, refuse_taken, run_text, tag
from airflow_checkpoint_provider.spark.sinks.staged_rows import StagedForTable, StagedRows
from airflow_checkpoint_provider.spark.sinks.tables import OpenTableSink, TableEntry
from airflow_checkpoint_provider.spark.sinks.target_store import open_target, uri_of
from airflow_checkpoint_provider.spark.sql_names import quoted
from airflow_checkpoint_provider.spark.stages.schemas import schema_json, stored_schema
from airflow_checkpoint_provider.text import sink_messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OVERWRITES = "airflow-checkpoint/overwrite"
"""The chain of all overwrites of a table, of any run and any job."""
STATIC = {"partitionOverwriteMode": "static"}  # whatever the session says


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
        check_run_column(self.run_column, self.mode)

    @property
    def target(self) -> str:
        return os.fspath(self.path)

    @property
    def compared_options(self) -> Mapping[str, Any]:
        return {"mode": self.mode, "partition_by": list(self.partition_by), "run_column": self.run_column}

    def open(self, context: SinkContext) -> OpenSink:
        need_package(context.spark, f"sink '{context.uid}'", DELTA)
        return OpenDeltaSink(self, context)


class OpenDeltaSink(OpenTableSink):
    """A Delta table that one run writes to."""

    going_back = "DESCRIBE HISTORY names the version before them, RESTORE TABLE goes back to it"

    def __init__(self, options: DeltaSink, context: SinkContext) -> None:
        super().__init__(context, options.target, options.mode, options.run_column)
        self._options = options
        self._store = open_target(context.spark, uri_of(context.spark, options.target))
        self._staged = StagedRows(context.spark, self._store)
        self._table = DeltaTable(context.spark, options.target)
        self._chains = [f"airflow-checkpoint/{by.incarnation}/{by.uid}" for by in self._writers]
        self._chain = OVERWRITES if self._overwrites else self._chains[0]
        self._began = self._begin() if self._overwrites else 0
        if self._table.one_driver_only:
            say(sink_messages.one_driver_only(f"sink '{context.uid}'", options.target))

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
        return [Leftover(left.name, left.by.history, left.by.incarnation) for left in self._staged.leftovers()]

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
            with suppress(Exception):  # the next start aborts it too; this error must not be lost
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

    @property
    def sql_name(self) -> str:
        return f"{DELTA}.{quoted(self._table.folder)}"

    def rows(self) -> DataFrame | None:
        return self._spark.read.format(DELTA).load(self._table.folder) if self._table.version >= 0 else None

    def entries(self) -> Sequence[TableEntry]:
        chains = [chain for name in self._chains if (chain := DeltaChain(self._table, name)).newest()]
        found = (entry for chain in chains for entry in chain.entries() if entry.kind == COMMIT)
        return sorted(found, key=lambda entry: entry.version)

    def remembers_since(self) -> float:
        return self._table.remembers_since()
