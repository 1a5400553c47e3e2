"""The files of a table by key: a file for each range of key groups, and all rows again when the changes have grown. Runs in the Spark driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.errors import DuplicateKeys
from airflow_checkpoint_provider.protocol.file_records import FileSet
from airflow_checkpoint_provider.spark.loops.key_groups import key_group, spread
from airflow_checkpoint_provider.spark.loops.keyed import RESERVED, OpenedKeyed
from airflow_checkpoint_provider.spark.sql_names import quoted
from airflow_checkpoint_provider.spark.stages.parquet_files import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIMES = f"{RESERVED}times"
MOST_CHANGES = 8
"""Snapshots of changes after one of all rows. Each costs a join in each read."""
SHARE = 2
"""All rows are written again when the changes have more than one part in so many of their bytes."""


def is_due(chain: Sequence[FileSet]) -> bool:
    """Return whether a snapshot stores all rows instead of more changes. ``chain``: all rows, and the changes since then."""
    base, *changes = chain
    return len(changes) >= MOST_CHANGES or sum(one.bytes for one in changes) * SHARE > base.bytes


def files_for(spark: SparkSession, max_parallelism: int) -> int:
    """Return into how many files the session writes a table by key."""
    shuffle = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    return max(1, min(max_parallelism, shuffle, spark.sparkContext.defaultParallelism))


class LaidOut:
    """Rows as they are written: each file has a range of key groups, and is sorted by key. Writing them counts the rows of each key."""

    def __init__(self, opened: OpenedKeyed, rows: DataFrame) -> None:
        self._opened, self._spark, self._observed = opened, rows.sparkSession, Observation()
        key = [F.col(quoted(name)) for name in opened.key]
        others = [F.first(quoted(name)).alias(name) for name in rows.columns if name not in opened.key]
        counted = rows.groupBy(*key).agg(F.count(F.lit(1)).alias(TIMES), *others)
        most = F.coalesce(F.max(TIMES), F.lit(1)).alias("rows")
        unique = counted.observe(self._observed, most).select(*map(quoted, rows.columns))
        group = key_group([(name, rows.schema[name].dataType) for name in opened.key], opened.max_parallelism)
        files = files_for(self._spark, opened.max_parallelism)
        self.df = spread(unique, group, files, opened.max_parallelism).sortWithinPartitions(*key)

    def check(self) -> None:
        """Raise ``DuplicateKeys`` if a key was there twice. Call it when the rows are written."""
        if (times := rows_of(self._spark, self._observed)) > 1:
            raise DuplicateKeys(
                f"{self._opened.name}: a key is in {times} of the rows that were put in, so nobody can say which of them counts. Nothing was"
                " stored. Give each key once: aggregate before, or dropDuplicates"
            )
