"""A driver without a Spark session: its checkpointer, the states that a test pins, and what its journal says. Runs anywhere."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.restore import Restored
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.checkpoints.checkpointer import Checkpointer
from airflow_checkpoint_provider.spark.checkpoints.participants import Participants
from airflow_checkpoint_provider.spark.sinks.commits import Commits
from airflow_checkpoint_provider.spark.sinks.sinks import Sinks
from airflow_checkpoint_provider.spark.state.registered import Registered
from airflow_checkpoint_provider.spark.state.snapshot import Check, FileSetFolder, Snapshot
from airflow_checkpoint_provider.spark.state.states import States
from airflow_checkpoint_provider.storage import Store
from tests.support.acknowledgements import bystander, driver, file_set, stage, upload, value
from tests.support.faults import Call, Fault


@dataclass
class Recording:
    """A snapshot that records its calls. ``wait_for``: what it waits for, asking ``check`` meanwhile."""

    uid: str
    content: int = 0
    error: Exception | None = None
    wait_for: threading.Event | threading.Barrier | None = None
    places: list[FileSetFolder | None] = field(default_factory=list)
    discarded: int = 0
    began: threading.Event = field(default_factory=threading.Event)

    def write(self, check: Check, place: FileSetFolder | None = None) -> StateSnapshot:
        self.places.append(place)
        self.began.set()
        if isinstance(self.wait_for, threading.Barrier):
            self.wait_for.wait(10)
        while isinstance(self.wait_for, threading.Event) and not self.wait_for.wait(0.01):
            check()
        if self.error:
            raise self.error
        return value(self.uid, 0, self.content)

    def discard(self) -> None:
        self.discarded += 1


class Copied(Recording):
    """A snapshot that is written at once. It waits, fails and calls ``on_copy`` only while it is copied to a place."""

    def __init__(self, *arguments: Any, on_copy: Callable[[], object] = lambda: None, **fields: Any) -> None:
        super().__init__(*arguments, **fields)
        self._on_copy = on_copy

    def write(self, check: Check, place: FileSetFolder | None = None) -> StateSnapshot:
        if place is None:
            return value(self.uid, 0, self.content)
        self._on_copy()
        return super().write(check, place)


class Pinned(States):
    """States whose snapshots a test hands in. None: the stages that it computes, and registered objects."""

    given: tuple[Recording, ...] | None = ()

    def pin(self, barrier: str, *, of_script: bool = True) -> Mapping[str, Snapshot]:
        if self.given is None:
            return super().pin(barrier, of_script=of_script)
        return {snapshot.uid: snapshot for snapshot in self.given}


class PlayedStreams:
    """Queries without states, whose data ends as the test says: with an ``error``, or never. ``calls``: what was asked of them."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.endless = False
        self.began = threading.Event()
        self.calls: list[str] = []

    def pin(self, barrier: str) -> Mapping[str, Snapshot]:
        return {}

    def rest(self, check: Check, *, drain: bool) -> None:
        if drain:
            self._drain(check)
        self.calls.append("pause")

    def _drain(self, check: Check) -> None:
        self.calls.append("drain")
        self.began.set()
        while self.endless:
            check()
        if self.error:
            raise self.error

    def resume(self) -> None:
        self.calls.append("resume")


class Driver:
    """The checkpointer of an attempt, and what its journal says."""

    def __init__(
        self,
        store: Store,
        try_number: int = 1,
        *,
        clock: Callable[[], float] = time.monotonic,
        streams: Callable[[Attempt, States], Any] = lambda attempt, states: PlayedStreams(),
        **checkpointing: Any,
    ) -> None:
        self.coordinator = driver(store, try_number, **checkpointing)
        state = self.coordinator.state
        self.attempt = Attempt(self.coordinator, state.attempts[-1], state.runs[-1], Restored())
        self.states = Pinned("run")
        self.registered, self.streams = Registered(self.states, None), streams(self.attempt, self.states)
        config = CheckpointConfig(**checkpointing)
        self.sinks = Sinks(cast(Any, None), self.attempt, self.states)
        commits = Commits(self.attempt, self.sinks, clock)
        participants = Participants(self.states, self.registered, self.streams, self.sinks, commits)
        self.checkpointer = Checkpointer(self.attempt, participants, "4.2.0", config, clock)

    def pin(self, *snapshots: Recording) -> None:
        self.states.given = snapshots

    def stage(self, uid: str) -> str:
        """Compute a stage as ``Stages`` does, but without Spark. Return the path of its file set when the checkpoint ended."""
        self.states.given = None
        file_sets = self.attempt.file_sets
        made_of = file_set(uid, self.attempt.epoch, secrets.token_hex(4))
        with file_sets.stage(uid, self.states.snapshots):
            file_sets.write(made_of.path)
            upload(self.coordinator.store, self.coordinator, [made_of])
            self.states.hand_out(stage(uid, 0, made_of=made_of))
            self.checkpointer.checkpoint(f"stage '{uid}'")
            file_sets.read(made_of.path)
        self.checkpointer.wait()
        return made_of.path

    def task(self) -> Coordinator:
        """Return what a task uses: another reader of the same history."""
        coordinator = bystander(self.coordinator.store)
        coordinator.journal.catch_up()
        return coordinator

    def asked(self, kind: str = "checkpoint", **options: Any) -> int:
        """Let a task ask for a checkpoint, and the driver read it. Return its id."""
        fields: dict[str, Any] = {
            "token": f"task {self.coordinator.state.next_id}",
            "timeout_s": 60.0,
            "origin": "task",
        }
        number = self.task().trigger(Request(**fields | {"kind": kind} | options))
        self.catch_up()
        return number

    def listed(self, number: int) -> Checkpoint:
        checkpoint = self.task().state.checkpoint(number)
        assert checkpoint
        return checkpoint

    def settle_deletions(self) -> None:
        """Wait until everything that was submitted so far is deleted."""
        deleted = threading.Event()
        self.checkpointer._deletions.submit(deleted.set)
        assert deleted.wait(60)

    def catch_up(self) -> None:
        """Read the journal, as the attempt's watch does once a second."""
        with self.attempt.writer.exclusive() as coordinator:  # a deletion may write an entry
            coordinator.journal.catch_up()


class Left(Exception):
    """The driver's process ended here, with this exit code and last line."""

    def __init__(self, code: int, line: str) -> None:
        super().__init__(code, line)
        self.code, self.line = code, line


class Silence:
    """The plan of a store that serves all but the journal: from the first entry on, it does not answer for the journal.

    With ``calls``, it answers again after so many calls.
    """

    def __init__(self, calls: float = float("inf")) -> None:
        self.left, self.begun = calls, False

    def __call__(self, call: Call) -> Fault:
        if "/journal/" not in call.key:
            return Fault.NONE
        self.begun = self.begun or call.kind == "create"
        if not self.begun or self.left <= 0:
            return Fault.NONE
        self.left -= 1
        return Fault.DROPPED if call.kind == "create" else Fault.NOT_SENT


def ask(running: Driver, target: Store, kind: str = "savepoint", timeout_s: float = 60.0) -> int:
    return running.asked(kind, folder=target.uri, timeout_s=timeout_s)


def barrier(running: Driver, *snapshots: Recording, name: str = "here") -> None:
    """Reach a barrier, and wait for its checkpoint and its savepoints."""
    running.pin(*snapshots)
    running.checkpointer.checkpoint(name, wait=True)
    running.checkpointer.savepoints.wait_begun()
