"""What is refused of a query before it starts: what could not go on exactly. Runs on Linux, with a Spark session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.errors import NotInstalled, NotSupportedYet, VersionMismatch, WrongUse
from airflow_checkpoint_provider.spark.queries.writer import TABLES, Target, examine
from tests.integration.spark.plain_query import run
from tests.support.sparks import INSTALLED
from tests.support.streams import add_files

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

NO_DELTA = (
    (NotInstalled, "writes to delta, and Spark does not have it")
    if INSTALLED in TABLES["delta"][1]
    else (VersionMismatch, "writes to delta, which was tried with Spark 4.0, 4.1, 4.2, and this is")
)
ABORTABLE = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"


def writer(spark: SparkSession, format: str = "parquet", **options: str) -> DataStreamWriter:  # noqa: A002 - Spark's own name
    rows = spark.readStream.format("rate").load()
    return rows.writeStream.format(format).options(**{"path": "/data/out", **options}).trigger(availableNow=True)


@contextmanager
def session_conf(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name)


def test_file_sink_is_known_by_its_format_and_path(spark: SparkSession) -> None:
    assert examine(spark, "rows", writer(spark)) == Target("parquet", "/data/out")


@pytest.mark.parametrize(
    ("name", "value", "error", "says"),
    [
        (
            "spark.sql.streaming.stateStore.checkpointFormatVersion",
            "2",
            NotSupportedYet,
            "loses a query whose sink skips a batch",
        ),
        (
            "spark.sql.streaming.offsetLog.formatVersion",
            "2",
            NotSupportedYet,
            "loses a query that ends in the middle of a batch",
        ),
        (
            "spark.sql.streaming.checkpointFileManagerClass",
            ABORTABLE,
            WrongUse,
            "an older driver could continue",
        ),
        ("spark.sql.streaming.checkpointLocation", "/data/ckp", WrongUse, "each attempt has a location of its own"),
        ("spark.sql.streaming.minBatchesToRetain", "9", WrongUse, "deletes files while a checkpoint copies them"),
    ],
)
def test_conf_with_which_a_query_could_not_go_on_exactly_is_refused(
    spark: SparkSession, name: str, value: str, error: type[Exception], says: str
) -> None:
    with session_conf(spark, name, value), pytest.raises(error, match=says):
        examine(spark, "rows", writer(spark))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda query: query.option("checkpointLocation", "/data/ckp"), WrongUse, "has the option checkpointLocation"),
        (
            lambda query: query.option("asyncProgressTrackingEnabled", "true"),
            NotSupportedYet,
            "writes no offsets before",
        ),
        (lambda query: query.trigger(continuous="1 second"), NotSupportedYet, "a ContinuousTrigger has no batches"),
        (lambda query: query.trigger(realTime="1 minute"), NotSupportedYet, "a RealTimeTrigger has no batches"),
        (lambda query: query.format("memory"), NotSupportedYet, "writes to 'memory'"),
        (lambda query: query.format("delta"), *NO_DELTA),
        (
            lambda query: query.format("iceberg"),
            VersionMismatch,
            "writes to iceberg, which was tried with Spark 4.0, 4.1, and this is",
        ),
        (lambda query: query.option("path", ""), WrongUse, "has no path"),
    ],
    ids=["location", "async", "continuous", "real-time", "memory", "delta", "iceberg", "no path"],
)
def test_writer_with_which_a_query_could_not_go_on_exactly_is_refused(
    spark: SparkSession, change: Callable[[DataStreamWriter], DataStreamWriter], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        examine(spark, "rows", change(writer(spark)))


def test_spark_before_4_3_cannot_go_on_in_the_middle_of_a_batch_whose_offsets_have_format_2(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark 4.3 can. Format 2 stays refused as long as a job may go back to an older one."""
    add_files(tmp_path / "in", *range(2))
    with session_conf(spark, "spark.sql.streaming.offsetLog.formatVersion", "2"):
        run(spark, tmp_path)
        (tmp_path / "location" / "commits" / "1").unlink()
        (tmp_path / "location" / "commits" / ".1.crc").unlink()
        lost = pytest.raises(StreamingQueryException, match=r"None\.get")
        with lost if INSTALLED in ("4.0", "4.1", "4.2") else nullcontext():
            run(spark, tmp_path)
