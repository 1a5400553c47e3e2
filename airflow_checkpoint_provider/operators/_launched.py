"""A launch of one try of a task: its driver's settings, what the task sees of the driver, and how it ends. Runs in Airflow (worker).

The journal decides; processes, signals and heartbeats are hints.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from airflow_checkpoint_provider.coordinator.assignment import Allowed
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.garbage import collect, unshared
from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.journal import Journal, age_now
from airflow_checkpoint_provider.coordinator.liveness import Beat, Beats, read_beat
from airflow_checkpoint_provider.coordinator.older_runs import OlderRun, collect_older_runs
from airflow_checkpoint_provider.coordinator.oom_kills import OomKills
from airflow_checkpoint_provider.coordinator.restore import Restored
from airflow_checkpoint_provider.coordinator.savepoint import publish_due
from airflow_checkpoint_provider.errors import (
    CheckpointError,
    Fenced,
    Refused,
    StoreError,
    Superseded,
    as_checkpoint_error,
)
from airflow_checkpoint_provider.hooks.history import task_author
from airflow_checkpoint_provider.metrics import Gauges
from airflow_checkpoint_provider.operators._items import IndexState, Instance, unknown_state
from airflow_checkpoint_provider.operators._restore_age import RestoreAge
from airflow_checkpoint_provider.policies.memory import MemoryPlan
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.handover import ExitCode, LaunchSettings
from airflow_checkpoint_provider.protocol.keys import History, Keys
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord, Launch
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.wording import DEFAULT_CONNECTION
from airflow_checkpoint_provider.storage import Store, s3_credentials
from airflow_checkpoint_provider.text import launch_messages, manual_restore, summary_table

COLLECTS = 10  # of so many instances of a mapped task, one collects: each lists the histories of all items
LogLines = Callable[[Iterable[str]], None]


@dataclass(frozen=True)
class EarlierHistory:
    """The history to which an earlier try of a task wrote: its incarnation, the root of its store, and its prefix there."""

    incarnation: str
    root: str = ""  # not known if an older version of this package has kept it
    history: str = ""
    connection: str = DEFAULT_CONNECTION


@dataclass(frozen=True)
class LaunchParameters:
    """The rendered parameters of a launch: its history, the task that launches, and where to start."""

    history: History
    token: Token
    try_number: int
    run_after: str | None
    now: str
    restore: str = "latest"
    restore_incarnation: str = ""  # of the history that the output of a task names in restore=
    require_state: bool = False
    on_clear: str = "auto"
    discarded: bool = False  # a clear has discarded what Airflow had stored: for that reason on_clear is "restart"
    durable: bool = True
    earlier: EarlierHistory | None = None  # to which an earlier try of this task wrote
    map_index: int | None = None  # of a mapped instance
    connection: str = DEFAULT_CONNECTION
    memory: MemoryPlan | None = None
    restore_age: RestoreAge | None = None  # how old the point may be from which a run starts


class LaunchedDriver:
    """A launch of one try, and its driver. Use it from one thread at a time; ``journal`` returns another reader.

    ``record`` is the launch in the journal, once it is planned.
    """

    def __init__(
        self,
        store: Store,
        parameters: LaunchParameters,
        log: LogLines,
        beats: Beats | None = None,
        killed: threading.Event | None = None,
        index_state: IndexState = unknown_state,
    ) -> None:
        self.store, self.parameters, self.log = store, parameters, log
        self.killed = killed or threading.Event()
        self.beats = beats or Beats.configured()
        self.keys = Keys(parameters.history.prefix)
        self.coordinator = Coordinator(self.journal())
        token = parameters.token
        self.metrics = Gauges(parameters.history.job, token.dag, token.task, item=parameters.history.item)
        self.instance = Instance(store, parameters.history, token, parameters.map_index, index_state)
        self.restored = Restored()
        self.kills = OomKills()
        self.record: Launch | None = None

    def journal(self) -> Journal:
        """Return a new reader of the history."""
        return Journal(self.store, self.keys, task_author(self.parameters.token.owner))

    @property
    def state(self) -> State:
        """Return the state of the history as it was last read."""
        return self.coordinator.state

    @property
    def number(self) -> int | None:
        """Return the number of the launch, once it is planned."""
        return self.record.number if self.record else None

    @property
    def title(self) -> str:
        """Return the job, the item and the run, as they are named before there is a journal."""
        item = f", item {self.parameters.history.item}" if self.parameters.history.item else ""
        return f"{self.parameters.history.job}{item}, run {self.parameters.token.run}"

    @property
    def adopted(self) -> bool:
        """Return whether another try made this launch and its driver still runs."""
        if self.record is None:
            return False
        spec = self.record.spec  # of a DAG run that was made again, the try number may be the same
        return (spec.token, spec.try_number) != (self.parameters.token, self.parameters.try_number)

    # -- while the driver runs ---------------------------------------------------------------------------------------

    def settings(
        self, checkpointing: CheckpointConfig | None = None, allow_non_restored_state: Allowed = False
    ) -> LaunchSettings:
        """Return the settings of the driver; nothing in them is secret."""
        assert self.record is not None
        return LaunchSettings(
            root=self.store.uri,
            history=self.keys.prefix,
            launch=self.record.number,
            s3=s3_credentials.confs(self.store),
            savepoint_roots=self.store.savepoint_roots,
            job=self.parameters.history.job,
            token=self.record.spec.token,
            try_number=self.record.spec.try_number,
            checkpointing=checkpointing,
            allow_non_restored_state=allow_non_restored_state,
            restored_from=point.pointer if (point := self.restored.point) else None,
        )

    def attempt(self) -> AttemptRecord | None:
        """Read the journal and return the newest attempt of this launch."""
        return self.coordinator.journal.catch_up().attempt_of(self.record.number if self.record else None)

    def raise_if_replaced(self) -> None:
        """Raise ``Superseded`` if another launch or a later try has taken over. Raise ``Fenced`` if a restore ended this launch: the next
        try starts from the restored checkpoint.
        """
        state = self.coordinator.journal.catch_up()
        current = state.current_launch()
        if current is None:
            raise Fenced(manual_restore.left_by_restore(state))
        moved = current.map_index != self.parameters.map_index
        later_try = current.latest_try > self.parameters.try_number
        if self.record is None or current.number != self.record.number or moved or later_try:
            raise Superseded(launch_messages.superseded(state, self.parameters.token.run))

    @contextlib.contextmanager
    def heartbeat(self) -> Iterator[Heart]:
        """Beat for the launch while this task submits. Afterwards only its driver beats, though this process may go on."""
        assert self.record is not None
        try:
            with self._heart() as heart:
                yield heart
        finally:
            self.forget_beat()

    def forget_beat(self) -> None:
        """Delete the heartbeat of the launch: that of a task that submits, or of a follower. If this fails, it stands still."""
        if self.record is not None:
            with contextlib.suppress(StoreError):
                self.store.delete([self.keys.launch_beat(self.record.number)])

    def _heart(self) -> Heart:
        assert self.record is not None
        beat = Beat(launch=self.record.number, activity="submitting")
        return Heart(self.store, self.keys.launch_beat(self.record.number), beat, self.beats)

    def request_stop(self, reason: str, launch: Launch | None = None, *, moved: bool = False) -> None:
        """Ask the driver to stop; by default that of this launch. ``moved``: of a launch whose item this instance has now.

        ``on_kill`` calls this in a signal handler of the main thread, so it has its own reader.
        """
        launch = launch or self.record
        if launch is None:
            return
        journal = self.journal()
        journal.patience = 3.0
        journal.append(
            c.RequestStop(
                launch=launch.number,
                try_number=launch.latest_try if moved else self.parameters.try_number,
                map_index=launch.map_index if moved else self.parameters.map_index,
                by=self.parameters.token.owner,
                reason=reason,
            )
        )

    def collect_older_runs(self, stop: threading.Event) -> None:
        """Collect the garbage of older runs and close those that are due; log one line if there was any.

        Runs beside the driver, until ``stop`` is set. The next run collects the rest. Of a mapped task, some instances do it.
        """
        history, index = self.parameters.history, self.parameters.map_index
        if history.run is None or (index is not None and index % COLLECTS):
            return
        by = task_author(self.parameters.token.owner)
        collected: list[OlderRun] = []
        try:
            collected += collect_older_runs(
                self.store, history.job, by, own=self.keys.prefix, stop=stop.is_set, pause=stop.wait
            )
        except Exception as error:  # noqa: BLE001 - no other code would report an error of this thread
            collected.append(OlderRun("", error=as_checkpoint_error(error, "the listing")))
        self.log(launch_messages.older_runs(history.job, collected))

    # -- the end -----------------------------------------------------------------------------------------------------

    def record_end(self, outcome: str, exit_code: int | None, cause: str = "") -> None:
        """Record how the driver ended, if it could not do so itself, and the memory that it ran out of. Do nothing if it was replaced."""
        attempt = self.attempt()
        if attempt is None:
            self._record_launch_end(outcome, exit_code, cause)
            return
        end = c.EndAttempt(
            epoch=attempt.epoch, outcome=outcome, exit_code=exit_code, reported_by="task", from_task=True, cause=cause
        )
        with contextlib.suppress(Fenced):
            self.coordinator.end_attempt(end)

    def _record_launch_end(self, outcome: str, exit_code: int | None, cause: str) -> None:
        """Record the end of a driver that never attached. This is for readers, so a failure does not change how the task ends."""
        assert self.record is not None
        end = c.EndLaunch(
            launch=self.record.number,
            try_number=self.parameters.try_number,
            map_index=self.parameters.map_index,
            outcome=outcome,
            exit_code=exit_code,
            cause=cause,
        )
        with contextlib.suppress(CheckpointError):
            self.coordinator.journal.append(end)

    def record_suspension(self) -> bool:
        """Return whether a savepoint stopped the driver of this launch, even if a restore has resumed the job since.

        The savepoint's completion suspends the job. If the driver could not record its own end, record it here: then this try
        may launch again once the job is resumed. If the job was resumed before that, only the next try may.
        """
        attempt = self.attempt()
        if attempt is None or not (
            attempt.outcome == "suspended" or (attempt.outcome is None and self.state.suspended)
        ):
            return False
        self.record_end("suspended", ExitCode.OVER)
        attempt = self.attempt()
        if attempt is None or attempt.outcome != "suspended":
            return False
        self.publish_savepoints()
        return True

    def publish_savepoints(self) -> None:
        """Publish the savepoints that a driver completed and could not publish. If this fails, they still have their ids."""
        with contextlib.suppress(CheckpointError):
            publish_due(self.coordinator)

    def collect_garbage(self) -> list[str]:
        """Delete the checkpoints that end with a run that succeeded. Return lines for the log, also if they cannot be deleted now."""
        try:
            before = {checkpoint.id for checkpoint in self.coordinator.journal.catch_up().retained}
            collect(unshared(self.coordinator), age_now())
        except (StoreError, Refused) as error:
            where = f"{self.store.uri}/{self.keys.prefix}"
            return [f"State of the run under {where} could not be deleted ({error}). It only costs storage."]
        deleted = before - {checkpoint.id for checkpoint in self.state.retained}
        if not deleted and self.state.retained:
            return []
        return [summary_table.deleted_line(len(deleted), self.state)]

    def wait_for_process(self) -> None:
        """Wait until the driver's process on this host has ended, for up to 60 s.

        A driver that finished may still run the code after its ``with`` block, and read its stages there. A process on
        another host is not waited for.
        """
        attempts = self.state.attempts
        beat = read_beat(self.store, self.keys.attempt_beat(attempts[-1].epoch)) if attempts else None
        deadline = time.monotonic() + self.beats.still
        while beat and beat.process.lives() and time.monotonic() < deadline:
            if self.killed.wait(self.beats.every / 10):
                return

    def summary(self) -> list[str]:
        """Return the summary table, or one line if the journal cannot be read."""
        try:
            return summary_table.summary(self.coordinator.journal.catch_up(), self.parameters.token.run)
        except StoreError as error:
            return [f"no summary: the journal cannot be read ({error})"]
