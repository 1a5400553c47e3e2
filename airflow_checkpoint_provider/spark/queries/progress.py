"""Spark's reports of the running queries, for the heartbeat. Runs in the Spark driver.

Spark reports each batch when it has ended. While a query has nothing to read, Spark reports that every ten seconds, under the number of the
next batch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow_checkpoint_provider.coordinator.journal import utc_text
from airflow_checkpoint_provider.coordinator.liveness import QueryProgress
from airflow_checkpoint_provider.spark.queries.running import RunningQuery

RAN = "addBatch"  # among the durations of a report: a batch has run
KAFKA = "Kafka"  # its offsets count rows: topic -> partition -> offset


def shown(queries: Mapping[str, RunningQuery], before: tuple[QueryProgress, ...]) -> tuple[QueryProgress, ...]:
    """Return the progress of each query that runs. For a query without a report from Spark, the progress from ``before`` stays."""
    known = {query.uid: query for query in before}
    return tuple(filter(None, (_shown(query, known.get(uid)) for uid, query in queries.items())))


def _shown(running: RunningQuery, before: QueryProgress | None) -> QueryProgress | None:
    before = before or QueryProgress(uid=running.uid, batch=running.located.position.begun)  # committed since the start
    try:
        if not running.runs():
            return None
        report = running.spark_query.lastProgress
        return progress(json.loads(report.json), before) if report else before
    except Exception:  # noqa: BLE001 - a JVM that is ending may raise anything; the watchdog handles its end
        return before


def progress(report: Mapping[str, Any], before: QueryProgress) -> QueryProgress:
    """Return the progress in Spark's report. If no batch ran, the size of the state and the end of the batch are those from ``before``."""
    ran, operators = RAN in report["durationMs"], report["stateOperators"]
    batch = report["batchId"] if ran else report["batchId"] - 1
    known_end = before.ended_at if batch == before.batch else ""
    return QueryProgress(
        uid=before.uid,
        batch=batch,
        ended_at=_end(report) if ran else known_end,
        input_rate=_known(report.get("inputRowsPerSecond")),
        processed_rate=_known(report.get("processedRowsPerSecond")),
        rows_behind=_behind(report["sources"]),
        state_rows=_total(operators, "numRowsTotal") if operators else before.state_rows,
        state_bytes=_total(operators, "memoryUsedBytes") if operators else before.state_bytes,
    )


def _end(report: Mapping[str, Any]) -> str:
    began = datetime.fromisoformat(report["timestamp"])
    return utc_text(began + timedelta(milliseconds=report["batchDuration"]))


def _known(number: float | None) -> float | None:
    """Return None for a rate that Spark does not know: nobody could read a heartbeat that holds it."""
    return number if number is not None and 0 <= number < math.inf else None


def _total(operators: Sequence[Mapping[str, Any]], name: str) -> int | None:
    return _sum([operator[name] for operator in operators])


def _sum(counts: Sequence[int | None]) -> int | None:
    """Return the sum; None if one of the counts is not known. Spark's state stores write -1 for such a count."""
    known = [count for count in counts if count is not None and count >= 0]
    return sum(known) if len(known) == len(counts) else None


def _behind(sources: Sequence[Mapping[str, Any]]) -> int | None:
    """Return how many rows the sources had beyond the batch when it was planned; None unless each of them counts its rows."""
    return _sum([_rows_behind(source) for source in sources])


def _rows_behind(source: Mapping[str, Any]) -> int | None:
    read, latest = source["endOffset"], source["latestOffset"]
    if not source["description"].startswith(KAFKA) or not read or not latest:
        return None
    behind: list[int] = [
        max(0, offset - read.get(topic, {}).get(partition, 0))
        for topic, partitions in latest.items()
        for partition, offset in partitions.items()
    ]
    return sum(behind)
