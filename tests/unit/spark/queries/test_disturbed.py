"""Which errors of Spark another driver in the same batch causes. Runs anywhere."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.spark.queries.running import DISTURBED


@pytest.mark.parametrize(
    "text",
    [
        "Race while writing batch 4",
        "File s3a://lake/out/_spark_metadata/7.compact already exists",
        "Multiple streaming queries are concurrently using file:/data/out/_spark_metadata.",
        "[DELTA_CONCURRENT_APPEND] Files were added",
        "No such file: query/rows/1-abc/state/0/1/5.delta",
    ],
)
def test_error_of_a_lost_race_lets_the_query_start_again(text: str) -> None:
    assert DISTURBED.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "Multiple streaming queries are concurrently using file:/data/checkpoints/offsets.",
        "[DIVIDE_BY_ZERO] Division by zero",
        "File s3a://lake/out/part-0 already exists",
    ],
)
def test_other_errors_fail_the_query(text: str) -> None:
    assert not DISTURBED.search(text)
