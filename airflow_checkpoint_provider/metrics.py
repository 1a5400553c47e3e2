"""Flink's checkpoint metrics as Airflow gauges. Runs in Airflow (worker).

Each gauge is sent as ``checkpoint.<name>`` with the job as a tag. Where Airflow keeps its legacy names, which backends without
tags need, it is also sent as ``checkpoint.<job>.<name>``. If gauges cannot be sent, the log says so once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from airflow_checkpoint_provider.coordinator import statistics
from airflow_checkpoint_provider.coordinator.liveness import Beat
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.text.units import between

UNPROTECTED = "unprotected_seconds"
EVERY = 10.0  # seconds between two values of it

log = logging.getLogger(__name__)


def gauges(state: State) -> dict[str, float]:
    """Return the gauges that follow from the journal; -1 is unknown."""
    counts = statistics.counts(state)
    restored = [statistics.timestamp(attempt.at) for attempt in state.attempts if attempt.restore_point]
    newest = state.checkpoint(state.newest_completed)
    last = statistics.entry(newest) if newest else {}
    return {
        "totalNumberOfCheckpoints": counts["total"],
        "numberOfInProgressCheckpoints": counts["in_progress"],
        "numberOfCompletedCheckpoints": counts["completed"],
        "numberOfFailedCheckpoints": counts["failed"],
        "lastCheckpointRestoreTimestamp": max(restored, default=-1),
        "lastCheckpointSize": last.get("checkpointed_size", -1),
        "lastCheckpointFullSize": last.get("state_size", -1),
        "lastCheckpointDuration": last.get("end_to_end_duration", -1),
        "lastCompletedCheckpointId": last.get("id", -1),
        "lastCheckpointCompletedTimestamp": last.get("latest_ack_timestamp", -1),
    }


class Metrics:
    """The gauges of one job, sent by one task."""

    def __init__(self, job: str, dag: str, task: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._job, self._clock = job, clock
        self._tags = {"job_id": job, "dag_id": dag, "task_id": task}
        self._sent: Mapping[str, float] = {}
        self._protected: float | None = None  # the time of our clock up to which no work would be lost
        self._reminded = -EVERY
        self._complained = False

    def tell(self, state: State) -> None:
        """Send all gauges of the journal if one has changed."""
        values = gauges(state)
        if values != self._sent:
            self._sent = values
            self._send(values)

    def heard(self, beat: Beat) -> None:
        """Take from a heartbeat how much work a crash would cost. Both its times are of the driver's clock."""
        if beat.protected_since:
            self._protected = self._clock() - between(beat.protected_since, beat.at)

    def remind(self) -> None:
        """Send every ten seconds how much work a crash would cost now, also while the store does not answer."""
        now = self._clock()
        if self._protected is not None and now - self._reminded >= EVERY:
            self._reminded = now
            self._send({UNPROTECTED: now - self._protected})

    def nothing_runs(self) -> None:
        """Send once that no work can be lost any more."""
        if self._protected is not None:
            self._protected = None
            self._send({UNPROTECTED: 0})

    def _send(self, values: Mapping[str, float]) -> None:
        try:
            from airflow_checkpoint_provider import _airflow

            for name, value in values.items():
                _airflow.gauge(name, value, self._tags, self._job)
        except Exception as error:  # noqa: BLE001 - whatever a backend raises: no metric is worth a task
            if not self._complained:
                log.warning("metrics cannot be sent: %s", error)
            self._complained = True
