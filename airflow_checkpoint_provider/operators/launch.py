"""One try's launch of a job: look, verify, plan, follow, end. Runs in Airflow (worker).

The journal decides; Airflow's processes, signals and stores are hints. Every step after a wait asks whether this try still
may, because a killed task's ``execute`` goes on.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.garbage import collect, unshared
from airflow_checkpoint_provider.coordinator.journal import Journal, utc_now
from airflow_checkpoint_provider.coordinator.liveness import Beat, Beats, Heart, Liveness, beats_of, read_beat
from airflow_checkpoint_provider.coordinator.older_runs import OlderRun, collect_older_runs
from airflow_checkpoint_provider.coordinator.restore import Restored, examine, id_above, resolve
from airflow_checkpoint_provider.errors import Fenced, HistoryGone, Refused, Stopping, StoreError, Superseded
from airflow_checkpoint_provider.metrics import Metrics
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.decisions import decide
from airflow_checkpoint_provider.protocol.events import LaunchPlanned, LaunchSpec, Token
from airflow_checkpoint_provider.protocol.handover import LaunchSettings
from airflow_checkpoint_provider.protocol.keys import History, Keys
from airflow_checkpoint_provider.protocol.state import AttemptRecord, Launch, State
from airflow_checkpoint_provider.storage import Store, probe, s3_credentials
from airflow_checkpoint_provider.text import messages, restore_story, summary_table
from airflow_checkpoint_provider.text.restore_story import Seen

Say = Callable[[Iterable[str]], None]
POLL = 1.0  # seconds between two looks at the journal


@dataclass(frozen=True)
class Wanted:
    """What the task wants, rendered: which history, on whose behalf, from where."""

    history: History
    token: Token
    try_number: int
    run_after: str | None
    now: str
    restore: str = "latest"
    require_state: bool = False
    on_clear: str = "auto"
    durable: bool = True
    incarnation: str | None = None  # of the history to which an earlier try of this task wrote


class Launching:
    """The launch of one try. Not for more than one thread at a time; ``journal`` makes another reader."""

    def __init__(
        self, store: Store, wanted: Wanted, say: Say, beats: Beats | None = None, killed: threading.Event | None = None
    ) -> None:
        self.store, self.wanted, self.say = store, wanted, say
        self.killed = killed or threading.Event()
        self.beats = beats or Beats.configured()
        self.keys = Keys(wanted.history.prefix)
        self.coordinator = Coordinator(self.journal())
        self.metrics = Metrics(wanted.history.job, wanted.token.dag, wanted.token.task)
        self.restored = Restored()
        self.launch: Launch | None = None
        self._before, self._seen = State(), Seen()  # what the launch was decided on

    def journal(self) -> Journal:
        return Journal(self.store, self.keys, By("task", self.wanted.token.owner, socket.gethostname()))

    @property
    def state(self) -> State:
        return self.coordinator.state

    # -- planning ----------------------------------------------------------------------------------------------------

    def plan(self) -> Launch:
        """Verify where to start, then one entry: fence and restore point. A refusal leaves the old attempt untouched.

        The launch returned was planned by this try, or adopted by it (``adopted``).
        """
        journal = self.coordinator.journal
        state = journal.catch_up()
        if state.n < 0:
            probe(self.store)
        self._history_is_the_same(state)
        first = state.run(self.wanted.token.run) is None
        base = resolve(self.wanted.restore, state, self.store) if first else None
        plan = c.PlanLaunch(
            spec=self._spec(), incarnation=secrets.token_hex(16), job=self.wanted.history.job,
            scope=self.wanted.history.run or "", item=self.wanted.history.item, base=base,
            above=id_above(base, self.store), on_clear=self.wanted.on_clear, require_state=self.wanted.require_state, durable=self.wanted.durable,
        )  # fmt: skip
        self._append_patiently(plan)
        self.launch = self.state.current_launch()
        if self.launch is None:
            raise Refused(f"{self.wanted.history.job}: the launch was replaced as soon as it was planned")
        if self.killed.is_set():
            self.request_stop("the task was killed while it planned")
            raise Refused(f"{self.wanted.history.job}: this task was killed")
        if not self.adopted:
            self._heart().pulse()  # who looks at this launch from now on sees that it lives
        self.say(restore_story.launch_story(self._before, self.state, self.launch, self.restored, self._seen))
        return self.launch

    def _spec(self) -> LaunchSpec:
        return LaunchSpec(
            token=self.wanted.token,
            try_number=self.wanted.try_number,
            owner=self.wanted.token.owner,
            run=self.wanted.token.run,
            run_after=self.wanted.run_after,
            started_at=self.wanted.now,
            restore=self.wanted.restore,
        )

    @property
    def adopted(self) -> bool:
        return self.launch is not None and self.launch.spec.try_number != self.wanted.try_number

    def _history_is_the_same(self, state: State) -> None:
        known = self.wanted.incarnation
        if known is not None and known != state.incarnation:
            raise HistoryGone(
                f"{self.wanted.history.job}: an earlier try of this task wrote to a history at {self.store.uri}/{self.keys.prefix} that is"
                " not there any more. Was it deleted, or the connection changed? Put it back; or, to start from nothing on purpose,"
                " delete this task's key 'checkpoint_history' from its state store and clear the task"
            )

    def _append_patiently(self, plan: c.PlanLaunch) -> None:
        """A driver that was told to stop is waited for, bounded; then its launch is replaced."""
        deadline = time.monotonic() + self.beats.still
        liveness, waited = Liveness(self.store, self.beats), False

        def observed(state: State) -> c.PlanLaunch:
            looking = functools.partial(self.say, [restore_story.looking(state, self.beats.look)])
            alive = (not waited or time.monotonic() < deadline) and liveness.wait(beats_of(self.keys, state), looking)
            if self.killed.is_set():
                raise Refused(f"{self.wanted.history.job}: this task was killed; nothing was planned")
            self._before, self._seen = state, self._see(state, alive)
            command = replace(plan, seen_alive=alive)
            self._verify(state, decide(state, command))
            return command

        while True:
            try:
                self.coordinator.journal.append(observed)
                return
            except Stopping as error:
                self.say([f"{error.message}; waiting for it, {self.beats.still:.0f} s at most"])
                self._wait_until_stopped(deadline)
                liveness, waited = Liveness(self.store, self.beats), True

    def _see(self, state: State, alive: bool) -> Seen:
        """For the story, besides the journal."""
        beats = (read_beat(self.store, key) for key in beats_of(self.keys, state))
        return Seen(self.store.uri, next(filter(None, beats), None), alive, utc_now())

    def _verify(self, state: State, decision: object) -> None:
        """The point where the launch would start, which after a clear is another than where a retry would."""
        planned = [one for one in decision if isinstance(one, LaunchPlanned)] if isinstance(decision, tuple) else []
        for launch in planned:
            self.restored = examine(self.coordinator, state, launch.restore_point)

    def _wait_until_stopped(self, deadline: float) -> None:
        """A process elsewhere is not looked at here: that takes as long as looking whether it lives."""
        while time.monotonic() < deadline and not self.killed.is_set():
            keys = beats_of(self.keys, self.coordinator.journal.poll())
            beats = (read_beat(self.store, key) for key in keys)
            if not any(beat and beat.process.lives() for beat in beats):
                return
            time.sleep(min(POLL, self.beats.every))

    # -- afterwards --------------------------------------------------------------------------------------------------

    def settings(
        self, checkpointing: CheckpointConfig | None = None, allow_non_restored_state: bool | tuple[str, ...] = False
    ) -> LaunchSettings:
        """Return what the driver needs; nothing secret."""
        assert self.launch is not None
        return LaunchSettings(
            root=self.store.uri,
            history=self.keys.prefix,
            launch=self.launch.number,
            s3=s3_credentials.confs(self.store),
            job=self.wanted.history.job,
            token=self.launch.spec.token,
            try_number=self.launch.spec.try_number,
            checkpointing=checkpointing,
            allow_non_restored_state=allow_non_restored_state,
        )

    def attempt(self) -> AttemptRecord | None:
        """The newest attempt of our launch, as the journal has it now."""
        return self.coordinator.journal.catch_up().attempt_of(self.launch.number if self.launch else None)

    def still_ours(self) -> None:
        """Raise ``Superseded`` if another launch or a later try has taken over; ``Fenced`` if a restore left no launch: the
        next try starts where that says."""
        state = self.coordinator.journal.catch_up()
        current = state.current_launch()
        if current is None:
            raise Fenced(restore_story.left_by_restore(state))
        if self.launch is None or current.number != self.launch.number or current.latest_try > self.wanted.try_number:
            raise Superseded(messages.superseded(state, self.wanted.token.run))

    def end(self, how: str, exit_code: int | None, said_by: str = "task") -> None:
        """Say how the driver of our launch ended, if it could not itself; one that was replaced needs no word."""
        attempt = self.attempt()
        if attempt is None:
            return
        try:
            self.coordinator.journal.append(
                c.EndAttempt(epoch=attempt.epoch, how=how, exit_code=exit_code, said_by=said_by, from_task=True)
            )
        except Fenced:
            return

    def request_stop(self, reason: str) -> None:
        """For ``on_kill``, which runs in a signal handler of the main thread: with a reader of its own."""
        if self.launch is None:
            return
        journal = self.journal()
        journal.patience = 3.0
        journal.append(
            c.RequestStop(
                launch=self.launch.number, try_number=self.wanted.try_number, by=self.wanted.token.owner, reason=reason
            )
        )

    @contextlib.contextmanager
    def beating(self) -> Iterator[Heart]:
        """While this task submits. Afterwards nobody beats for the launch but its driver, though this process may live on."""
        assert self.launch is not None
        try:
            with self._heart() as heart:
                yield heart
        finally:
            with contextlib.suppress(StoreError):
                self.store.delete([self.keys.launch_beat(self.launch.number)])

    def _heart(self) -> Heart:
        assert self.launch is not None
        beat = Beat(launch=self.launch.number, doing="submitting")
        return Heart(self.store, self.keys.launch_beat(self.launch.number), beat, self.beats)

    def clean_up(self) -> list[str]:
        """After success: what ends with the run goes. Returns lines; what cannot be deleted now costs storage, nothing else."""
        try:
            before = {one.id for one in self.coordinator.journal.catch_up().retained}
            collect(unshared(self.coordinator), utc_now())
        except (StoreError, Refused) as error:
            where = f"{self.store.uri}/{self.keys.prefix}"
            return [
                f"state of the run could not be deleted now ({error}); it costs storage under {where}, nothing else"
            ]
        gone = before - {one.id for one in self.state.retained}
        return [summary_table.deleted_line(len(gone), self.state)] if gone or not self.state.retained else []

    def collect_older_runs(self, stop: threading.Event) -> None:
        """Beside the driver: collect the garbage of older runs, and close what is due; one line, if there was anything. Whatever is not done
        before ``stop`` is set is left to the next run."""
        history = self.wanted.history
        if history.run is None:
            return
        by = By("task", self.wanted.token.owner, socket.gethostname())
        done: list[OlderRun] = []
        try:
            done += collect_older_runs(
                self.store, history.job, by, own=self.keys.prefix, stop=stop.is_set, pause=stop.wait
            )
        except StoreError as error:
            done.append(OlderRun("", error=error))
        self.say(messages.older_runs(history.job, done))

    def wait_for_process(self) -> None:
        """A driver that finished may still run what stands behind its ``with``, and read its stages there. On this host its
        process is waited for, bounded; elsewhere nobody can tell."""
        attempts = self.state.attempts
        beat = read_beat(self.store, self.keys.attempt_beat(attempts[-1].epoch)) if attempts else None
        deadline = time.monotonic() + self.beats.still
        while (
            beat
            and beat.process.lives()
            and time.monotonic() < deadline
            and not self.killed.wait(self.beats.every / 10)
        ):
            pass

    def summary(self) -> list[str]:
        """The table; a store that fails costs only that."""
        try:
            return summary_table.summary(self.coordinator.journal.catch_up(), self.wanted.token.run)
        except StoreError as error:
            return [f"no summary, the journal cannot be read now: {error}"]
