"""The log of a file sink whose batches a function writes: what Spark reads of it. Runs on Linux, with a Spark session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.errors import NotSupportedYet, SinkMoved
from airflow_checkpoint_provider.file_sink.log import SinkFile
from airflow_checkpoint_provider.spark import batch_sink
from airflow_checkpoint_provider.spark.queries.sinks.sink_log import SinkLog
from tests.support.streams import sink_log


def read(spark: SparkSession, out: Path) -> list[int]:
    return sorted(row.id for row in spark.read.parquet(str(out)).collect())


@pytest.mark.parametrize(  # 8 has a compaction behind its first batches
    "first", [pytest.param(0, marks=pytest.mark.slow), 8, pytest.param(1004, marks=pytest.mark.slow)]
)
def test_spark_reads_a_sink_that_begins_anywhere_and_lacks_batches(
    spark: SparkSession, tmp_path: Path, first: int
) -> None:
    """The log is compacted on the way, at every tenth batch."""
    write = batch_sink(str(tmp_path))
    batches = [first, first + 1, first + 5, first + 13]
    for batch in batches:
        write(spark.range(batch, batch + 1), batch)
        assert read(spark, tmp_path) == [written for written in batches if written <= batch]


def test_published_batch_is_not_written_again(spark: SparkSession, tmp_path: Path) -> None:
    write, again = batch_sink(str(tmp_path)), batch_sink(str(tmp_path))
    write(spark.range(3), 0)
    again(spark.range(5), 0)
    assert read(spark, tmp_path) == [0, 1, 2]


def test_batch_that_would_be_skipped_behind_later_ones_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write = batch_sink(str(tmp_path))
    write(spark.range(3), 1)
    with pytest.raises(SinkMoved, match="has batches up to 1, so it would skip batch 0"):
        write(spark.range(3), 0)


def test_log_that_was_filled_up_to_the_middle_is_filled_up_again(spark: SparkSession, tmp_path: Path) -> None:
    for up_to in (21, 34):  # the first driver was killed at 21
        SinkLog(spark, str(tmp_path)).mark_batches_written(up_to)
    assert sorted(sink_log(tmp_path)) == [29, 30, 31, 32, 33, 34]
    batch_sink(str(tmp_path))(spark.range(2), 35)
    assert read(spark, tmp_path) == [0, 1]


def test_newest_file_is_found_at_the_end_of_a_long_entry(spark: SparkSession, tmp_path: Path) -> None:
    log = SinkLog(spark, str(tmp_path))
    names = [f"file:{tmp_path}/part-{number:0100}" for number in range(1000)]
    log.keep([SinkFile(name, json.dumps({"path": name})) for name in names], 19)
    log.mark_batches_written(21)
    assert log.newest_file(21) == names[-1]
    assert [file.path for file in log.files()] == names


def test_format_without_a_log_is_refused() -> None:
    with pytest.raises(NotSupportedYet, match="cannot write 'delta'"):
        batch_sink("/data/out", "delta")
