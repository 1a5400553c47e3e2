"""Base of the tasks that request a checkpoint of a running job and wait for it. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.configuration import conf
from airflow.sdk.exceptions import AirflowException, AirflowTaskTimeout

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.outcomes import (
    Aborted,
    Awaited,
    Dropped,
    InQueue,
    Outcome,
    RequestRefused,
    Unreadable,
)
from airflow_checkpoint_provider.coordinator.request import CheckpointRequest
from airflow_checkpoint_provider.errors import (
    CheckpointError,
    JobSuspended,
    NotAttached,
    NotRunning,
    Queued,
    RequestWasDropped,
    RunFinished,
)
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.connections import NoConnection
from airflow_checkpoint_provider.hooks.history import aborted, reference_of
from airflow_checkpoint_provider.operators._base import failing_for_good, generation_of, owner_of, request_of
from airflow_checkpoint_provider.operators._job import JobOperator
from airflow_checkpoint_provider.operators._waiting import EVERY
from airflow_checkpoint_provider.protocol.config import CheckpointConfig, seconds
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.text import messages
from airflow_checkpoint_provider.triggers.checkpoint import CheckpointTrigger, Repetition, seconds_to

SLICE = 0.5  # seconds; Airflow ends a killed task for good after 5


class RequestOperator(JobOperator):
    """Base of the tasks that request a checkpoint. A retry finds the checkpoint of the try before it, unless that was aborted;
    a clear requests a new one.

    :param timeout: the longest time from the barrier to the acknowledgement: seconds, a ``timedelta``, or text such as
        "10 min"; by default the job's ``CheckpointConfig(timeout=)``.
    :param start_timeout: how long to wait for a job that does not run; written like ``timeout``. By default not at all, so the task
        fails if a driver is just being restarted. While a launched driver is starting, the task waits in any case, until its
        ``execution_timeout``.
    :param wait_for_completion: succeed when the checkpoint is completed, not when it is requested.
    :param deferrable: wait for completion in the triggerer.
    :param poke_interval: seconds between two polls.
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
        self._repetition = Repetition()

    # -- for subclasses --------------------------------------------------------------------------------------------

    def _specify(self, coordinator: Coordinator, request: Request) -> Request:
        """Return ``request`` with the kind of checkpoint that this task requests."""
        raise NotImplementedError

    def _not_running(self, request: CheckpointRequest, ti: Any, deadline: str) -> int | None:
        """Return the id of the checkpoint that answers the request if the job does not run, even after ``start_timeout``."""
        return None

    def _check_answer(self, request: CheckpointRequest) -> None:
        """Raise an error if the checkpoint of an earlier try is no answer any more."""

    def _finish(self, request: CheckpointRequest, ti: Any, deadline: str) -> None:
        """Do the rest of this task once the checkpoint is completed. ``deadline`` (ISO) ends its waits."""

    # -- requesting --------------------------------------------------------------------------------------------------

    def execute(self, context: Any) -> dict[str, Any]:
        with failing_for_good():
            limit = self.execution_timeout or timedelta(seconds=conf.getfloat("sensors", "default_timeout"))
            deadline = (datetime.now(UTC) + limit).isoformat()
            request = self._submit(context, deadline)
            self._check_answer(request)
            if not self.wait_for_completion:
                return reference_of(request)
            return self.execute_complete(context, {"checkpoint": pointed(request), "deadline": deadline})

    def _submit(self, context: Any, deadline: str) -> CheckpointRequest:
        """Submit the request again and again: while the job may still start, and while the request waits in the job's queue."""
        until, ti = time.monotonic() + self.start_timeout_s, context["ti"]
        token = request_of(ti, generation_of(context, self.retries).number)
        asked = Request(
            token=token, try_number=ti.try_number, timeout_s=self.timeout_s, origin="task", owner=owner_of(ti)
        )
        request = CheckpointRequest(
            lambda: self.coordinator(ti),
            lambda coordinator: self._specify(coordinator, asked),
            token,
            run=ti.run_id if self.job_task_id else None,
        )
        while (error := self._refusal(request)) is not None:
            if isinstance(error, Queued):  # the driver would still serve a request that this task gives up
                self._wait_for(error, seconds_to(deadline))
                continue
            self._raise_if_final(error, context)
            if isinstance(error, NotAttached) and (starting := request.starting()):
                until += self._wait_for_driver(starting, error, seconds_to(deadline))
                continue
            remaining = until - time.monotonic()
            if isinstance(error, NoConnection):
                self._wait_for(_not_yet(error), remaining)
            elif request.state.n < 0:
                self._wait_for(NotRunning(self.why_unknown(request.coordinator.store, ti)), remaining)
            elif remaining <= 0 and (number := self._not_running(request, ti, deadline)):
                request.number = number
                break
            else:
                self._wait_for(_not_yet(error), remaining)
        return request

    def _refusal(self, request: CheckpointRequest) -> CheckpointError | None:
        """Submit once. Return the error if there is no checkpoint yet; None if there is one."""
        self.stop_if_killed()
        try:
            outcome = request.submit()
        except NoConnection as error:
            return error
        if isinstance(outcome, InQueue) and not isinstance(seen := request.resolve(), Unreadable):
            outcome = seen  # a lost driver serves no queue
        if isinstance(outcome, Dropped):
            raise RequestWasDropped(f"the request was taken out of the queue: {outcome.why}", reason=outcome.why)
        if isinstance(outcome, InQueue):
            return Queued(
                f"{request.state.job}: the request waits in the job's queue, number {outcome.turn} of {outcome.length}"
            )
        if isinstance(outcome, RequestRefused):
            return outcome.error
        if found := request.state.checkpoint(request.number):
            self.log.info("%s", messages.triggered(request.state, found, request.pointer))
        return None

    def _raise_if_final(self, error: CheckpointError, context: Any) -> None:
        """Raise ``error`` if the request stays refused even after the job starts."""
        may_start = isinstance(error, NotRunning | JobSuspended | NoConnection)
        finished = isinstance(error, RunFinished) and not self.cleared(context)
        if not may_start or finished or error.about.get("named"):
            raise error

    def _wait_for(self, error: Exception, left: float) -> None:
        if left <= 0:
            raise error
        if self._repetition.due(str(error)):
            self.log.info("%s; requesting again for up to %.0f s", error, left)
        self._sleep(left)

    def _wait_for_driver(self, starting: str, error: Exception, left: float) -> float:
        """Wait until the next poll for a driver that is starting. Return the seconds, which ``start_timeout`` does not count."""
        if left <= 0:
            raise error
        if self._repetition.due(starting):
            self.log.info("%s; waiting for its driver", starting)
        began = time.monotonic()
        self._sleep(left)
        return time.monotonic() - began

    def _sleep(self, at_most: float) -> None:
        """Sleep until the next poll; less if the task is killed, which has seconds left to abort its checkpoint."""
        until = time.monotonic() + min(self.poke_interval, at_most)
        while not self._killed and (left := until - time.monotonic()) > 0:
            time.sleep(min(SLICE, left))

    # -- waiting -----------------------------------------------------------------------------------------------------

    def execute_complete(self, context: Any, event: dict[str, Any]) -> dict[str, Any]:
        """Read the journal, whatever resumed this task. The event holds the checkpoint and the deadline."""
        ti = context["ti"]
        request = self._request(event["checkpoint"], ti)
        with failing_for_good():
            try:
                self._wait(request, event, ti)
            except AirflowTaskTimeout:  # Airflow's own time-out may have interrupted a poll
                request = self._request(event["checkpoint"], ti)
                if self._abort_request(request, ti):
                    raise
            self.stop_if_killed()
            self._finish(request, ti, event["deadline"])
            return reference_of(request)

    def _request(self, checkpoint: object, ti: Any, awaited: Awaited = Awaited.COMPLETED) -> CheckpointRequest:
        return CheckpointStorageHook(self.checkpoint_conn_id).get_checkpoint(checkpoint, owner_of(ti), awaited)

    def _wait(self, request: CheckpointRequest, event: dict[str, Any], ti: Any) -> None:
        def show(outcome: Outcome) -> None:
            if self._killed:
                self._abort_request(request, ti)
                self.stop_if_killed()
            self._warn_if_unreadable(outcome)

        outcome = request.resolve(suspected=event.get("silent", False))
        left = seconds_to(event["deadline"])
        if not outcome.over and left > 0:
            show(outcome)
            if self.deferrable:
                self._defer(event)
            outcome = request.wait(time.monotonic() + left, self.poke_interval, on_outcome=show, sleep=self._sleep)
        if isinstance(outcome, Aborted):  # a retry of this task requests another checkpoint
            raise AirflowException(str(aborted(request.state, outcome.checkpoint)))
        if not outcome.over:  # deferred or not: the error that Airflow raises after execution_timeout
            raise AirflowTaskTimeout(
                f"{request.pointer} was not completed in time; see execution_timeout= of this task"
            )

    def _warn_if_unreadable(self, outcome: Outcome) -> None:
        if isinstance(outcome, Unreadable):
            self.log.warning("%s; looking again in %.0f s", outcome.error, self.poke_interval)

    def _abort_request(self, request: CheckpointRequest, ti: Any) -> bool:
        """Abort a checkpoint that no task waits for any longer. Return False if it has just been completed."""
        details = f"by task {owner_of(ti)} of run {ti.run_id}"
        return isinstance(request.abort("nobody waits for it any longer", details), Aborted)

    def _defer(self, event: dict[str, Any]) -> None:
        trigger = CheckpointTrigger(
            checkpoint=event["checkpoint"],
            checkpoint_conn_id=self.checkpoint_conn_id,
            awaited=Awaited.COMPLETED.value,
            deadline=event["deadline"],
            poll_interval=self.poke_interval,
        )
        self.defer(trigger=trigger, method_name="execute_complete")


def pointed(request: CheckpointRequest) -> dict[str, str]:
    """Return what names the checkpoint of a request for another request: its pointer in its history, also of a savepoint."""
    return {"pointer": str(request.pointer), "incarnation": request.state.incarnation}


def _not_yet(error: CheckpointError) -> CheckpointError:
    """Return the error to log while waiting. A missing connection is not final: the first launch creates the folder of such a job."""
    if not isinstance(error, NoConnection | RunFinished):
        return error
    return NotRunning(f"the job does not run yet, as far as this task can see: {error.message}")
