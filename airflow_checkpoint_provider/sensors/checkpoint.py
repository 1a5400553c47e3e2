"""Waiting for a journal: in a worker, between reschedules, or in the triggerer. Runs in Airflow (worker)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from airflow.configuration import conf
from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowSensorTimeout

from airflow_checkpoint_provider._failing import failing_for_good
from airflow_checkpoint_provider.errors import CheckpointError, StoreError
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.connections import ConnectionUnreadable, NoConnection
from airflow_checkpoint_provider.hooks.watched import ACKNOWLEDGED, Watched
from airflow_checkpoint_provider.protocol.state import PENDING, Checkpoint
from airflow_checkpoint_provider.text.messages import acknowledged, checkpoint_line
from airflow_checkpoint_provider.triggers.checkpoint import CheckpointTrigger, LookingTrigger, seconds_to

EVERY = 5.0  # seconds between two looks


class JournalSensor(BaseSensorOperator):
    """Base of the tasks that wait for what a journal says. What cannot be read is waited for until the ``timeout``."""

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

    def execute(self, context: Any) -> Any:
        if not self.deferrable:
            try:
                return super().execute(context)
            except AirflowSensorTimeout as error:  # which says neither of what nor how much of it
                raise AirflowSensorTimeout(f"{self._missed()} in time; see timeout= of this task") from error
        deadline = datetime.now(UTC) + timedelta(seconds=self.timeout)
        # As a resumed one: there the parent does what soft_fail and never_fail say.
        return self.resume_execution("execute_complete", {"event": {"deadline": deadline.isoformat()}}, context)

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        """The journal decides, whatever woke this task up; the event only brings the deadline along."""
        looked = self.poke(context)
        if looked:
            return looked.xcom_value
        if seconds_to(event["deadline"]) <= 0:
            raise AirflowSensorTimeout(f"{self._missed()} in time; see timeout= of this task")
        trigger = self._trigger(
            context,
            checkpoint_conn_id=self.checkpoint_conn_id, deadline=event["deadline"], poll_interval=self.poke_interval,
        )  # fmt: skip
        return self.defer(trigger=trigger, method_name="execute_complete")

    def poke(self, context: Any) -> PokeReturnValue:
        with failing_for_good():
            try:
                found = self._look(context)
            except NoConnection as error:  # a job without connection has its folder from its first launch on
                if error.about.get("named"):
                    raise
                return self._unseen(error)
            except (StoreError, ConnectionUnreadable) as error:
                if error.permanent:
                    raise
                return self._unseen(error)
        return PokeReturnValue(is_done=found is not None, xcom_value=found)

    def _unseen(self, error: CheckpointError) -> PokeReturnValue:
        self.log.warning("%s; looking again in %.0f s", error, self.poke_interval)
        return PokeReturnValue(is_done=False)

    def _look(self, context: Any) -> dict[str, Any] | None:
        """What this task returns, if that is already so."""
        raise NotImplementedError

    def _trigger(self, context: Any, **arguments: Any) -> LookingTrigger:
        raise NotImplementedError

    def _missed(self) -> str:
        """What did not happen."""
        raise NotImplementedError


class CheckpointSensor(JournalSensor):
    """Base of the tasks that wait for one checkpoint. On an aborted one they fail at once and without retry.

    One whose driver is lost they abort themselves, or complete it if all of it is acknowledged."""

    template_fields: Sequence[str] = ("checkpoint",)
    awaited: ClassVar[str]

    def __init__(
        self, *, checkpoint: Any, checkpoint_conn_id: str = CheckpointStorageHook.default_conn_name, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.checkpoint, self.checkpoint_conn_id = checkpoint, checkpoint_conn_id
        self._watched: Watched | None = None  # kept between pokes, so that one costs a GET or two
        self._suspected = False

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        self._suspected = event.get("silent", False)
        return super().execute_complete(context, event)

    def _look(self, context: Any) -> dict[str, Any] | None:
        if self._watched is None:
            ti = context["ti"]
            self._watched = Watched(self.checkpoint, self.checkpoint_conn_id, f"{ti.dag_id}.{ti.task_id}")
        if not self._watched.settled(self.awaited, self._suspected):
            return None
        self.log.info("%s", self._said(self._watched))
        return self._watched.reference

    def _trigger(self, context: Any, **arguments: Any) -> LookingTrigger:
        return CheckpointTrigger(checkpoint=self.checkpoint, awaited=self.awaited, **arguments)

    def _missed(self) -> str:
        return f"the checkpoint was not {self.awaited}"

    @staticmethod
    def _said(watched: Watched) -> str:
        state = watched.coordinator.state
        found = state.checkpoint(watched.pointer.id)
        assert isinstance(found, Checkpoint)
        return acknowledged(state, found) if found.status == PENDING else checkpoint_line(found)


class CheckpointAcknowledgedSensor(CheckpointSensor):
    """Waits until all applications have acknowledged a checkpoint: everything of it is written, and it can be sealed.

    :param checkpoint: the output of a task that triggered a checkpoint or a savepoint, or a pointer. (templated)
    :param checkpoint_conn_id: connection of type ``checkpoint_storage``; if there is one, its root must be the pointer's.
    :param deferrable: wait in the triggerer.
    :param poke_interval: seconds between two looks, each of which costs two requests to the storage; the driver's heartbeat is
        one more every ten seconds.
    """

    awaited = ACKNOWLEDGED
