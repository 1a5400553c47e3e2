"""What the heartbeat shows of a query, by reports that Spark 4.2 made. Runs anywhere."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_checkpoint_provider.coordinator.liveness import QueryProgress
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.spark.queries.progress import progress

FILES = {"description": "FileStreamSource[file:/data/orders]", "endOffset": {"logOffset": 3}, "latestOffset": None}
RATE = {"description": "RateStreamV2[rowsPerSecond=100]", "endOffset": 4, "latestOffset": 9}
RAN: dict[str, Any] = {
    "timestamp": "2026-11-23T07:31:16.900Z", "batchId": 3, "batchDuration": 790, "numInputRows": 30,
    "inputRowsPerSecond": 41.6, "processedRowsPerSecond": 38.0,
    "durationMs": {"addBatch": 532, "commitOffsets": 41, "latestOffset": 61, "triggerExecution": 790, "walCommit": 88},
    "stateOperators": [
        {"operatorName": "dedupe", "numRowsTotal": 30, "memoryUsedBytes": 8880},
        {"operatorName": "stateStoreSave", "numRowsTotal": 12, "memoryUsedBytes": 4000},
    ],
    "sources": [FILES],
}  # fmt: skip
QUIET = RAN | {
    "timestamp": "2026-11-23T07:31:27.700Z", "batchId": 4, "batchDuration": 15, "numInputRows": 0,
    "inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0,
    "durationMs": {"latestOffset": 14, "triggerExecution": 15},
}  # fmt: skip
STARTED = QueryProgress(uid="orders", batch=2)
AFTER = QueryProgress(
    uid="orders",
    batch=3,
    ended_at="2026-11-23T07:31:17.690Z",
    input_rate=41.6,
    processed_rate=38.0,
    state_rows=42,
    state_bytes=12880,
)


def kafka(read: dict[str, int], latest: dict[str, int]) -> dict[str, Any]:
    return {
        "description": "KafkaV2[Subscribe[orders]]",
        "endOffset": {"orders": read},
        "latestOffset": {"orders": latest},
    }


def test_batch_that_ran_is_shown_with_its_end_and_its_state() -> None:
    assert progress(RAN, STARTED) == AFTER


def test_quiet_query_shows_when_its_batch_ended_and_that_nothing_comes() -> None:
    quiet = progress(QUIET, AFTER)
    assert (quiet.batch, quiet.ended_at, quiet.input_rate, quiet.processed_rate) == (3, AFTER.ended_at, 0.0, 0.0)
    assert quiet.state_rows == 42


def test_query_that_is_quiet_since_its_start_shows_the_batch_of_an_earlier_attempt() -> None:
    quiet = progress(QUIET | {"stateOperators": []}, QueryProgress(uid="orders", batch=3))
    assert (quiet.batch, quiet.ended_at, quiet.state_rows) == (3, "", None)


def test_quiet_query_whose_last_report_was_missed_shows_its_batch_without_an_end() -> None:
    assert (progress(QUIET, STARTED).batch, progress(QUIET, STARTED).ended_at) == (3, "")


@pytest.mark.parametrize(
    ("sources", "behind"),
    [
        pytest.param([FILES], None, id="a file source does not say"),
        pytest.param([RATE], None, id="offsets that are no rows"),
        pytest.param([kafka({"0": 90, "1": 100}, {"0": 100, "1": 105})], 15, id="Kafka"),
        pytest.param([kafka({"0": 90}, {"0": 100, "1": 7})], 17, id="a new partition"),
        pytest.param([kafka({"0": 90}, {"0": 80})], 0, id="a topic that was made anew"),
        pytest.param([kafka({"0": 90}, {"0": 100}), kafka({"0": 0}, {"0": 3})], 13, id="two topics"),
        pytest.param([kafka({"0": 90}, {"0": 100}), FILES], None, id="one of two does not say"),
        pytest.param([kafka({"0": 90}, {"0": 100}) | {"latestOffset": None}], None, id="Kafka does not say"),
    ],
)
def test_rows_behind_are_those_that_every_source_counts(sources: list[dict[str, Any]], behind: int | None) -> None:
    assert progress(RAN | {"sources": sources}, STARTED).rows_behind == behind


def test_numbers_that_spark_does_not_know_leave_the_heartbeat_readable() -> None:
    operators = [{"numRowsTotal": -1, "memoryUsedBytes": 8880}, {"numRowsTotal": 30, "memoryUsedBytes": 10}]
    rates = {"inputRowsPerSecond": float("nan"), "processedRowsPerSecond": float("inf")}
    shown = progress(RAN | rates | {"stateOperators": operators}, STARTED)
    assert (shown.input_rate, shown.processed_rate, shown.state_rows, shown.state_bytes) == (None, None, None, 8890)
    assert canonical(shown.to_json())
    without = {name: value for name, value in RAN.items() if name not in rates}  # as Spark writes such a rate
    assert progress(without, STARTED).input_rate is None
