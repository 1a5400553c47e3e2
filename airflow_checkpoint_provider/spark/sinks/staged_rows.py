"""Rows that lie ready as Parquet beside a table, until the table takes them. Runs in the Spark driver.

They lie in the table's folder, in ``_checkpoint-staging``: readers of tables read the files that the table names, and the clean-up of a table
passes over names that begin with ``_``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.protocol.file_records import File
from airflow_checkpoint_provider.sinks.staging import Staged, StagingFolder, rows_key
from airflow_checkpoint_provider.spark.s3a import spark_uri
from airflow_checkpoint_provider.spark.stages import parquet_files
from airflow_checkpoint_provider.storage.base import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, kw_only=True)
class StagedForTable(Staged):
    """A transaction that is staged for a table. ``base`` is the first version of the table that may hold it.

    ``chain`` names the writers who take turns (``delta_chain.py``). ``schema`` is Spark's JSON.
    """

    chain: str
    schema: str


class StagedRows(StagingFolder[StagedForTable]):
    """The rows that are staged in ``store``, whose root is the folder of a table."""

    def __init__(self, spark: SparkSession, store: Store) -> None:
        super().__init__(store, StagedForTable)
        self._spark = spark

    def stage(self, df: DataFrame, staged: StagedForTable) -> tuple[int, dict[str, int]]:
        """Compute the rows of a transaction and stage them durably. Return their number, and the sizes in bytes of their files."""
        self.make(staged)
        key = rows_key(staged.name)
        codec = parquet_files.codec_for(self._store.uri.partition(":")[0])
        written = parquet_files.write(df, spark_uri(self._store, key), codec=codec)
        self._store.make_durable(f"{key}/{name}" for name in written.sizes)
        return written.rows, written.sizes

    def read(self, name: str, sizes: dict[str, int], schema: str) -> DataFrame:
        """Return the rows of a transaction. Raises ``Damaged`` if they are not all there."""
        files = [File(name=file, bytes=size, rows=0) for file, size in sorted(sizes.items())]
        return parquet_files.read(self._spark, spark_uri(self._store, rows_key(name)), files, schema)
