"""Waits for entries of a journal: in the worker, between reschedules, or in the triggerer. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from airflow.configuration import conf
from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowSensorTimeout

from airflow_checkpoint_provider.coordinator.outcomes import (
    Aborted,
    Acknowledged,
    Awaited,
    Committing,
    Completed,
    Unconfirmed,
    Unreadable,
)
from airflow_checkpoint_provider.coordinator.request import CheckpointRequest
from airflow_checkpoint_provider.errors import CheckpointError, InvalidConfig, StoreError
from airflow_checkpoint_provider.hooks.connections import ConnectionUnreadable, NoConnection
from airflow_checkpoint_provider.hooks.history import aborted, reference_of
from airflow_checkpoint_provider.operators._base import OfCheckpoint, failing_for_good
from airflow_checkpoint_provider.operators._link import LinkedTask
from airflow_checkpoint_provider.text.messages import acknowledged, checkpoint_line
from airflow_checkpoint_provider.triggers.checkpoint import CheckpointTrigger, JournalTrigger, seconds_to

EVERY = 5.0  # seconds between two polls


class Wait(Protocol):
    """The condition of a sensor. The object is kept between polls, so that a poll costs one or two requests."""

    def poll(self, suspected: bool) -> dict[str, Any] | None:
        """Poll once. Return the task's XCom if the condition is met, else None. ``suspected``: the triggerer found the driver
        silent."""

    def trigger(self, **arguments: Any) -> JournalTrigger:
        """Return the trigger that polls the same condition in the triggerer."""

    def missed(self) -> str:
        """Return the unmet condition as text, e.g. "the checkpoint was not completed"."""


class JournalSensor(LinkedTask, BaseSensorOperator):
    """Base of the tasks that poll a journal. If it cannot be read, they continue until ``timeout``."""

    checkpoint_conn_id: str

    def __init__(
        self,
        *,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poke_interval: timedelta | float = EVERY,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.deferrable = deferrable
        self._wait: Wait | None = None
        self._suspected = False

    def _new_wait(self, context: Any) -> Wait:
        raise NotImplementedError

    def wait(self, context: Any) -> Wait:
        """Return the condition of this task."""
        if self._wait is None:
            self._wait = self._new_wait(context)
        return self._wait

    def execute(self, context: Any) -> Any:
        if not self.deferrable:
            try:
                return super().execute(context)
            except AirflowSensorTimeout as error:  # Airflow's message does not name the condition
                raise self._timeout() from error
        deadline = datetime.now(UTC) + timedelta(seconds=self.timeout)
        # Through the parent's resume_execution, which honours soft_fail and never_fail.
        return self.resume_execution("execute_complete", {"event": {"deadline": deadline.isoformat()}}, context)

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        """Read the journal, whatever resumed this task. The event holds only the deadline and a suspicion."""
        self._suspected = event.get("silent", False)
        found = self.poke(context)
        while not found and self._wait is None and seconds_to(event["deadline"]) > 0:
            # The storage does not answer, or the job has none yet. A trigger needs the condition, and it is not known before that.
            time.sleep(min(self.poke_interval, seconds_to(event["deadline"])))
            found = self.poke(context)
        if found:
            return found.xcom_value
        if seconds_to(event["deadline"]) <= 0:
            raise self._timeout()
        with failing_for_good():
            trigger = self.wait(context).trigger(
                checkpoint_conn_id=self.checkpoint_conn_id,
                deadline=event["deadline"],
                poll_interval=self.poke_interval,
            )
        return self.defer(trigger=trigger, method_name="execute_complete")

    def poke(self, context: Any) -> PokeReturnValue:
        with failing_for_good():
            try:
                # Each poke of mode="reschedule" is a new process, which has not seen the heartbeat before
                found = self.wait(context).poll(self._suspected or self.reschedule)
            except NoConnection as error:  # the first launch of a job without a connection creates its folder
                if error.about.get("named"):
                    raise
                return self._poke_again(error)
            except (StoreError, ConnectionUnreadable) as error:
                if error.permanent:
                    raise
                return self._poke_again(error)
        return PokeReturnValue(is_done=found is not None, xcom_value=found)

    def _poke_again(self, error: CheckpointError) -> PokeReturnValue:
        self.log.warning("%s; looking again in %.0f s", error, self.poke_interval)
        return PokeReturnValue(is_done=False)

    def _timeout(self) -> AirflowSensorTimeout:
        missed = self._wait.missed() if self._wait else "the checkpoint storage could not be read"
        return AirflowSensorTimeout(f"{missed} in time; see timeout= of this task")


class CheckpointWait:
    """Waits until one checkpoint is ``awaited``: acknowledged or completed. Raises ``Aborted`` if it was aborted.

    If its driver is lost, the task aborts the checkpoint, or completes it if all of it is acknowledged.
    """

    def __init__(self, checkpoint: Any, request: CheckpointRequest, awaited: Awaited, log: Any) -> None:
        self._checkpoint, self._request, self._awaited, self._log = checkpoint, request, awaited, log

    def poll(self, suspected: bool) -> dict[str, Any] | None:
        outcome = self._request.resolve(suspected=suspected)
        if isinstance(outcome, Unreadable):
            raise outcome.error
        if isinstance(outcome, Aborted):
            raise aborted(self._request.state, outcome.checkpoint)
        if isinstance(outcome, Committing) and not outcome.checkpoint.request.confirm_commits:
            raise InvalidConfig(
                f"chk-{outcome.checkpoint.id}: its request did not ask the driver to confirm commits, so this task would wait"
                " for ever. Write confirm_commits=True at the TriggerCheckpointOperator, or wait_for_commit=False here"
            )
        if isinstance(outcome, Acknowledged):
            self._log.info("%s", acknowledged(self._request.state, outcome.checkpoint))
        elif isinstance(outcome, Completed):
            self._log.info("%s", checkpoint_line(outcome.checkpoint))
        elif isinstance(outcome, Unconfirmed):
            self._log.info("%s", checkpoint_line(outcome.checkpoint))
            self._log.info("Its commits are not confirmed: %s. A restore notifies the participants.", outcome.why)
        return reference_of(self._request) if outcome.over else None

    def trigger(self, **arguments: Any) -> CheckpointTrigger:
        return CheckpointTrigger(checkpoint=self._checkpoint, awaited=self._awaited, **arguments)

    def missed(self) -> str:
        return f"the checkpoint was not {self._awaited.value}"


class CheckpointSensor(OfCheckpoint, JournalSensor):
    """Base of the tasks that wait for one checkpoint. If it was aborted, they fail at once and without retry.

    If its driver is lost, they abort it, or complete it if all of it is acknowledged.
    """

    def _new_wait(self, context: Any) -> Wait:
        return CheckpointWait(self.checkpoint, self._request(context["ti"]), self.awaited, self.log)
