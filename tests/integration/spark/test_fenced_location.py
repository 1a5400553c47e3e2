"""Spark's own query in a location that was fenced. Runs on Linux, with a Spark session."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.location.fence import FenceEntry, fence, newest_batch
from airflow_checkpoint_provider.location.files import COMMITS, OFFSETS, Location
from airflow_checkpoint_provider.storage import LocalStore
from tests.integration.spark.plain_query import run
from tests.support.streams import add_files, expected, rows_in

FENCE = FenceEntry("1ncarnation", "rows", "nonce", "attempt 2 of rows")


def nobody_fenced() -> None:
    """Let the process that fences go on."""


@pytest.mark.parametrize(
    "committed",
    [
        pytest.param(2, id="after a commit", marks=pytest.mark.slow),  # as in the middle of a batch
        pytest.param(1, id="in the middle of a batch"),
    ],
)
def test_query_that_starts_again_in_a_fenced_location_reads_the_fence_and_fails(
    spark: SparkSession, tmp_path: Path, committed: int
) -> None:
    """So does the next one: nobody takes the fence away."""
    location = Location(LocalStore(tmp_path), "location")
    add_files(tmp_path / "in", *range(3))
    run(spark, tmp_path)
    for batch in range(committed + 1, 3):
        location.store.delete([location.key_of(f"{COMMITS}/{batch}"), location.key_of(f"{COMMITS}/.{batch}.crc")])
    assert fence(location, FENCE, nobody_fenced) == 2
    add_files(tmp_path / "in", 3)
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="INVALID_LOG_VERSION"):
            run(spark, tmp_path)
        assert newest_batch(location) == (2, True)
        assert location.batches(COMMITS)[-1] == committed
    assert rows_in(tmp_path / "out") == expected(3)


def test_fence_below_the_log_that_went_on_is_no_harm(spark: SparkSession, tmp_path: Path) -> None:
    """A process that fences may have slept while the log was purged past its number. Spark does not read that entry, and purges it."""
    location = Location(LocalStore(tmp_path), "location")
    add_files(tmp_path / "in", *range(4))
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "1")
    try:
        run(spark, tmp_path)
        assert location.batches(OFFSETS) == [2, 3]
        location.store.create(location.key_of(f"{OFFSETS}/0"), FENCE.to_bytes())
        assert newest_batch(location) == (3, False)
        add_files(tmp_path / "in", *range(4, 6))
        run(spark, tmp_path)
    finally:
        spark.conf.unset("spark.sql.streaming.minBatchesToRetain")
    assert location.batches(OFFSETS) == [4, 5]
    assert rows_in(tmp_path / "out") == expected(6)
