"""Flink's checkpoint metrics, and those of streaming queries, as gauges of Airflow. Runs in Airflow (worker, triggerer).

Each gauge is sent as ``checkpoint.<name>`` with the job as a tag. If Airflow keeps its legacy names, which backends without
tags need, it is also sent as ``checkpoint.<job>.<name>``. Those of a mapped item, and of a streaming query, have it as a tag, and as a
level of the legacy name. If gauges cannot be sent, the log says so once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from airflow_checkpoint_provider.coordinator import statistics
from airflow_checkpoint_provider.coordinator.liveness import Beat, QueryProgress
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.text.units import between

UNPROTECTED = "unprotected_seconds"
EVERY = 10.0  # seconds between two values of ``unprotected_seconds``

log = logging.getLogger(__name__)


def gauges(state: State) -> dict[str, float]:
    """Return the gauges that follow from the journal; -1 means unknown."""
    counts = statistics.counts(state)
    restored = [statistics.timestamp(attempt.at) for attempt in state.attempts if attempt.restore_point]
    last = statistics.latest(checkpoint for checkpoint in state.checkpoints if checkpoint.completed_at) or {}
    return {
        "totalNumberOfCheckpoints": counts["total"],
        "numberOfInProgressCheckpoints": counts["in_progress"],
        "numberOfCompletedCheckpoints": counts["completed"],
        "numberOfFailedCheckpoints": counts["failed"],
        "lastCheckpointRestoreTimestamp": max(restored, default=-1),
        "lastCheckpointSize": last.get("checkpointed_size", -1),
        "lastCheckpointFullSize": last.get("state_size", -1),
        "lastCheckpointMetadataSize": last.get("metadata_size", -1),
        "lastCheckpointDuration": last.get("end_to_end_duration", -1),
        "lastCompletedCheckpointId": last.get("id", -1),
        "lastCheckpointCompletedTimestamp": last.get("latest_ack_timestamp", -1),
    }


def query_gauges(query: QueryProgress, at: str) -> dict[str, float]:
    """Return the gauges of a streaming query at a heartbeat; -1 means unknown."""
    since = between(query.ended_at, at) if query.ended_at else None
    values = {
        "queryInputRowsPerSecond": query.input_rate,
        "queryProcessedRowsPerSecond": query.processed_rate,
        "queryRowsBehind": query.rows_behind,
        "queryStateRows": query.state_rows,
        "queryStateBytes": query.state_bytes,
        "querySecondsSinceBatch": since,
    }
    return {name: -1 if value is None else value for name, value in values.items()}


class Gauges:
    """The gauges of one job, or of one item of it, sent by one task."""

    def __init__(
        self, job: str, dag: str, task: str, clock: Callable[[], float] = time.monotonic, item: str | None = None
    ) -> None:
        self._levels, self._clock = [job] if item is None else [job, item], clock
        self._tags = {"job_id": job, "dag_id": dag, "task_id": task} | ({} if item is None else {"item": item})
        self._sent: Mapping[str, float] = {}
        self._queries: frozenset[str] = frozenset()  # that ran at the newest heartbeat
        self._protected_until: float | None = None  # on our clock: a crash would lose the work since then
        self._unprotected_sent = -EVERY
        self._failure_logged = False

    def update(self, state: State) -> None:
        """Send all gauges of the journal if one of them has changed."""
        values = gauges(state)
        if values != self._sent:
            self._sent = values
            self._send(values)

    def update_protection(self, beat: Beat) -> None:
        """Read from a heartbeat how much work a crash would cost. Both of its times are from the driver's clock."""
        if beat.protected_since:
            self._protected_until = self._clock() - between(beat.protected_since, beat.at)

    def update_queries(self, beat: Beat) -> None:
        """Send the gauges of the queries that run, and -1 once for those of each query that ran before."""
        over = self._queries - {query.uid for query in beat.queries}
        self._queries = frozenset(query.uid for query in beat.queries)
        for query in (*beat.queries, *(QueryProgress(uid=uid, batch=-1) for uid in sorted(over))):
            self._send(query_gauges(query, beat.at), query.uid)

    def send_unprotected(self) -> None:
        """Send every ten seconds how much work a crash would cost now, also while the store does not answer."""
        now = self._clock()
        if self._protected_until is not None and now - self._unprotected_sent >= EVERY:
            self._unprotected_sent = now
            self._send({UNPROTECTED: now - self._protected_until})

    def reset(self) -> None:
        """Say once that no driver runs: no query runs, and no work can be lost."""
        self.update_queries(Beat())
        if self._protected_until is not None:
            self._protected_until = None
            self._send({UNPROTECTED: 0})

    def _send(self, values: Mapping[str, float], query: str = "") -> None:
        tags = {**self._tags, "query": query} if query else self._tags
        levels = [*self._levels, query] if query else self._levels
        try:
            from airflow_checkpoint_provider import _airflow

            for name, value in values.items():
                _airflow.gauge(name, value, tags, levels)
        except Exception as error:  # noqa: BLE001 - a backend may raise anything, and a task must not fail because of a metric
            if not self._failure_logged:
                log.warning("metrics cannot be sent: %s", error)
            self._failure_logged = True
