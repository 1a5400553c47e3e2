"""Begin an attempt: verify where to start, take an epoch, or refuse. Runs in the Spark driver."""

from __future__ import annotations

import functools
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from airflow_checkpoint_provider import __version__, errors
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.journal import Journal, utc_now
from airflow_checkpoint_provider.coordinator.liveness import Beat, Liveness, Process, RefusedStart, beat_keys, read_beat
from airflow_checkpoint_provider.coordinator.restore import Restored, examine, resolve
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import LaunchSpec, Point, Token
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.protocol.metadata import Versions
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.attempt.settings import Settings
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.storage import Store, probe
from airflow_checkpoint_provider.text import launch_messages, restore_story


@dataclass(frozen=True)
class Program:
    """The program of an attempt: digests of the application and of its parts, version of Spark."""

    application: str
    parts: dict[str, str]
    spark: str


def begin(settings: Settings, program: Program) -> Attempt:
    """Verify where to start, take an epoch, and return the attempt.

    A driver that may not start ends with exit code 3 (no retry helps) or 79 (another attempt goes on).
    """
    store = settings.open_store()
    owner = settings.token.owner if settings.token else "script"
    journal = Journal(store, Keys(settings.prefix), By("driver", owner, socket.gethostname()))
    try:
        if settings.token is None:
            return _begin_alone(journal, settings, program)
        return _begin_launched(journal, settings, program)
    except (errors.Fenced, errors.JobAlreadyRunning, errors.JobSuspended) as error:
        refuse(journal, settings.launch, error, ExitCode.REFUSED if settings.token is None else ExitCode.OVER)
    except errors.CheckpointError as error:
        if isinstance(error, errors.StoreError) and not error.permanent:
            raise
        refuse(journal, settings.launch, error, ExitCode.REFUSED)


def refuse(journal: Journal, launch: int | None, error: errors.CheckpointError, code: ExitCode) -> NoReturn:
    """End a driver that may not start."""
    if launch is not None:
        tell_task(journal.store, journal.keys, launch, error)
    else:
        say(str(error))
    raise SystemExit(int(code))


def tell_task(store: Store, keys: Keys, launch: int, error: errors.CheckpointError) -> None:
    """Print the error, and write it where the task that launched this driver reads it."""
    say(launch_messages.refusal(error))
    Heart(
        store, keys.driver_beat(launch), Beat(launch=launch, refusal=RefusedStart(code=error.code, text=error.message))
    ).pulse()


def _begin_launched(journal: Journal, settings: Settings, program: Program) -> Attempt:
    assert settings.token
    assert settings.launch is not None
    with Heart(
        journal.store, journal.keys.driver_beat(settings.launch), Beat(launch=settings.launch, activity="starting")
    ):
        state = journal.catch_up()
        if state.n < 0:
            raise errors.StoreMisconfigured(
                f"this driver sees no history at {journal.store.uri}/{journal.keys.prefix}, though Airflow has just"
                " written it. Make sure that both see the same storage under that path"
            )
        restored = examine(Coordinator(journal), state, state.restore_point(), told=settings.restore)
        driver = secrets.token_hex(16)
        start = _start_attempt(settings, program, driver, settings.token, settings.try_number)
        liveness = Liveness(journal.store)
        journal.append(
            lambda state: replace(start, seen_alive=_another_driver_lives(liveness, journal, state, settings.launch))
        )
        return _started(journal, driver, restored, settings)


def _begin_alone(journal: Journal, settings: Settings, program: Program) -> Attempt:
    """Begin an attempt of a script without Airflow. It continues the newest run, or begins a new one if that has finished."""
    before = journal.catch_up()
    if before.n < 0:
        probe(journal.store)
    liveness = Liveness(journal.store)
    if _job_lives(liveness, journal, before):
        raise _already_running(journal)
    base, restored = _where_to_start(journal, before, settings)
    driver = secrets.token_hex(16)
    began = utc_now()

    def start(state: State) -> c.StartAlone:
        spec = _alone_launch(state, settings, began)
        plan = c.PlanLaunch(
            spec=spec,
            incarnation=secrets.token_hex(16),
            job=settings.job,
            base=base,
            id_floor=restored.id_floor if base else 0,
            alone=True,
            seen_alive=state.last_epoch > before.last_epoch or _job_lives(liveness, journal, state),
        )
        return c.StartAlone(plan=plan, start=_start_attempt(settings, program, driver, spec.token, spec.try_number))

    try:
        journal.append(start)
    except errors.JobAlreadyRunning:  # another script was faster by a moment
        raise _already_running(journal) from None
    attempt = _started(journal, driver, restored, settings)
    say(restore_story.restore_story(journal.state, attempt.restored, restore_story.StoryFacts(root=settings.root)))
    return attempt


def _where_to_start(journal: Journal, state: State, settings: Settings) -> tuple[Point | None, Restored]:
    """Return the point that ``restore`` names, for a new run only, and the verified point from which the attempt starts."""
    new_run = not state.runs or state.runs[-1].outcome == "finished"
    if not new_run or settings.restore == "latest":
        return None, examine(Coordinator(journal), state, state.restore_point(), told=settings.restore)
    base = resolve(settings.restore, state, journal.store)
    return base, examine(Coordinator(journal), state, base, named=True, told=settings.restore)


def _alone_launch(state: State, settings: Settings, now: str) -> LaunchSpec:
    """Return the launch of a script without Airflow: the next try of its newest run, or the first of a new run."""
    newest = state.runs[-1] if state.runs else None
    if newest is None or newest.outcome == "finished":
        token, try_number, started_at = Token(dag="", run=f"alone-{state.next_launch}", task="script"), 1, now
    else:
        launch = state.launch(newest.launch)
        token = launch.spec.token if launch else Token(dag="", run=newest.key, task="script")
        try_number, started_at = (launch.latest_try if launch else 0) + 1, newest.started_at
    return LaunchSpec(
        token=token,
        try_number=try_number,
        owner="script",
        run=token.run,
        run_after=None,
        started_at=started_at,
        restore=settings.restore,
    )


def _start_attempt(settings: Settings, program: Program, driver: str, token: Token, try_number: int) -> c.StartAttempt:
    return c.StartAttempt(
        token=token,
        try_number=try_number,
        driver=driver,
        application_digest=program.application,
        application_parts=program.parts,
        versions=Versions(package=__version__, spark=program.spark),
        checkpointing=settings.config.to_json(),
    )


def _already_running(journal: Journal) -> errors.JobAlreadyRunning:
    """Return the error that names both processes: a script neither adopts nor fences a living process of its job."""
    beat = read_beat(journal.store, journal.keys.attempt_beat(journal.state.last_epoch))
    other, this = beat.process if beat else Process(), Process.this()
    return errors.JobAlreadyRunning(
        f"{journal.state.job} is already running: process {other.pid} on {other.host} (this is process {this.pid} on {this.host})."
        " Wait for it, stop it, or give this script another job_id"
    )


def _job_lives(liveness: Liveness, journal: Journal, state: State) -> bool:
    """Return whether the current launch lives in another process.

    An earlier attempt of this process has left its block, even if its end could not be written.
    """
    beats = {key: read_beat(journal.store, key) for key in beat_keys(journal.keys, state)}
    this = Process.this()
    return _lives(liveness, state, [key for key, beat in beats.items() if beat is None or beat.process != this])


def _another_driver_lives(liveness: Liveness, journal: Journal, state: State, launch: int | None) -> bool:
    """Return whether an attempt of ``launch`` lives."""
    attempt = state.attempt_of(launch)
    return _lives(
        liveness, state, (journal.keys.attempt_beat(attempt.epoch),) if attempt and not attempt.outcome else ()
    )


def _lives(liveness: Liveness, state: State, keys: Sequence[str]) -> bool:
    return liveness.wait(keys, functools.partial(say, restore_story.waits_for_heartbeat(state, liveness.beats.wait)))


def _started(journal: Journal, driver: str, restored: Restored, settings: Settings) -> Attempt:
    record = next(attempt for attempt in journal.state.attempts if attempt.driver == driver)
    if record.restore_point != restored.point:  # it changed since it was verified
        restored = examine(Coordinator(journal), journal.state, record.restore_point, told=settings.restore)
    run = journal.state.run_of(record.epoch)
    if run is None:
        raise errors.Refused("the journal does not list the run of this attempt")
    journal.by = replace(journal.by, epoch=record.epoch)
    attempt = Attempt(Coordinator(journal, record.epoch), record, run, restored)
    attempt.heart.pulse()  # before any observer asks whether it lives
    return attempt
