"""A task that frees its worker while its driver runs, and ends as if it had waited. It knows no Spark provider. Runs in Airflow (worker).

The resumed task is a new process. It finds its launch in the journal: the trigger's event only says why the task was woken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException

from airflow_checkpoint_provider.coordinator.heart import follower_heart
from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.coordinator.liveness import Liveness, driver_keys, read_beat
from airflow_checkpoint_provider.errors import CheckpointError, HistoryGone, Refused
from airflow_checkpoint_provider.operators import _earlier
from airflow_checkpoint_provider.operators._base import failing_for_good
from airflow_checkpoint_provider.operators._launch import DriverLaunch
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord
from airflow_checkpoint_provider.text import deferral
from airflow_checkpoint_provider.triggers.launch import GIVEN_UP, SILENT, LaunchTrigger

EVERY = 5.0  # seconds between two polls of the trigger
FIRST_ASK, SELDOM_ASK = (
    60.0,
    600.0,
)  # seconds without any sign of a driver, after which the cluster manager is asked; then twice that


class DeferrableLaunch(BaseOperator):
    """Base of the operators that launch a driver and may be deferred while it runs."""

    checkpoint_conn_id: str
    item: str | None
    _launch: DriverLaunch | None
    _was_killed: threading.Event

    # -- what an operator says ---------------------------------------------------------------------------------------

    def new_launch(self, context: Any) -> DriverLaunch:
        """Return the launch of this try, which is not planned yet."""
        raise NotImplementedError

    def end_followed(self, launch: DriverLaunch, attempt: AttemptRecord | None) -> dict[str, Any]:
        """Return the task's XCom for an attempt that has ended, None for one that is silent, or raise the error."""
        raise NotImplementedError

    def end_launch(self, launch: DriverLaunch, exit_code: int | None, failure: BaseException | None) -> dict[str, Any]:
        """Return the task's XCom for a driver that has ended with an exit code, or raise the error."""
        raise NotImplementedError

    def push_launch(self, ti: Any, launch: DriverLaunch, attempt: int | None) -> None:
        """Push the XCom of a launch whose driver runs."""
        raise NotImplementedError

    def ask_cluster(self, context: Any, launch: DriverLaunch) -> tuple[bool | None, str]:
        """Return whether the driver has ended well (None: it has not ended), and the cluster manager's word for it.

        Called if there is no sign of the driver in the journal. Any error means that the cluster manager cannot be asked.
        """
        raise NotImplementedError

    def application_in(self, context: Any, launch: DriverLaunch) -> tuple[str, str]:
        """Return a Spark connection, and YARN's id of the application, about which a trigger asks there; empty elsewhere."""
        raise NotImplementedError

    # -- deferral ----------------------------------------------------------------------------------------------------

    def execute_complete(self, context: Any, event: dict[str, Any], ask_after: float = FIRST_ASK) -> Any:
        """Read the journal, whatever woke this task, and end it or defer it again. A second process may do the same at the same time."""
        with failing_for_good():
            launch = self._open(context)
            if launch is None:  # Airflow has kept this method for a later try
                return self.execute(context)
            attempt = launch.attempt()
            self.push_launch(context["ti"], launch, attempt.epoch if attempt else None)
            return self._end_or_defer(context, launch, attempt, event.get("why"), ask_after)

    def _open(self, context: Any) -> DriverLaunch | None:
        """Return the launch of this try; None if it has none. A driver goes on whose history cannot be opened, and the next try may find it:
        the storage of this try was there when it began."""
        try:
            with _earlier.naming_its_driver(context, self.item):
                self._launch = launch = self.new_launch(context)
                return launch if launch.resume() else None
        except (HistoryGone, Refused):
            raise
        except CheckpointError as error:
            raise AirflowException(str(error)) from error

    def _end_or_defer(
        self, context: Any, launch: DriverLaunch, attempt: AttemptRecord | None, why: str | None, ask_after: float
    ) -> dict[str, Any]:
        if attempt is not None and attempt.outcome is not None:
            return self._end(launch, lambda: self.end_followed(launch, attempt))
        if self._was_refused(launch):
            return self._end(launch, lambda: self.end_launch(launch, ExitCode.REFUSED, None))
        if self._is_lost(launch, attempt, why):
            return self._end(launch, lambda: self.end_followed(launch, None))
        launch.raise_if_replaced()
        if attempt is None:
            ended, word = self._ask(context, launch)
            if ended is not None and launch.attempt() is None:
                failure = None if ended else AirflowException(f"the cluster manager says {word}")
                return self._end(launch, lambda: self.end_launch(launch, 0 if ended else 1, failure))
            ask_after = min(2 * ask_after, SELDOM_ASK)
        return self.defer_launch(context, launch, ask_after)

    def _is_lost(self, launch: DriverLaunch, attempt: AttemptRecord | None, why: str | None) -> bool:
        """Return whether a driver of which there was a sign lives no more. A trigger that cannot read the storage has not looked for it."""
        keys = driver_keys(launch.keys, launch.state)
        seen = why == SILENT
        if why == GIVEN_UP:
            launch.log([deferral.closed_to_triggerer(launch.state, self.checkpoint_conn_id)])
            seen = attempt is not None or any(read_beat(launch.store, key) for key in keys)
        if not seen or Liveness(launch.store, launch.beats).wait(keys):
            return False
        return launch.attempt() == attempt  # else it has attached or ended meanwhile

    def _end(self, launch: DriverLaunch, end: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            return end()
        finally:
            launch.forget_beat()

    def _was_refused(self, launch: DriverLaunch) -> bool:
        beat = read_beat(launch.store, launch.keys.driver_beat(launch.number or 0))
        return launch.attempt() is None and beat is not None and beat.refusal is not None

    def _ask(self, context: Any, launch: DriverLaunch) -> tuple[bool | None, str]:
        """Ask the cluster manager about a driver of which there is no sign. Without its word, only the journal can tell that it has ended."""
        try:
            ended, word = self.ask_cluster(context, launch)
        except Exception as error:  # noqa: BLE001 - each cluster manager raises its own
            launch.log([deferral.not_asked(launch.state, error)])
            return None, ""
        launch.log([deferral.asked(launch.state, word)])
        return ended, word

    def defer_launch(self, context: Any, launch: DriverLaunch, ask_after: float) -> NoReturn:
        """Defer this task. The trigger follows the launch, and keeps its heartbeat; the first beat is written here."""
        if self._was_killed.is_set():
            raise AirflowException("this task was killed, so nobody follows its driver")
        assert launch.record is not None
        deferred_at = utc_now()
        spark_conn_id, application = self.application_in(context, launch)
        follower_heart(launch.store, launch.keys, launch.record.number, deferred_at).pulse()
        trigger = LaunchTrigger(
            checkpoint_conn_id=self.checkpoint_conn_id,
            job=launch.parameters.history.job,
            history=launch.keys.prefix,
            launch=launch.record.number,
            try_number=launch.parameters.try_number,
            deferred_at=deferred_at,
            after=max((checkpoint.id for checkpoint in launch.state.checkpoints), default=0),
            ask_after=ask_after,
            spark_conn_id=spark_conn_id,
            application=application,
            xcom=self.do_xcom_push,
            poll_interval=min(EVERY, launch.beats.every),
            map_index=launch.parameters.map_index,
        )
        self.defer(trigger=trigger, method_name="execute_complete", kwargs={"ask_after": ask_after})
