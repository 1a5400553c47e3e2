"""A folder of files as a sink: ``FileSink``. Runs in the Spark driver.

Spark writes the rows into a folder of the target that readers pass over. The commit lets the files appear, by an entry of the target's log
(``sinks/published_files.py``).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import Observation
from pyspark.sql.functions import count, lit

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.policies import arguments
from airflow_checkpoint_provider.policies.arguments import checks_arguments
from airflow_checkpoint_provider.protocol.query_details import FILE_SINKS
from airflow_checkpoint_provider.protocol.transactions import Transaction
from airflow_checkpoint_provider.sinks.published_files import PublishedFiles, files_of_readers
from airflow_checkpoint_provider.sinks.staging import rows_key
from airflow_checkpoint_provider.spark.s3a import spark_uri
from airflow_checkpoint_provider.spark.sinks.base import Committed, Leftover, OpenSink, Prepared, Sink, SinkContext
from airflow_checkpoint_provider.spark.sinks.target_store import open_target, uri_of
from airflow_checkpoint_provider.spark.stages.arguments import OPEN
from airflow_checkpoint_provider.spark.stages.parquet_files import EACH_FILE, rights, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APPEND, OVERWRITE = "append", "overwrite"
MODES = (APPEND, OVERWRITE)
WRITE = {
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "mapreduce.fileoutputcommitter.algorithm.version": "1",  # 2 leaves files of failed tasks behind
}


@dataclass(frozen=True)
class FileSink(Sink):
    """The folder ``path`` as a sink: each row is there once, and only if the checkpoint that holds it is completed.

    ``path`` is a folder that all hosts share, or ``s3a://bucket/prefix``. ``format`` is one of Spark's file formats. ``mode="append"`` adds
    files; ``"overwrite"`` replaces all rows, those of partitions that get no new rows too. The rows of a run that is cleared, or that a
    retry computes again, are replaced in both modes.

    Raises ``InvalidConfig`` for another mode or format.
    """

    path: str | os.PathLike[str]
    _: KW_ONLY
    format: str = "parquet"
    mode: str = APPEND
    partition_by: Sequence[str] = ()
    kind: ClassVar[str] = "files"

    def __post_init__(self) -> None:
        check_folder("path", self.path)
        if not isinstance(self.mode, str) or self.mode not in MODES:
            raise InvalidConfig(f'mode={self.mode!r}: a FileSink has mode="append" and mode="overwrite"')
        if not isinstance(self.format, str) or self.format not in FILE_SINKS:
            raise InvalidConfig(f"format={self.format!r} is not one of {', '.join(FILE_SINKS)}")
        check_columns("partition_by", self.partition_by)
        if hidden := [column for column in self.partition_by if column.startswith(".")]:
            raise InvalidConfig(
                f"partition_by: no reader finds the folders of a column {hidden[0]!r}. Rename the column"
            )

    @property
    def target(self) -> str:
        return os.fspath(self.path)

    @property
    def compared_options(self) -> Mapping[str, Any]:
        return {"format": self.format, "mode": self.mode, "partition_by": list(self.partition_by)}

    def open(self, context: SinkContext) -> OpenSink:
        return OpenFileSink(self, context)


def check_folder(name: str, value: Any) -> None:
    """Raise ``InvalidConfig`` unless ``value`` is the path of a folder."""
    arguments.path(name, value)
    if not value:
        raise InvalidConfig(
            f'{name}={value!r} names no folder: write {name}="/data/report" or {name}="s3a://bucket/report"'
        )


def check_columns(name: str, columns: object) -> None:
    """Raise ``InvalidConfig`` unless ``columns`` is a list of names."""
    if isinstance(columns, str):
        raise InvalidConfig(f"{name}={columns!r} is a text: write {name}=[{columns!r}]")
    if not isinstance(columns, Sequence) or not all(isinstance(column, str) and column for column in columns):
        raise InvalidConfig(f'{name}={columns!r} is not a list of columns: write {name}=["day"]')


@checks_arguments(path=check_folder, spark=OPEN["spark"])
def read_sink(path: str | os.PathLike[str], spark: SparkSession) -> DataFrame:
    """Return the rows that the log of a ``FileSink`` says are there, of all commits that are done.

    A reader that lists the folder while a commit lets its files appear sees a part of them, and during an overwrite perhaps rows of both.
    This one waits until the newest commit is done. Raises ``CheckpointNotFound`` if the folder has no log, or no rows were committed yet,
    and ``StoreUnavailable`` if a commit has stopped half-way: the next start of its job ends it.
    """
    store = open_target(spark, uri_of(spark, os.fspath(path)))
    found = files_of_readers(store)
    reader = spark.read.format(found.format or "parquet").options(
        basePath=spark_uri(store, "").rstrip("/"), **EACH_FILE
    )
    return reader.load([spark_uri(store, file.name) for file in found.files])


class OpenFileSink(OpenSink):
    """A folder that one run writes to."""

    replaces = lists_prepared = True

    def __init__(self, options: FileSink, context: SinkContext) -> None:
        self._options, self._spark = options, context.spark
        self._store = open_target(context.spark, uri_of(context.spark, options.target))
        # The script's thread stages while another one commits: each reads the log for itself
        self._staging, self._commits = (
            PublishedFiles(
                self._store,
                context.by,
                overwrite=options.mode == OVERWRITE,
                file_format=options.format,
                also=context.also,
            )
            for _ in range(2)
        )
        self._commits.begin()
        self.in_order = options.mode == OVERWRITE
        self._lock = threading.RLock()  # the script may abort a write while another thread commits

    def prepare(self, df: DataFrame, name: str, version: int) -> Prepared:
        staged = self._staging.stage(name)
        uri = spark_uri(self._store, rows_key(name))
        rows = self._write(df, uri)
        content = {**self._staging.prepared(staged), "rows_at": uri}
        return Prepared(rows=rows, bytes=sum(content["files"].values()), content=content)

    def prepare_removal(self, name: str, version: int) -> Prepared:
        staged = self._staging.stage(name)  # without rows
        # Not an overwrite: what others have written since must stay
        return Prepared(rows=0, bytes=0, content={**self._staging.prepared(staged), "overwrite": False})

    def _write(self, df: DataFrame, uri: str) -> int:
        observed = Observation()
        counted = df.observe(observed, count(lit(1)).alias("rows"))
        writer = counted.write.format(self._options.format).mode("errorifexists").options(**WRITE, **rights(uri))
        if self._options.partition_by:
            writer = writer.partitionBy(*self._options.partition_by)
        writer.save(uri)
        return rows_of(self._spark, observed)

    def commit(self, transaction: Transaction) -> bool:
        with self._lock:
            return self._commits.commit(transaction)

    def abort(self, names: Collection[str]) -> tuple[str, ...]:
        with self._lock:
            bases = {left.name: left.base for left in self._commits.leftovers()}
            return self._commits.abort(names, min((bases.get(name, 0) for name in names), default=0))

    def position(self) -> str:
        with self._lock:
            return f"entry {self._commits.log.read().n}"

    def standing(self) -> tuple[str, ...]:
        return self._commits.standing()

    def later(self, version: int) -> Sequence[Committed]:
        found = self._commits.later(version)
        return [Committed(name, commit.version, commit.by.run) for commit in found for name in commit.transactions]

    def take_out(self, names: Collection[str]) -> None:
        self._commits.take_out(names)

    def taken_out(self, transactions: Sequence[Transaction]) -> Collection[str]:
        with self._lock:
            return self._commits.taken_out(transactions)

    def leftovers(self) -> Sequence[Leftover]:
        return [Leftover(left.name, left.by.history, left.by.incarnation) for left in self._commits.leftovers()]
