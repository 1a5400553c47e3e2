"""Flink's checkpoint metrics as gauges of Airflow's. Runs in Airflow (worker).

Each is sent as ``checkpoint.<name>`` with the job as a tag. Where Airflow keeps its legacy names, which backends without
tags need, also as ``checkpoint.<job>.<name>``. A metric that cannot be sent costs a line in the log, once.
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
EVERY = 10.0  # seconds between two times it is sent

log = logging.getLogger(__name__)


def gauges(state: State) -> dict[str, float]:
    """Those of Flink's that a journal can tell and that are numbers; -1 until there is something to tell."""
    counts = statistics.counts(state)
    restored = max((statistics.timestamp(one.at) for one in state.attempts if one.restore_point), default=-1)
    known = {
        "totalNumberOfCheckpoints": counts["total"],
        "numberOfInProgressCheckpoints": counts["in_progress"],
        "numberOfCompletedCheckpoints": counts["completed"],
        "numberOfFailedCheckpoints": counts["failed"],
        "lastCheckpointRestoreTimestamp": restored,
    }
    completed = (one for one in state.checkpoints if one.completed_at)
    newest = max(completed, key=lambda one: one.id, default=None)
    last = statistics.entry(newest) if newest else {}
    return known | {
        "lastCheckpointSize": last.get("checkpointed_size", -1),
        "lastCheckpointFullSize": last.get("state_size", -1),
        "lastCheckpointDuration": last.get("end_to_end_duration", -1),
        "lastCheckpointProcessedData": last.get("processed_data", -1),
        "lastCheckpointPersistedData": last.get("persisted_data", -1),
        "lastCompletedCheckpointId": last.get("id", -1),
        "lastCheckpointCompletedTimestamp": last.get("latest_ack_timestamp", -1),
    }


class Metrics:
    """Of one job, on behalf of one task."""

    def __init__(self, job: str, dag: str, task: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._job, self._clock = job, clock
        self._tags = {"job_id": job, "dag_id": dag, "task_id": task}
        self._sent: Mapping[str, float] = {}
        self._protected: float | None = None  # when a crash would have cost nothing
        self._reminded = -EVERY
        self._complained = False

    def tell(self, state: State) -> None:
        """All of them, if one has changed: an attempt has started, or a checkpoint was triggered or got its outcome."""
        found = gauges(state)
        if found != self._sent:
            self._sent = found
            self._send(found)

    def heard(self, beat: Beat) -> None:
        """Both its times are of the driver's clock; from now on our own goes on."""
        if beat.protected_since:
            self._protected = self._clock() - between(beat.protected_since, beat.at)

    def remind(self) -> None:
        """How much work a crash would cost now: every ten seconds, also while the store is silent."""
        now = self._clock()
        if self._protected is not None and now - self._reminded >= EVERY:
            self._reminded = now
            self._send({UNPROTECTED: now - self._protected})

    def nothing_runs(self) -> None:
        """What is over can lose nothing more."""
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
