"""The sensor that fails when a job has saved nothing for too long. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.coordinator.liveness import Beat, beat_keys, read_beat
from airflow_checkpoint_provider.errors import NotHealthy
from airflow_checkpoint_provider.operators._base import failing_for_good
from airflow_checkpoint_provider.operators._job import JobOperator
from airflow_checkpoint_provider.operators.mixin import CheckpointedJobMixin
from airflow_checkpoint_provider.protocol.config import seconds
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.text import health


class CheckpointHealthSensor(JobOperator, BaseSensorOperator):
    """Fails if a job has saved nothing for too long, and succeeds at once if it is healthy.

    Give it a DAG of its own, every ten minutes: nothing in the job's own DAG ends when the job goes stale. It looks once and does not wait.
    An unhealthy job fails it without retry (CKP247). If the storage or the connection cannot be read, it fails, and ``retries=`` apply.

    The work is saved up to the newest completed checkpoint or savepoint, the end of a run that finished, or a restore. Before the first
    of them it counts from the first launch. Checkpoints of drivers that die again and again, and get no further, do not count. So a
    job that is suspended, or that nobody starts, becomes unhealthy, too. A history of one run (``run=``) is healthy once the run has
    finished. The age is measured by the clocks of two hosts.

    :param job: the task of the same DAG that submits the job, or a job id: the history that its runs share.
    :param run: with a job id: the run, if each run has its own history. (templated)
    :param item: of a mapped job: the item whose history is meant. A task in the mapped group of the job takes its own. (templated)
    :param max_age: how long ago the moment may be up to which the work is saved: seconds, a ``timedelta``, or text such as ``"30 min"``.
    :param unprotected: how much work a crash of the running driver may cost by its newest heartbeat, written in the same way. It is the
        gauge ``unprotected_seconds``. By default it is not looked at.
    :param checkpoint_conn_id: connection of type ``checkpoint_storage``; by default that of the job's operator.
    """

    def __init__(
        self,
        *,
        job: CheckpointedJobMixin | MappedOperator | str,
        max_age: str | float | timedelta,
        unprotected: str | float | timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(job=job, **kwargs)
        self.max_age = seconds(max_age, "max_age")
        self.unprotected = None if unprotected is None else seconds(unprotected, "unprotected")

    def poke(self, context: Any) -> bool:
        """Look once. Raise ``AirflowFailException`` if the job is not healthy, and the errors of connection and store."""
        with failing_for_good():
            coordinator = self.coordinator(context["ti"])
            state = coordinator.journal.catch_up()
            if state.n < 0:
                raise NotHealthy(self.why_unknown(coordinator.store, context["ti"]))
            keys = beat_keys(coordinator.keys, state) if state.running() else ()
            beats = [read_beat(coordinator.store, key) for key in keys]
            self._judge(state, next(filter(None, beats), None))
        return True

    def _judge(self, state: State, beat: Beat | None) -> None:
        """Log one line about a healthy job; raise ``NotHealthy`` for any other."""
        now = utc_now()
        found = health.problems(state, beat, now, self.max_age, self.unprotected)
        if found:
            raise NotHealthy(health.unhealthy(state, found))
        self.log.info("%s", health.healthy(state, beat, now))
