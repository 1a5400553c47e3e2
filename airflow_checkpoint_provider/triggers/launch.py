"""The trigger that follows a launch while its task is deferred. It knows no Spark provider. Runs in Airflow (triggerer)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_checkpoint_provider import _airflow
from airflow_checkpoint_provider.coordinator.heart import follower_heart
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.liveness import Beats, driver_keys
from airflow_checkpoint_provider.errors import CheckpointError, StoreDenied, printable
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.driver_monitor import DriverMonitor, OnAttach
from airflow_checkpoint_provider.hooks.history import task_author
from airflow_checkpoint_provider.hooks.references import launch_reference
from airflow_checkpoint_provider.metrics import Gauges
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.protocol.launch_records import Launch
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.wording import not_attached
from airflow_checkpoint_provider.storage import Store
from airflow_checkpoint_provider.triggers._unattached import Unattached
from airflow_checkpoint_provider.triggers.checkpoint import PATIENCE, RepeatedError, Repetition
from airflow_checkpoint_provider.triggers.threads import in_thread

ENDED, REFUSED, REPLACED, SILENT, NOT_ATTACHED = "ended", "refused", "replaced", "silent", "not attached"
GIVEN_UP = ""  # the trigger cannot read the storage; perhaps the task can
# States of a task that nobody will resume
OVER = ("failed", "success", "skipped", "upstream_failed", "removed", _airflow.DELETED)


class DeferredLaunch:
    """The launch of a deferred task, from its trigger's side."""

    adopted = False

    def __init__(self, store: Store, history: str, launch: int, after: int, log: Callable[[str], object]) -> None:
        self.store, self.keys, self.number, self._log = store, Keys(history), launch, log
        self.beats = Beats.configured()
        self._after = after
        self.state = self.journal().catch_up()
        spec = self.record.spec if self.record else None
        dag, task = (spec.token.dag, spec.token.task) if spec else ("", "")
        self.metrics = Gauges(self.state.job, dag, task, item=self.state.item)

    @property
    def record(self) -> Launch | None:
        """Return the launch in the journal; None if its history is another one now."""
        return self.state.launch(self.number)

    def journal(self) -> Journal:
        return Journal(self.store, self.keys, task_author("triggerer"))

    def log(self, lines: Iterable[str], /) -> None:
        for line in lines:
            self._log(printable(line))

    def logged(self) -> set[int]:
        """Return the checkpoints that the task itself has logged. A later trigger of the same deferral logs the others again."""
        return {one.id for one in self.state.checkpoints if one.ended_at and one.id <= self._after}


class LaunchMonitor(DriverMonitor):
    """Reads journal and heartbeat of the driver, and says when the task must look. Keeps a heartbeat for the launch."""

    def __init__(
        self,
        launch: DeferredLaunch,
        try_number: int,
        deferred_at: str,
        on_attach: OnAttach,
        map_index: int | None = None,
    ) -> None:
        super().__init__(launch, on_attach, log_checkpoints=True)
        self._logged = launch.logged()
        self._deferred, self._try_number, self._map_index = launch, try_number, map_index
        self._heart = follower_heart(launch.store, launch.keys, launch.number, deferred_at)
        self._pulsed = float("-inf")
        self._waiting = Repetition()

    def beat_keys(self, state: State) -> Sequence[str]:
        """Leave out the heartbeat that this object keeps: it is no sign of the driver."""
        return driver_keys(self._deferred.keys, state)

    def over(self) -> str:
        """Return why the task must look now, or nothing. Raise the error of the store."""
        self._pulse()
        attempt = self.poll()
        if self.error:
            raise self.error
        state = self._journal.state
        current, launch = state.current_launch(), state.launch(self._deferred.number)
        if attempt and attempt.outcome:
            return ENDED
        if launch is None or current is None or current.number != launch.number:
            return REPLACED
        if launch.map_index != self._map_index or launch.latest_try > self._try_number:
            return REPLACED
        if self.newest and self.newest.refusal:
            return REFUSED
        if not self.waits_for_a_driver and self.silent_for >= self._deferred.beats.still:
            return SILENT
        if attempt is None and self._waiting.due(line := not_attached(state, launch)):
            self._deferred.log([f"{line}; waiting for its driver"])
        return ""

    def end(self) -> None:
        """Log what the driver says, if that was not logged yet. Say by the metrics that nobody follows the driver any more."""
        self.log_driver()
        self._deferred.metrics.reset()

    @property
    def state(self) -> State:
        return self._journal.state

    @property
    def waits_for_a_driver(self) -> bool:
        """Return whether no sign of a driver was seen: the application may be queued, or gone."""
        return self.attempt is None and self.newest is None

    def _pulse(self) -> None:
        if time.monotonic() - self._pulsed >= self._deferred.beats.every:
            self._pulsed = time.monotonic()
            self._heart.pulse()


class LaunchTrigger(BaseTrigger):
    """Fires when the task of a launch must look: its driver has ended, was refused or is silent, or another try or launch has replaced it.

    The event only wakes the task, which then reads the journal itself. The trigger decides nothing, so it may be killed, run twice or
    started again by another triggerer. Airflow stores these arguments in its database; none of them is secret.

    :param checkpoint_conn_id: connection by which the triggerer finds the store.
    :param job: the job's id.
    :param history: the prefix of its history.
    :param launch: the number of the launch, which ``try_number`` has planned or adopted.
    :param deferred_at: when the task freed its worker, for the people who see that no triggerer follows it.
    :param after: the newest checkpoint when the task was deferred.
    :param ask_after: seconds without any sign of a driver after which the task asks the cluster manager.
    :param spark_conn_id: Spark's connection, which may say where YARN's resource manager is.
    :param application: YARN's id of the application, about which the manager is asked here; empty elsewhere.
    :param xcom: keep the XCom ``launch`` of the task up to date.
    :param poll_interval: seconds between two polls.
    :param map_index: of the instance of a mapped task; None for other tasks.
    """

    def __init__(
        self,
        *,
        checkpoint_conn_id: str,
        job: str,
        history: str,
        launch: int,
        try_number: int,
        deferred_at: str,
        after: int,
        ask_after: float,
        spark_conn_id: str,
        application: str,
        xcom: bool,
        poll_interval: float,
        map_index: int | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.checkpoint_conn_id, self.job, self.history = checkpoint_conn_id, job, history
        self.launch, self.try_number, self.deferred_at, self.after = launch, try_number, deferred_at, after
        self.ask_after, self.spark_conn_id, self.application = ask_after, spark_conn_id, application
        self.xcom, self.poll_interval, self.map_index = xcom, poll_interval, map_index
        self._monitor: LaunchMonitor | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = (
            *("checkpoint_conn_id", "job", "history", "launch", "try_number"),
            *(
                "deferred_at",
                "after",
                "ask_after",
                "spark_conn_id",
                "application",
                "xcom",
                "poll_interval",
                "map_index",
            ),
        )
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        unreadable, why = RepeatedError(self.log), GIVEN_UP
        unattached = Unattached(
            self.spark_conn_id, self.application, self.ask_after, lambda line: self.log.info("%s", line)
        )
        while not why:
            try:
                why = await in_thread("poll", self.checkpoint_conn_id, self._poll, unattached)
                unreadable.succeeded()
            except CheckpointError as error:
                if error.permanent and unreadable.lasts >= PATIENCE:  # perhaps only the triggerer has it
                    break
                unreadable.warn(error, "polling again; the driver goes on")
            if not why:
                await asyncio.sleep(self.poll_interval)
        await in_thread("poll", self.checkpoint_conn_id, self._end)
        yield TriggerEvent({"why": why})  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """Ask the driver to stop if a person has ended the task, or deleted it.

        Airflow also calls this when a triggerer wakes up whose tasks another one has taken over, and after a clear, whose next try asks
        by itself. So the state of the task decides, and the journal refuses a word about a launch that a later try follows.
        """
        ti = self.task_instance
        if ti is None:
            return
        where = "stop", self.checkpoint_conn_id
        state = await in_thread(*where, _airflow.task_state, ti.dag_id, ti.run_id, ti.task_id, self.map_index)
        if state in OVER:
            await in_thread(*where, self._end)
            await in_thread(*where, self._request_stop, f"{ti.dag_id}.{ti.task_id}", state)

    def _end(self) -> None:
        if self._monitor is not None:
            self._monitor.end()

    def _store(self) -> Store:
        return CheckpointStorageHook(self.checkpoint_conn_id).get_store_of(self.job)

    def _poll(self, unattached: Unattached) -> str:
        try:
            if self._monitor is None:
                launch = DeferredLaunch(
                    self._store(), self.history, self.launch, self.after, lambda line: self.log.info("%s", line)
                )
                self._monitor = LaunchMonitor(
                    launch,
                    self.try_number,
                    self.deferred_at,
                    lambda attempt: self._push_xcom(launch, attempt),
                    self.map_index,
                )
            why = self._monitor.over()
            if not why and self._monitor.waits_for_a_driver and unattached.over(self._monitor.state):
                return NOT_ATTACHED
            return why
        except StoreDenied:
            self._monitor = None  # the connection may have new keys at the next poll
            raise

    def _push_xcom(self, launch: DeferredLaunch, attempt: int | None) -> None:
        if not self.xcom or launch.record is None:
            return
        token = launch.record.spec.token
        value = launch_reference(launch.state, launch.record, f"{launch.store.uri}/{self.history}", attempt)
        try:
            _airflow.push_xcom(token.dag, token.run, token.task, "launch", value, self.map_index)
        except Exception as error:  # noqa: BLE001 - Airflow raises any error of its client, and the XCom is for readers
            self.log.warning("The XCom `launch` could not be written: %s", error)

    def _request_stop(self, owner: str, state: str) -> None:
        what = state if state == _airflow.DELETED else f"marked {state}"
        journal = Journal(self._store(), Keys(self.history), task_author(owner))
        journal.append(
            c.RequestStop(
                launch=self.launch,
                try_number=self.try_number,
                map_index=self.map_index,
                by=owner,
                reason=f"the task was {what} while it was deferred",
            )
        )
