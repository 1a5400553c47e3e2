"""A task that asks a running job for a checkpoint. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.configuration import conf
from airflow.sdk.exceptions import AirflowException, AirflowSensorTimeout

from airflow_checkpoint_provider._failing import failing_for_good
from airflow_checkpoint_provider.checkpoint import texts
from airflow_checkpoint_provider.checkpoint.config import CheckpointConfig, seconds
from airflow_checkpoint_provider.checkpoint.coordinator import Coordinator
from airflow_checkpoint_provider.checkpoint.errors import (
    Aborted,
    Busy,
    CheckpointError,
    NotRunning,
    NotSupportedYet,
    RunFinished,
    StoreError,
)
from airflow_checkpoint_provider.checkpoint.names import Pointer
from airflow_checkpoint_provider.hooks.connections import ConnectionUnreadable, NoConnection
from airflow_checkpoint_provider.hooks.watched import COMPLETED, Watched, reference
from airflow_checkpoint_provider.operators.of_job import OfJob
from airflow_checkpoint_provider.sensors.checkpoint import EVERY
from airflow_checkpoint_provider.triggers.checkpoint import CheckpointTrigger


class TriggerCheckpointOperator(OfJob):
    """Asks a running job for a checkpoint, which its driver takes at its next barrier; returns where that will be.

    The XCom is ``{"job", "scope", "id", "pointer"}``. A retry gets the checkpoint of the try before it, unless that was
    aborted; a clear asks for another one.

    :param job: the ``CheckpointedSparkSubmitOperator`` of the same DAG (its job id, scope and connection count; this makes
        no edge), or a job id: the history that all runs of that job share.
    :param kind: "checkpoint".
    :param gated: it is not completed before a ``FinalizeCheckpointOperator`` does so.
    :param timeout: how long an acknowledgement may take from the barrier on, as in ``CheckpointConfig``; the job's own
        if None.
    :param start_timeout: how long a job is waited for that does not run yet.
    :param wait_for_completion: succeed when it is completed, not when it is asked for.
    :param deferrable: wait for completion in the triggerer.
    :param poke_interval: seconds between two looks.
    :param checkpoint_conn_id: connection of type ``checkpoint_storage``; by default that of the job's operator. Missing:
        ``$AIRFLOW_HOME/checkpoints``, if it holds the job.
    """

    def __init__(
        self,
        *,
        kind: str = "checkpoint",
        gated: bool = False,
        timeout: str | float | timedelta | None = None,
        start_timeout: str | float | timedelta = 0,
        wait_for_completion: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poke_interval: float | timedelta = EVERY,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if kind != "checkpoint":
            raise NotSupportedYet(f'kind={kind!r}: this version only has "checkpoint"')
        self.kind, self.gated = kind, gated
        self.timeout_s = None if timeout is None else CheckpointConfig(timeout=timeout).timeout_s
        self.start_timeout_s = seconds(start_timeout, "start_timeout")
        self.wait_for_completion, self.deferrable = wait_for_completion, deferrable
        self.poke_interval = seconds(poke_interval, "poke_interval")
        self._killed, self._said = False, ""

    # -- asking ------------------------------------------------------------------------------------------------------

    def execute(self, context: Any) -> dict[str, Any]:
        with failing_for_good():
            checkpoint = self._triggered(context)
            if not self.wait_for_completion:
                return checkpoint
            limit = self.execution_timeout or timedelta(seconds=conf.getfloat("sensors", "default_timeout"))
            deadline = (datetime.now(UTC) + limit).isoformat()
            return self.execute_complete(context, {"checkpoint": checkpoint, "deadline": deadline})

    def _triggered(self, context: Any) -> dict[str, Any]:
        """Ask until there is an answer: while the job may still start, and while another checkpoint is in the way."""
        ti, started = context["ti"], time.monotonic()
        coordinator: Coordinator | None = None
        while True:
            try:
                coordinator = coordinator or self.coordinator(ti)
                return self._trigger(coordinator, ti)
            except (NotRunning, NoConnection) as error:
                cleared = ti.max_tries > self.retries  # perhaps with the job, so that this starts again
                if isinstance(error, RunFinished) and not cleared:
                    raise
                self._wait_for(_not_yet(error), started + self.start_timeout_s)
            except Busy as error:
                self._wait_for(error, started + self._timeout(coordinator))

    def _trigger(self, coordinator: Coordinator, ti: Any) -> dict[str, Any]:
        map_index = ti.map_index if ti.map_index is not None else -1
        number = coordinator.trigger(
            texts.request(ti.dag_id, ti.run_id, ti.task_id, map_index, ti.max_tries),
            try_number=ti.try_number, timeout_s=self.timeout_s, origin="task", gated=self.gated,
            run=ti.run_id if self.job_task_id else None,
        )  # fmt: skip
        found = coordinator.state.checkpoint(number)
        if found:
            self.log.info("%s", texts.triggered(coordinator.state, found))
        return reference(coordinator.state, Pointer(coordinator.store.uri, coordinator.keys.prefix, number))

    def _timeout(self, coordinator: Coordinator | None) -> float:
        """Seconds for which the checkpoint that is in the way may be."""
        running = coordinator.state.running() if coordinator else None
        own = running.checkpointing.get("timeout_s") if running else None
        return self.timeout_s or own or CheckpointConfig().timeout_s

    def _wait_for(self, error: Exception, until: float) -> None:
        left = until - time.monotonic()
        if left <= 0:
            raise error
        if str(error) != self._said:
            self._said = str(error)
            self.log.info("%s; asking again, for %.0f s at most", error, left)
        self._sleep(left)

    def _sleep(self, at_most: float) -> None:
        time.sleep(max(0.0, min(self.poke_interval, at_most)))
        if self._killed:  # Airflow let this go on; it must not ask for anything any more
            raise AirflowException("this task was killed while it waited")

    def on_kill(self) -> None:
        self._killed = True

    # -- waiting -----------------------------------------------------------------------------------------------------

    def execute_complete(self, context: Any, event: dict[str, Any]) -> dict[str, Any]:
        """The journal decides, whatever woke this task up; the event only brings along which checkpoint, and until when."""
        ti = context["ti"]
        watched = Watched(event["checkpoint"], self.checkpoint_conn_id, f"{ti.dag_id}.{ti.task_id}")
        with failing_for_good():
            while not self._completed(watched):
                left = (datetime.fromisoformat(event["deadline"]) - datetime.now(UTC)).total_seconds()
                if left <= 0:
                    said = f"{watched.pointer} was not completed in time; see execution_timeout= of this task"
                    raise AirflowSensorTimeout(said)
                if self.deferrable:
                    self._defer(event)
                self._sleep(left)
        return watched.reference

    def _defer(self, event: dict[str, Any]) -> None:
        trigger = CheckpointTrigger(
            checkpoint=event["checkpoint"], checkpoint_conn_id=self.checkpoint_conn_id, awaited=COMPLETED,
            deadline=event["deadline"], poll_interval=self.poke_interval,
        )  # fmt: skip
        self.defer(trigger=trigger, method_name="execute_complete")

    def _completed(self, watched: Watched) -> bool:
        try:
            return watched.reached(COMPLETED)
        except Aborted as error:  # a retry of this task asks for another one
            raise AirflowException(str(error)) from error
        except (StoreError, ConnectionUnreadable) as error:
            if error.permanent:
                raise
            self.log.warning("%s; looking again in %.0f s", error, self.poke_interval)
            return False


def _not_yet(error: CheckpointError) -> NotRunning:
    """What looks final and may change: a job without connection has its folder from its first launch on."""
    if not isinstance(error, NoConnection | RunFinished):
        assert isinstance(error, NotRunning)
        return error
    return NotRunning(f"the job does not run yet, as far as this task can see: {error.message}")
