"""The context of one attempt's checkpoints: shared objects and events, and the checkpoint whose outcome is unknown. Runs in the Spark driver."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.protocol.checkpoint_records import RETAINED, Checkpoint
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.kinds import EXPIRED, SEAL, STORE_FAILED
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement, StateSnapshot, Versions
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.attempt.protection import Protection
from airflow_checkpoint_provider.spark.checkpoints.deletions import NOT_DELETED, Deletions
from airflow_checkpoint_provider.spark.checkpoints.gated import GatedCheckpoints
from airflow_checkpoint_provider.spark.checkpoints.savepoints import Savepoints
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.state.registered import Registered
from airflow_checkpoint_provider.spark.state.snapshot import Records
from airflow_checkpoint_provider.spark.state.states import States, new_in
from airflow_checkpoint_provider.text import messages
from airflow_checkpoint_provider.text.part_messages import is_between

SAY_PARTS_EVERY = 60.0  # seconds


@dataclass(frozen=True)
class TakenCheckpoint:
    """The checkpoint completed. ``states`` are its states by uid."""

    states: Mapping[str, StateSnapshot]
    holds_this_barrier: bool = True
    """False if an earlier acknowledgement of this attempt completed it, with the states of that barrier."""


@dataclass(frozen=True)
class AbandonedCheckpoint:
    """The checkpoint can never complete. The next barrier takes another."""


@dataclass(frozen=True)
class Retry:
    """The store failed. Another try may succeed."""


Outcome = TakenCheckpoint | AbandonedCheckpoint | Retry


@dataclass
class CheckpointContext:
    """The objects and events that the checkpoints of one attempt share."""

    attempt: Attempt
    states: States
    registered: Registered
    protection: Protection
    versions: Versions
    timeout_s: float
    clock: Callable[[], float] = time.monotonic
    closing: threading.Event = field(default_factory=threading.Event)  # the attempt ends
    awaited: threading.Event = field(default_factory=threading.Event)  # the job waits for the checkpoint in flight
    unknown: int | None = None  # id of an acknowledged checkpoint whose outcome the store did not tell
    deadline: float = 0.0  # of the unknown checkpoint, a moment of ``clock``
    # Checkpoints that wait for another barrier, because an object declined -> when their first barrier was reached
    waiting_since: dict[int, float] = field(default_factory=dict)
    counter: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    said: float | None = None  # when the newest line about a completed checkpoint was logged, a moment of ``clock``

    def __post_init__(self) -> None:
        self.gated_checkpoints = GatedCheckpoints(self.attempt, self.clock)
        self.savepoints = Savepoints(self.attempt, self.acknowledgement)
        self.deletions = Deletions(self.not_deleted, self.clock)

    def not_deleted(self, error: errors.CheckpointError) -> None:
        """Count that old checkpoints could not be deleted. At the end of the attempt, only log it: no checkpoint depends on it any more."""
        if self.closing.is_set():
            say(f"{NOT_DELETED}: {error}")
        else:
            self.protection.failed(NOT_DELETED, error)

    def unserved(self) -> tuple[Checkpoint, ...]:
        """Return the pending checkpoints that no barrier has served yet."""
        served = self.gated_checkpoints.deadlines.keys() | self.savepoints.taken
        return tuple(checkpoint for checkpoint in self.attempt.journal.state.pending if checkpoint.id not in served)

    def acknowledgement(self, number: int, records: Records, barrier: str) -> Acknowledgement:
        """Return this attempt's acknowledgement of checkpoint ``number``."""
        return Acknowledgement(
            inc=self.attempt.journal.state.incarnation,
            id=number,
            application=self.attempt.record.application,
            epoch=self.attempt.epoch,
            nonce=secrets.token_hex(16),
            run=self.states.run,
            states=tuple(new_in(number, record) for record in records),
            run_values=self.states.run_values,
            run_objects=self.states.run_objects,
            unused=self.states.unused_stages(),
            barrier=barrier,
            versions=self.versions,
        )

    def trigger(self, origin: str, barrier: str = "", pause_left_s: float = 0.0) -> tuple[int, State]:
        """Trigger a checkpoint of this attempt, unless one is pending already. Return its id and the state that lists it."""
        token = f"attempt {self.attempt.epoch} {origin} {next(self.counter)}"
        request = Request(token=token, timeout_s=self.timeout_s, barrier=barrier, origin=origin)
        return self.attempt.writer.trigger_unless_pending(request, pause_left_s)

    def say_completed(self, checkpoint: Checkpoint, took: float) -> None:
        """Log that a checkpoint was completed. The ends of parts share one line a minute."""
        now = self.clock()
        if self.said is None or not is_between(checkpoint.request.barrier) or now >= self.said + SAY_PARTS_EVERY:
            self.said = now
            say(messages.checkpoint_line(checkpoint, took))

    def read_outcome(self) -> Outcome | None:
        """Complete or abort the checkpoint whose outcome is unknown. Return the outcome; None if there is no such checkpoint."""
        if self.unknown is None:
            return None
        number = self.unknown
        try:
            outcome = self._outcome(number)
        except errors.CheckpointError as error:
            self.protection.failed(f"chk-{number}", error)
            return Retry()
        self.unknown = None
        return outcome

    def _outcome(self, number: int) -> Outcome:
        checkpoint = self.attempt.writer.catch_up().checkpoint(number)
        if checkpoint and not checkpoint.over and not checkpoint.completed_at:
            checkpoint = self._complete_or_abort(number)
        if checkpoint and checkpoint.status == RETAINED:
            with self.attempt.writer.exclusive() as coordinator:
                states = coordinator.read_seal(checkpoint).states
            self.protection.completed()
            say(messages.outcome_known(checkpoint))
            return TakenCheckpoint(states)
        if checkpoint and checkpoint.over:
            say(messages.aborted(self.attempt.journal.state, checkpoint))
        return AbandonedCheckpoint()

    def _complete_or_abort(self, number: int) -> Checkpoint | None:
        if self.clock() > self.deadline:
            details = "the store did not answer in time"
            return self.attempt.writer.abort(number, EXPIRED, phase=SEAL, details=details)
        try:
            return self.attempt.writer.complete(number).checkpoint(number)
        except (errors.NotPending, errors.Damaged) as error:
            return self.attempt.writer.abort(number, STORE_FAILED, phase=SEAL, details=error.message)
