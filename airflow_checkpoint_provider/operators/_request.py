"""Base of the tasks that ask a running job for a checkpoint, and wait for it. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.configuration import conf
from airflow.sdk.exceptions import AirflowException, AirflowTaskTimeout

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.errors import (
    Aborted,
    CheckpointError,
    JobSuspended,
    NotPending,
    NotRunning,
    Queued,
    RunFinished,
    StoreError,
)
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.connections import ConnectionUnreadable, NoConnection
from airflow_checkpoint_provider.hooks.history import COMPLETED, CheckpointHandle
from airflow_checkpoint_provider.hooks.references import reference
from airflow_checkpoint_provider.operators._base import failing_for_good, owner_of, request_of
from airflow_checkpoint_provider.operators._job import JobOperator
from airflow_checkpoint_provider.operators._waiting import EVERY
from airflow_checkpoint_provider.protocol.config import CheckpointConfig, seconds
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.text import messages
from airflow_checkpoint_provider.triggers.checkpoint import CheckpointTrigger, seconds_to

SLICE = 0.5  # seconds; Airflow ends a killed task for good after 5


class RequestOperator(JobOperator):
    """A retry gets the checkpoint of the try before it, unless that was aborted; a clear asks for another one.

    :param timeout: how long an acknowledgement may take from the barrier on, as in ``CheckpointConfig``; the job's own
        if None.
    :param start_timeout: how long a job is waited for that does not run yet.
    :param wait_for_completion: succeed when it is completed, not when it is asked for.
    :param deferrable: wait for completion in the triggerer.
    :param poke_interval: seconds between two looks.
    """

    def __init__(
        self,
        *,
        timeout: str | float | timedelta | None = None,
        start_timeout: str | float | timedelta = 0,
        wait_for_completion: bool = True,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poke_interval: float | timedelta = EVERY,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.timeout_s = None if timeout is None else CheckpointConfig(timeout=timeout).timeout_s
        self.start_timeout_s = seconds(start_timeout, "start_timeout")
        self.wait_for_completion, self.deferrable = wait_for_completion, deferrable
        self.poke_interval = seconds(poke_interval, "poke_interval")
        self._said = ""

    # -- what a subclass says --------------------------------------------------------------------------------------

    def _wanted(self, coordinator: Coordinator, request: Request) -> Request:
        """Return ``request`` with the kind of checkpoint that this task asks for."""
        raise NotImplementedError

    def _not_running(self, coordinator: Coordinator, ti: Any) -> int | None:
        """The id of what answers the request where nothing runs, also after ``start_timeout``, if there is one."""
        return None

    def _answer(self, coordinator: Coordinator, number: int) -> dict[str, Any]:
        """What the task returns."""
        return reference(coordinator.state, coordinator.pointer(number))

    def _completed(self, coordinator: Coordinator, number: int) -> None:
        """What else this task does, once it is completed."""

    # -- asking ------------------------------------------------------------------------------------------------------

    def execute(self, context: Any) -> dict[str, Any]:
        with failing_for_good():
            limit = self.execution_timeout or timedelta(seconds=conf.getfloat("sensors", "default_timeout"))
            deadline = (datetime.now(UTC) + limit).isoformat()
            coordinator, number = self._triggered(context["ti"], deadline)
            if not self.wait_for_completion:
                return self._answer(coordinator, number)
            pointer = coordinator.pointer(number)
            return self.execute_complete(context, {"checkpoint": str(pointer), "deadline": deadline})

    def _triggered(self, ti: Any, deadline: str) -> tuple[Coordinator, int]:
        """Ask until there is an answer: while the job may still start, and while the request waits in the job's queue."""
        started = time.monotonic()
        coordinator: Coordinator | None = None
        while True:
            try:
                coordinator = coordinator or self.coordinator(ti)
                return coordinator, self._trigger(coordinator, ti)
            except (NotRunning, JobSuspended, NoConnection) as error:
                if error.about.get("named") or (isinstance(error, RunFinished) and not self.cleared(ti)):
                    raise
                left = started + self.start_timeout_s - time.monotonic()
                if coordinator and coordinator.state.n < 0:
                    self._wait_for(NotRunning(self.why_unknown(coordinator.store, ti)), left)
                    continue
                answer = self._not_running(coordinator, ti) if coordinator and left <= 0 else None
                if coordinator and answer:
                    return coordinator, answer
                self._wait_for(_not_yet(error), left)
            except Queued as error:  # given up, it would be served all the same
                self._wait_for(error, seconds_to(deadline))

    def _trigger(self, coordinator: Coordinator, ti: Any) -> int:
        self.stop_if_killed()
        request = Request(
            token=request_of(ti, ti.max_tries),
            try_number=ti.try_number,
            timeout_s=self.timeout_s,
            origin="task",
            owner=owner_of(ti),
        )
        run = ti.run_id if self.job_task_id else None
        number = coordinator.trigger(self._wanted(coordinator, request), run=run)
        found = coordinator.state.checkpoint(number)
        if found:
            pointer = coordinator.pointer(number)
            self.log.info("%s", messages.triggered(coordinator.state, found, pointer))
        return number

    def _wait_for(self, error: Exception, left: float) -> None:
        if left <= 0:
            raise error
        if str(error) != self._said:
            self._said = str(error)
            self.log.info("%s; asking again, for %.0f s at most", error, left)
        self._sleep(left)

    def _sleep(self, at_most: float) -> None:
        """To the next look. A killed task has seconds left in which to take back what it asked for."""
        until = time.monotonic() + min(self.poke_interval, at_most)
        while not self._killed and (left := until - time.monotonic()) > 0:
            time.sleep(min(SLICE, left))

    # -- waiting -----------------------------------------------------------------------------------------------------

    def execute_complete(self, context: Any, event: dict[str, Any]) -> dict[str, Any]:
        """The journal decides, whatever woke this task up; the event only brings along which checkpoint, and until when."""
        ti = context["ti"]
        handle = self._handle(event, ti)
        with failing_for_good():
            try:
                self._wait(handle, event, ti)
            except AirflowTaskTimeout:  # Airflow's own may have cut a look short
                handle = self._handle(event, ti)
                if self._taken_back(handle, ti):
                    raise
            self.stop_if_killed()
            self._completed(handle.coordinator, handle.pointer.id)
            return self._answer(handle.coordinator, handle.pointer.id)

    def _handle(self, event: dict[str, Any], ti: Any) -> CheckpointHandle:
        return CheckpointStorageHook(self.checkpoint_conn_id).get_checkpoint(event["checkpoint"], owner_of(ti))

    def _wait(self, handle: CheckpointHandle, event: dict[str, Any], ti: Any) -> None:
        suspected = event.get("silent", False)
        while not self._reached(handle, suspected):
            suspected = False
            left = seconds_to(event["deadline"])
            if self._killed:
                self._taken_back(handle, ti)
                self.stop_if_killed()
            if left <= 0:  # deferred or not, it ends as Airflow ends a task whose time is over
                raise AirflowTaskTimeout(
                    f"{handle.pointer} was not completed in time; see execution_timeout= of this task"
                )
            if self.deferrable:
                self._defer(event)
            self._sleep(left)

    def _taken_back(self, handle: CheckpointHandle, ti: Any) -> bool:
        """What nobody waits for must not happen hours later. False if it was completed in that very instant."""
        try:
            handle.abort("nobody waits for it any longer", f"by task {owner_of(ti)} of run {ti.run_id}")
        except Aborted:
            return True
        except NotPending:
            return False
        return True

    def _defer(self, event: dict[str, Any]) -> None:
        trigger = CheckpointTrigger(
            checkpoint=event["checkpoint"], checkpoint_conn_id=self.checkpoint_conn_id, awaited=COMPLETED,
            deadline=event["deadline"], poll_interval=self.poke_interval,
        )  # fmt: skip
        self.defer(trigger=trigger, method_name="execute_complete")

    def _reached(self, handle: CheckpointHandle, suspected: bool) -> bool:
        try:
            return handle.settled(COMPLETED, suspected)
        except Aborted as error:  # a retry of this task asks for another one
            raise AirflowException(str(error)) from error
        except (StoreError, ConnectionUnreadable) as error:
            if error.permanent:
                raise
            self.log.warning("%s; looking again in %.0f s", error, self.poke_interval)
            return False


def _not_yet(error: CheckpointError) -> CheckpointError:
    """What looks final and may change: a job without connection has its folder from its first launch on."""
    if not isinstance(error, NoConnection | RunFinished):
        return error
    return NotRunning(f"the job does not run yet, as far as this task can see: {error.message}")
