"""One attempt of the application: how it begins, how it watches that it still stands, how it ends. Runs in the Spark driver.

An attempt takes its epoch itself. From then on a thread reads the journal once a second; when the attempt is over, the process
prints why and ends with exit code 79, whatever its main thread is doing.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import socket
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NoReturn

from airflow_checkpoint_provider import __version__
from airflow_checkpoint_provider.coordinator import garbage
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.disposal import publish_due
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal, utc_now
from airflow_checkpoint_provider.coordinator.liveness import (
    Beat,
    Heart,
    Liveness,
    Process,
    Refusal,
    beats_of,
    read_beat,
)
from airflow_checkpoint_provider.coordinator.restore import Restored, examine, resolve
from airflow_checkpoint_provider.errors import (
    Busy,
    CheckpointError,
    CommitStateUnknown,
    Fenced,
    JobAlreadyRunning,
    JobSuspended,
    NotPending,
    Refused,
    StoreError,
    StoreMisconfigured,
)
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import LaunchSpec, Point, Request, Token
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement, StateSnapshot, Versions
from airflow_checkpoint_provider.protocol.requests import ungated
from airflow_checkpoint_provider.protocol.state import Attempt as AttemptRecord
from airflow_checkpoint_provider.protocol.state import Checkpoint, Run, State
from airflow_checkpoint_provider.spark.log import say
from airflow_checkpoint_provider.spark.process.exits import leave
from airflow_checkpoint_provider.spark.settings import Settings
from airflow_checkpoint_provider.storage import Store, open_store, probe
from airflow_checkpoint_provider.text import messages, restore_story

POLL = 1.0  # seconds between two looks at the journal
GOODBYE = 3.0  # seconds that ending in order may take after a signal; Airflow kills after five


@dataclass(frozen=True)
class Program:
    """What the attempt's entry says of the program."""

    application: str
    spark: str


class Attempt:
    """The running attempt. ``lock`` guards the journal, which several threads of the driver use."""

    def __init__(self, coordinator: Coordinator, record: AttemptRecord, run: Run, restored: Restored) -> None:
        self.coordinator, self.record, self.run, self.restored = coordinator, record, run, restored
        self.epoch = record.epoch
        self.lock = threading.RLock()
        self.heart = Heart(coordinator.store, coordinator.keys.attempt_beat(self.epoch), Beat(epoch=self.epoch))
        self._over = threading.Event()
        self._leaving = threading.Event()  # a thread ends the process, with an exit code of its own
        self._watch = threading.Thread(target=self._watch_journal, name="checkpoint-watch", daemon=True)
        self.on_state: Callable[[State], None] = lambda state: None
        self.stage: str | None = None  # the stage that is being computed
        self._copying = ""  # what is copied before the script runs

    @property
    def state(self) -> State:
        return self.coordinator.state

    def doing(self) -> str:
        if self._copying:
            return f"copying {self._copying}"
        return f"stage '{self.stage}'" if self.stage else "the script's own code"

    def working_on(self, uid: str | None) -> None:
        self.stage = uid

    def still_standing(self) -> None:
        """As far as the watch has seen, without asking the store."""
        if self.state.over(self.epoch):
            self.leave_over()

    def watch(self) -> None:
        """From here on the driver beats for its epoch and looks at the journal."""
        self.heart.__enter__()
        self._watch.start()

    @contextmanager
    def copying(self, what: str) -> Iterator[None]:
        """What a living driver is doing that has not attached yet."""
        self._copying = what
        self.heart.update(lambda beat: replace(beat, doing=self.doing()))
        try:
            yield
        finally:
            self._copying = ""

    def attach(self, application: str) -> None:
        """The states are read; the script's own code is next."""
        self.heart.update(
            lambda beat: replace(
                beat, attached=utc_now(), application=application, doing=self.doing(), protected_since=utc_now()
            )
        )
        self.heart.pulse()

    # -- the journal -----------------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        return self.coordinator.store

    @property
    def keys(self) -> Keys:
        return self.coordinator.keys

    @contextmanager
    def _journal(self) -> Iterator[Coordinator]:
        """Yield the coordinator to one thread at a time. If this attempt was replaced, this call ends the process."""
        with self.lock:
            try:
                yield self.coordinator
            except Fenced:
                self.leave_over()

    def catch_up(self) -> State:
        """Read the journal to its end. Raises ``StoreError``; ends the process if this attempt is over."""
        with self._journal() as coordinator:
            coordinator.still_mine()
            return coordinator.state

    def still_mine(self) -> None:
        """Before any side effect of ours: end the process if this attempt is over. A silent store says nothing about that."""
        try:
            self.catch_up()
        except StoreError as error:
            say(f"cannot look whether this attempt still stands: {error}")

    def trigger_unless_pending(self, request: Request) -> tuple[int, State]:
        """Return the id of the pending checkpoint that waits for this attempt alone, and the state that lists it.

        Trigger one if there is none.
        """
        with self._journal() as coordinator:
            number = 0
            if not ungated(coordinator.state):
                with contextlib.suppress(Busy):  # somebody asked for one since the journal was last read
                    number = coordinator.trigger(request)
            return number or ungated(coordinator.state)[0].id, coordinator.state

    def acknowledge(self, acknowledgement: Acknowledgement) -> Acknowledgement:
        """Return the acknowledgement that counts: an earlier one of this attempt, if that was first."""
        with self._journal() as coordinator:
            return coordinator.acknowledge(acknowledgement)

    def missing(self, checkpoint: Checkpoint) -> tuple[str, ...]:
        """Return the applications that have not acknowledged it yet."""
        with self._journal() as coordinator:
            return coordinator.missing(checkpoint)

    def complete(self, number: int) -> State:
        """Seal and complete a checkpoint. Return the state that says so. Raises ``NotPending`` if it was aborted."""
        with self._journal() as coordinator:
            coordinator.complete(number)
            return coordinator.state

    def abort(self, number: int, reason: str, *, phase: str = "acknowledge", words: str = "") -> Checkpoint | None:
        """Abort a checkpoint unless it has another outcome already. Return what the journal says of it."""
        with self._journal() as coordinator:
            with contextlib.suppress(NotPending):
                missing = (self.record.application,) if phase == "acknowledge" else ()
                coordinator.abort(number, reason, phase=phase, missing=missing, words=words)
            return coordinator.state.checkpoint(number)

    def abort_unless_ending(self, number: int, reason: str, *, phase: str, words: str) -> Checkpoint | None:
        """As ``abort``, but leave it to the attempt's last entry where that is being written."""
        with self.lock:
            return None if self._over.is_set() else self.abort(number, reason, phase=phase, words=words)

    def sealed_states(self, checkpoint: Checkpoint) -> dict[str, StateSnapshot]:
        """Return what a completed checkpoint holds, by uid."""
        with self._journal() as coordinator:
            return coordinator.read_seal(checkpoint).states

    def publish_savepoints(self) -> None:
        """Let everybody open the completed savepoints by their directories."""
        with self._journal() as coordinator:
            publish_due(coordinator)

    def confirm_commits(self, number: int) -> None:
        """Tell a task that waits for it that all participants know of the completed checkpoint."""
        with self._journal() as coordinator:
            if not self._over.is_set():  # else a restore notifies them
                coordinator.confirm_commits(number)

    def expire_old_checkpoints(self) -> None:
        """Delete what the retention policy gives up. Only the entries need the lock: the watch goes on seeing a fence."""
        garbage.expire(self._journal, utc_now())

    def remove_orphans(self, limit: int) -> None:
        """Delete what attempts that are over left behind, at most ``limit`` folders. Deleting needs no lock."""
        garbage.remove_orphans(self._journal, limit)

    # -- the watch -------------------------------------------------------------------------------------------------

    def _watch_journal(self) -> None:
        while not self._over.wait(POLL):
            try:
                with self.lock:
                    state = self.coordinator.journal.poll()
            except StoreError:
                continue
            except CheckpointError as error:
                leave(ExitCode.REFUSED if error.permanent else ExitCode.FAILED, str(error))
            except BaseException:  # noqa: BLE001 - nobody would see any more that this attempt is over
                traceback.print_exc()
                leave(ExitCode.FAILED, "the journal could not be watched")
            if self._over.is_set():
                return
            if state.over(self.epoch):
                self.leave_over()
            launch = state.launch(self.record.launch)
            if launch and launch.stop:
                self.end_now("cancelled", ExitCode.OVER, f"stopped: {launch.stop}")
            self._show(state)

    def _show(self, state: State) -> None:
        """What people see of a driver may go wrong; the watch goes on."""
        try:
            self.on_state(state)
        except Exception:  # noqa: BLE001
            traceback.print_exc()

    def leave_over(self) -> NoReturn:
        """Replaced: print by whom, and end before the next side effect."""
        if self._leaving.is_set():
            threading.Event().wait()  # the last entry is our own, and so is the exit code
        leave(ExitCode.OVER, "\n".join(messages.fenced(self.state, self.epoch, self.doing())))

    # -- the end ---------------------------------------------------------------------------------------------------

    def end(self, how: str, exit_code: int) -> None:
        """The attempt's last entry. Raises what the store raises."""
        self._over.set()
        self.heart.stop()
        ended = c.EndAttempt(epoch=self.epoch, how=how, exit_code=exit_code)
        with self._journal() as coordinator:
            try:
                coordinator.journal.append(ended)
            except CommitStateUnknown:  # asked once more, it answers "done already" if it was written
                coordinator.journal.append(ended)

    def end_suspended(self, said: Callable[[str], str]) -> NoReturn:
        """A stop-savepoint stands: end the process, whatever the store says to that. ``said`` makes its last line of it."""
        unended = ""
        try:
            self.end("suspended", ExitCode.OVER)
        except CheckpointError as error:
            unended = error.message
        leave(ExitCode.OVER, said(unended))

    def end_failed(self, exit_code: int) -> None:
        """As ``end``, for a driver that fails anyway: what the store says to it changes nothing."""
        launch, record = self.state.launch(self.record.launch), self.state.attempt(self.epoch)
        if (
            record and record.how == "finished"
        ):  # an answer was lost on the way; the task that sees the exit code decides
            return
        try:
            self.end("cancelled" if launch and launch.stop else "failed", exit_code)
        except CheckpointError as error:
            say(f"the end of attempt {self.epoch} could not be written ({error}); the next attempt settles it")

    def end_now(self, how: str, code: int, why: str) -> NoReturn:
        """End the process from any thread, in order if the store answers in time."""
        self._over.set()
        self._leaving.set()
        ending = threading.Thread(target=self._end_quietly, args=(how, code), daemon=True)
        ending.start()
        ending.join(GOODBYE)
        leave(code, f"attempt {self.epoch} of {self.state.job} ends: {why}")

    def _end_quietly(self, how: str, code: int) -> None:
        if self.lock.acquire(timeout=GOODBYE):
            try:
                launch = self.coordinator.journal.catch_up().launch(self.record.launch)
                how = "cancelled" if launch and launch.stop else how
                self.coordinator.journal.append(c.EndAttempt(epoch=self.epoch, how=how, exit_code=code))
            except CheckpointError as error:
                say(str(error))
            finally:
                self.lock.release()


# -- the beginning -----------------------------------------------------------------------------------------------------


def begin(settings: Settings, program: Program) -> Attempt:
    """Verify where to start, take an epoch, and return the attempt. A refusal ends the process as API and task expect it."""
    store = open_store(settings.root, s3=settings.s3)
    owner = settings.token.owner if settings.token else "script"
    journal = Journal(store, Keys(settings.prefix), By("driver", owner, socket.gethostname()))
    try:
        if settings.token is None:
            return _begin_alone(journal, settings, program)
        return _begin_launched(journal, settings, program)
    except (Fenced, JobAlreadyRunning, JobSuspended) as error:
        if settings.token is None:
            refuse(journal, settings.launch, error, ExitCode.REFUSED)
        refuse(journal, settings.launch, error, ExitCode.OVER)
    except CheckpointError as error:
        if isinstance(error, StoreError) and not error.permanent:
            raise
        refuse(journal, settings.launch, error, ExitCode.REFUSED)


def refuse(journal: Journal, launch: int | None, error: CheckpointError, code: ExitCode) -> NoReturn:
    """End a driver that may not start."""
    if launch is not None:
        tell_task(journal.store, journal.keys, launch, error)
    else:
        say(str(error))
    raise SystemExit(int(code))


def tell_task(store: Store, keys: Keys, launch: int, error: CheckpointError) -> None:
    """Leave the text where the task that launched this driver reads it, and print it, should the store fail."""
    say(messages.refusal(error))
    Heart(
        store, keys.driver_beat(launch), Beat(launch=launch, refused=Refusal(code=error.code, text=error.message))
    ).pulse()


def _begin_launched(journal: Journal, settings: Settings, program: Program) -> Attempt:
    assert settings.token
    assert settings.launch is not None
    with Heart(
        journal.store, journal.keys.driver_beat(settings.launch), Beat(launch=settings.launch, doing="starting")
    ):
        state = journal.catch_up()
        if state.n < 0:
            raise StoreMisconfigured(
                f"there is no history at {journal.store.uri}/{journal.keys.prefix} as this driver sees it, though Airflow has just"
                " written it: do both see the same place under that path?"
            )
        restored = examine(Coordinator(journal), state, state.restore_point())
        driver = secrets.token_hex(16)
        start = c.StartAttempt(
            token=settings.token, try_number=settings.try_number, driver=driver, application_digest=program.application,
            versions=Versions(package=__version__, spark=program.spark), checkpointing=settings.config.to_json(),
        )  # fmt: skip
        liveness = Liveness(journal.store)
        journal.append(
            lambda state: replace(start, seen_alive=_another_driver_lives(liveness, journal, state, settings.launch))
        )
        return _started(journal, driver, restored)


def _begin_alone(journal: Journal, settings: Settings, program: Program) -> Attempt:
    """A script without Airflow: its run is the newest one if that did not finish, else a new one."""
    seen = journal.catch_up()
    if seen.n < 0:
        probe(journal.store)
    liveness = Liveness(journal.store)
    if _job_lives(liveness, journal, seen):
        raise _already_running(journal)
    base, restored = _where_to_start(journal, seen, settings)
    driver = secrets.token_hex(16)
    began = utc_now()

    def start(state: State) -> c.Command:
        token, try_number, started_at = _alone_run(state, began)
        spec = LaunchSpec(
            token=token,
            try_number=try_number,
            owner="script",
            run=token.run,
            run_after=None,
            started_at=started_at,
            restore=settings.restore,
        )
        plan = c.PlanLaunch(
            spec=spec,
            incarnation=secrets.token_hex(16),
            job=settings.job,
            base=base,
            above=restored.above if base else 0,
            alone=True,
            seen_alive=state.last_epoch > seen.last_epoch or _job_lives(liveness, journal, state),
        )
        attempt = c.StartAttempt(
            token=token, try_number=try_number, driver=driver, application_digest=program.application,
            versions=Versions(package=__version__, spark=program.spark), checkpointing=settings.config.to_json(),
        )  # fmt: skip
        return c.StartAlone(plan=plan, start=attempt)

    try:
        journal.append(start)
    except JobAlreadyRunning:  # one that was faster by a moment
        raise _already_running(journal) from None
    attempt = _started(journal, driver, restored)
    say(restore_story.restore_story(journal.state, attempt.restored))
    return attempt


def _where_to_start(journal: Journal, state: State, settings: Settings) -> tuple[Point | None, Restored]:
    """What ``restore`` names, which counts only for a new run, and the point itself, verified."""
    begins = not state.runs or state.runs[-1].how == "finished"
    if not begins or settings.restore == "latest":
        return None, examine(Coordinator(journal), state, state.restore_point())
    base = resolve(settings.restore, state, journal.store)
    return base, examine(Coordinator(journal), state, base)


def _alone_run(state: State, now: str) -> tuple[Token, int, str]:
    newest = state.runs[-1] if state.runs else None
    if newest is None or newest.how == "finished":
        return Token(dag="", run=f"alone-{state.next_launch}", task="script"), 1, now
    launch = state.launch(newest.launch)
    token = launch.spec.token if launch else Token(dag="", run=newest.key, task="script")
    return token, (launch.latest_try if launch else 0) + 1, newest.started_at


def _already_running(journal: Journal) -> JobAlreadyRunning:
    """A living process of this job is never adopted and never fenced by a script; both pids are named."""
    beat = read_beat(journal.store, journal.keys.attempt_beat(journal.state.last_epoch))
    other, mine = beat.process if beat else Process(), Process.this()
    return JobAlreadyRunning(
        f"{journal.state.job} is already running: process {other.pid} on {other.host} (this is process {mine.pid} on {mine.host})."
        " Wait for it or stop it; or give this one another job_id"
    )


def _job_lives(liveness: Liveness, journal: Journal, state: State) -> bool:
    """Return whether the current launch lives, whoever planned it."""
    return _lives(liveness, state, beats_of(journal.keys, state))


def _another_driver_lives(liveness: Liveness, journal: Journal, state: State, launch: int | None) -> bool:
    """Return whether an attempt of ``launch`` lives."""
    attempt = state.attempt_of(launch)
    return _lives(liveness, state, (journal.keys.attempt_beat(attempt.epoch),) if attempt and not attempt.how else ())


def _lives(liveness: Liveness, state: State, keys: Sequence[str]) -> bool:
    return liveness.wait(keys, functools.partial(say, restore_story.looking(state, liveness.beats.look)))


def _started(journal: Journal, driver: str, restored: Restored) -> Attempt:
    record = next(one for one in journal.state.attempts if one.driver == driver)
    if record.restore_point != restored.point:  # moved since it was verified
        restored = examine(Coordinator(journal), journal.state, record.restore_point)
    launch = journal.state.launch(record.launch)
    run = journal.state.run(launch.spec.run) if launch else None
    if run is None:
        raise Refused("the journal does not list the run of this attempt")
    journal.by = replace(journal.by, epoch=record.epoch)
    attempt = Attempt(Coordinator(journal, record.epoch), record, run, restored)
    attempt.heart.pulse()  # before anybody looks whether it lives
    return attempt
