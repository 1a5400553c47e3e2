"""The asynchronous part of one barrier: trigger, write, acknowledge, complete. Runs in the Spark driver.

It runs in a thread while the job goes on. A failing store costs protection, never rows: errors are logged, and only a
newer attempt ends the job here.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.kinds import BARRIER, DECLINED, EXPIRED, SEAL, STORE_FAILED, kind_named
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement, StateSnapshot, Versions
from airflow_checkpoint_provider.protocol.requests import ungated
from airflow_checkpoint_provider.protocol.state import ABORTED, RETAINED, Checkpoint, State
from airflow_checkpoint_provider.spark import copies
from airflow_checkpoint_provider.spark.attempt import Attempt
from airflow_checkpoint_provider.spark.deletions import NOT_DELETED, Deletions
from airflow_checkpoint_provider.spark.log import say
from airflow_checkpoint_provider.spark.manual_completion import ManualCompletion
from airflow_checkpoint_provider.spark.protection import Protection
from airflow_checkpoint_provider.spark.savepoints import Savepoints
from airflow_checkpoint_provider.spark.state.registered import Registered
from airflow_checkpoint_provider.spark.state.snapshot import BarrierSnapshots, Records
from airflow_checkpoint_provider.spark.state.states import States, new_in
from airflow_checkpoint_provider.text import messages

FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0  # seconds between two tries while the store fails
TRIES = 3  # checkpoints in a row that somebody else may abort while this barrier takes its own
ENDED = "attempt ended"


@dataclass(frozen=True)
class Completed:
    """The checkpoint completed. ``states`` are its states by uid."""

    states: Mapping[str, StateSnapshot]
    holds_this_barrier: bool = True
    """False if an earlier acknowledgement of this attempt completed it, with the states of that barrier."""


@dataclass(frozen=True)
class Aborted:
    """The checkpoint can never complete. The next barrier takes another."""


@dataclass(frozen=True)
class Retry:
    """The store failed. Another try may succeed."""


Outcome = Completed | Aborted | Retry


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
    unsettled: int | None = None  # id of an acknowledged checkpoint whose outcome the store did not tell
    deadline: float = 0.0  # of the unsettled checkpoint, a moment of ``clock``
    # Checkpoints that wait for another barrier, because an object declined -> when their first barrier was reached
    waiting_since: dict[int, float] = field(default_factory=dict)
    counter: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.manual = ManualCompletion(self.attempt, self.clock)
        self.savepoints = Savepoints(self.attempt, self.acknowledgement)
        self.deletions = Deletions(self.not_deleted, self.clock)

    def not_deleted(self, error: errors.CheckpointError) -> None:
        """Count that old checkpoints could not be deleted. At the end of the attempt, log it: what it saves is complete."""
        if self.closing.is_set():
            say(f"{NOT_DELETED}: {error}")
        else:
            self.protection.failed(NOT_DELETED, error)

    def unserved(self) -> tuple[Checkpoint, ...]:
        """Return the pending checkpoints that no barrier has served yet."""
        served = self.manual.deadlines.keys() | self.savepoints.taken
        return tuple(checkpoint for checkpoint in self.attempt.state.pending if checkpoint.id not in served)

    def acknowledgement(self, number: int, records: Records) -> Acknowledgement:
        """Return this attempt's acknowledgement of checkpoint ``number``."""
        return Acknowledgement(
            inc=self.attempt.state.incarnation,
            id=number,
            application=self.attempt.record.application,
            epoch=self.attempt.epoch,
            nonce=secrets.token_hex(16),
            run=self.states.run,
            states=tuple(new_in(number, record) for record in records),
            run_values=self.states.run_values,
            run_objects=self.states.run_objects,
            unused=self.states.unused_stages(),
            versions=self.versions,
        )

    def request(self, origin: str, barrier: str = "", pause_left_s: float = 0.0) -> tuple[int, State]:
        """Trigger a checkpoint of this attempt, unless one is pending already. Return its id and the state that lists it."""
        token = f"attempt {self.attempt.epoch} {origin} {next(self.counter)}"
        request = Request(token=token, timeout_s=self.timeout_s, barrier=barrier, origin=origin)
        return self.attempt.trigger_unless_pending(request, pause_left_s)

    def settle(self) -> Outcome | None:
        """Complete or abort the checkpoint whose outcome is unknown. Return the outcome; None if there is no such checkpoint."""
        if self.unsettled is None:
            return None
        number = self.unsettled
        try:
            outcome = self._settled(number)
        except errors.CheckpointError as error:
            self.protection.failed(f"chk-{number}", error)
            return Retry()
        self.unsettled = None
        return outcome

    def _settled(self, number: int) -> Outcome:
        checkpoint = self.attempt.catch_up().checkpoint(number)
        if checkpoint and not checkpoint.over and not checkpoint.completed_at:
            checkpoint = self._complete_or_abort(number)
        if checkpoint and checkpoint.status == RETAINED:
            states = self.attempt.sealed_states(checkpoint)
            self.protection.completed()
            say(messages.outcome_known(checkpoint))
            return Completed(states)
        if checkpoint and checkpoint.over:
            say(messages.aborted(self.attempt.state, checkpoint))
        return Aborted()

    def _complete_or_abort(self, number: int) -> Checkpoint | None:
        if self.clock() > self.deadline:
            details = "the store did not answer in time"
            return self.attempt.abort(number, EXPIRED, phase=SEAL, details=details)
        try:
            return self.attempt.complete(number).checkpoint(number)
        except (errors.NotPending, errors.Damaged) as error:
            return self.attempt.abort(number, STORE_FAILED, phase=SEAL, details=error.message)


class CheckpointTask:
    """The checkpoint of one barrier, and the checkpoints that were requested before the script reached it.

    ``stop``: the savepoint with which the job stops, while the script waits. It takes the place of the barrier's own
    checkpoint, so that the job has no other checkpoint of the moment at which it stopped.
    """

    def __init__(self, context: CheckpointContext, barrier: str, stop: Checkpoint | None = None) -> None:
        self._context, self._barrier, self._stop = context, barrier, stop
        self._attempt = context.attempt
        self._reached = context.clock()  # the barrier, or the turn of a checkpoint that waited in the queue
        self._tokens: frozenset[str] | None = None  # the requests in the journal when this barrier was reached
        # Pending checkpoint -> when the watch first saw that an object is asked
        self._asked_since: dict[int, float] = {}
        self._expired: set[int] = set()  # checkpoints that expired while an object was asked
        self._number: int | None = None  # the newest id that ``number`` returned
        if stop:
            self._note_requests(self._attempt.state)

    def number(self) -> int:
        """Return the id of the pending checkpoint that waits for this barrier; trigger one if there is none."""
        if self._stop:
            self._number = self._stop.id
        else:
            self._number, state = self._context.request(BARRIER, self._barrier)
            self._note_requests(state)
        return self._number

    def _note_requests(self, state: State) -> None:
        """Remember which requests wait for this barrier. Later ones wait for the next barrier."""
        if self._tokens is None:
            pending = (checkpoint.request.token for checkpoint in state.pending)
            self._tokens = frozenset((*pending, *(queued.request.token for queued in state.queue)))

    # -- the barrier's own checkpoint ------------------------------------------------------------------------------

    def run(self, snapshots: BarrierSnapshots) -> Mapping[str, StateSnapshot] | None:
        """Take all checkpoints of this barrier. Return the states that the newest completed one holds; None: none has completed."""
        if not self._stop:
            self._take_checkpoints(snapshots)
        self._context.savepoints.serve(self._requests, snapshots, stop=self._stop is not None)
        return snapshots.newest

    def _take_checkpoints(self, snapshots: BarrierSnapshots) -> None:
        """Take the barrier's own checkpoint, then those that were requested before it."""
        self._take_own(snapshots)
        while not self._context.closing.is_set():
            self._expire()  # which may let the next request of the queue in
            if not any(checkpoint.request.token in self._requests for checkpoint in ungated(self._attempt.state)):
                break
            self._reached = self._context.clock()
            if isinstance(self._try(snapshots), Retry):
                break

    @property
    def _requests(self) -> frozenset[str]:
        return self._tokens or frozenset()

    def _take_own(self, snapshots: BarrierSnapshots) -> None:
        """Retry while the store fails and the script does not wait: the next barrier may be hours away."""
        pause, tried = FIRST_WAIT, False
        while True:
            outcome = self._settle(snapshots)
            if tried and isinstance(outcome, Completed):
                return
            if not isinstance(outcome, Retry):
                outcome, tried = self._try(snapshots), True
            if not isinstance(outcome, Retry) or self._context.awaited.wait(pause):
                return
            pause = min(2 * pause, LONGEST_WAIT)

    def _settle(self, snapshots: BarrierSnapshots) -> Outcome | None:
        outcome = self._context.settle()
        if isinstance(outcome, Completed):
            snapshots.completed(outcome.states)
        return outcome

    def _try(self, snapshots: BarrierSnapshots) -> Outcome:
        """Complete one checkpoint with the states of this barrier.

        The pending checkpoint that waited for it may have been aborted meanwhile, or hold an earlier acknowledgement of
        this attempt: then the next one is taken.
        """
        outcome: Outcome = Retry()
        try:
            for _ in range(TRIES):
                number = self.number()
                self._acknowledge_gated(number, snapshots)
                records = self._records(number, snapshots)
                taken = self._complete(number, records) if records is not None else Aborted()
                if isinstance(taken, Completed):
                    outcome = taken
                    snapshots.completed(taken.states)
                    self._acknowledge_gated(number, snapshots)
                    if taken.holds_this_barrier:
                        return taken
            raise errors.NotPending(
                "three checkpoints in a row were aborted by other processes. Run `checkpoints show` to see them"
            )
        except errors.TooLarge as error:  # its coordinator has aborted it
            self._failed(error)
            settled = self._settle(snapshots)
            return settled if isinstance(settled, Completed) else Aborted()
        except errors.CheckpointError as error:
            self._failed(error)
        return outcome

    def _failed(self, error: errors.CheckpointError) -> None:
        self._context.protection.failed(f"the checkpoint at {self._barrier}", error)

    def _records(self, number: int, snapshots: BarrierSnapshots) -> Records | None:
        """Write the states for checkpoint ``number``, and return their records; None if it was aborted instead."""
        checkpoint = self._attempt.state.checkpoint(number)
        if checkpoint is None:
            return None
        context = self._context
        check = functools.partial(
            copies.still_wanted, self._attempt, number, context.closing, self._deadline(number), context.clock
        )
        try:
            records = snapshots.records(check)
            if not kind_named(checkpoint.kind).full:
                return records
            source, total = copies.Location.of(self._attempt), copies.total_bytes(records)
            return snapshots.records(check, copies.NewFileSets(self._attempt, f"chk-{number}", source, total))
        except copies.NotWanted:
            self._abort(number, ENDED, "its attempt ended before its states were written")
        except Exception as error:  # noqa: BLE001 - a state that cannot be written does not end the job
            self._abort(number, *copies.abort_reason(error, checkpoint))
        return None

    def _deadline(self, number: int) -> float:
        """Return when checkpoint ``number`` expires. Its timeout begins at the barrier."""
        checkpoint = self._attempt.state.checkpoint(number)
        return self._reached + (checkpoint.timeout_s if checkpoint else self._context.timeout_s)

    def _abort(self, number: int, reason: str, details: str) -> None:
        self._context.protection.aborting(number)
        checkpoint = self._attempt.abort(number, reason, details=details)
        if checkpoint and checkpoint.status == ABORTED:
            say(messages.aborted(self._attempt.state, checkpoint))

    def _complete(self, number: int, records: Records) -> Completed | Aborted:
        began, context = time.monotonic(), self._context
        context.registered.expect_outcome(number)
        acknowledgement = context.acknowledgement(number, records)
        counted = self._attempt.acknowledge(acknowledgement)
        context.unsettled, context.deadline = number, self._deadline(number)
        try:
            checkpoint = self._attempt.complete(number).checkpoint(number)
        except errors.NotPending:
            context.unsettled = None
            return Aborted()
        context.unsettled = None
        own = counted.nonce == acknowledgement.nonce
        if own:
            context.registered.holds_newest(number)
        if checkpoint:
            context.protection.completed()
            say(messages.checkpoint_line(checkpoint, time.monotonic() - began))
        return Completed({state.uid: state for state in counted.states}, holds_this_barrier=own)

    def _acknowledge_gated(self, number: int, snapshots: BarrierSnapshots) -> None:
        """Acknowledge pending gated checkpoints that were requested before checkpoint ``number`` or before this barrier.

        Ids must be acknowledged in order, so that a higher id never holds older states. Else a restore could go back to
        before an outcome that the job was notified of.
        """
        state = self._attempt.state
        ahead = min((checkpoint.id for checkpoint in ungated(state)), default=state.next_id)
        for checkpoint in state.pending:
            requested = checkpoint.id < number or checkpoint.request.token in self._requests
            due = checkpoint.request.gated and checkpoint.id < ahead and requested
            if due and checkpoint.id not in self._context.manual.deadlines:
                records = self._records(checkpoint.id, snapshots)
                if records is not None:
                    self._context.registered.expect_outcome(checkpoint.id)
                    self._attempt.acknowledge(self._context.acknowledgement(checkpoint.id, records))
                    self._context.manual.acknowledged(checkpoint)

    def _expire(self) -> None:
        """Condemn the checkpoints that the retention policy no longer keeps, and let them be deleted."""
        try:
            self._attempt.condemn_expired()
        except (errors.StoreError, errors.TooLarge) as error:
            self._context.not_deleted(error)
        except errors.Refused:
            pass  # the journal changed meanwhile: the next checkpoint tries again
        self._context.deletions.submit(self._attempt.delete_condemned)

    # -- registered objects ----------------------------------------------------------------------------------------

    def expire(self, asked: str) -> None:
        """Abort what has waited for its timeout while the object of ``asked`` does not return. The attempt's watch calls it."""
        now = self._context.clock()
        for checkpoint in self._context.unserved():
            since = self._asked_since.setdefault(checkpoint.id, now)
            if now > since + checkpoint.timeout_s:
                self._expired.add(checkpoint.id)
                with contextlib.suppress(errors.StoreError):  # the watch looks again
                    self._abort(checkpoint.id, EXPIRED, f"{asked} has not returned within {checkpoint.timeout_s:g} s")

    def refuse_late(self, uid: str, method: str) -> None:
        """Raise ``Declined`` if the checkpoint expired while the object was asked: its state is discarded."""
        if self._number in self._expired:
            raise errors.Declined(
                f"'{uid}': {method} returned after chk-{self._number} had expired. Its state was discarded;"
                " the next barrier asks it again"
            )

    def decline(self, declined: errors.Declined, number: int | None) -> Mapping[str, StateSnapshot] | None:
        """Abort checkpoint ``number``, because a registered object gave no state for it.

        None: the store did not give an id. Then trigger a checkpoint first, so that the failure is listed and counted.
        Whatever else waits is asked for again at the next barrier.
        """
        settled = self._context.settle()
        try:
            if self._context.unsettled is None and number not in self._expired:
                number = number or self.number()
                self._context.registered.expect_outcome(number)
                self._abort(number, DECLINED, declined.message)
            self._expire_waiting(declined)
        except errors.CheckpointError as error:
            self._context.protection.failed(f"to decline the checkpoint at {self._barrier}", error)
        self._failed(declined)
        return settled.states if isinstance(settled, Completed) else None

    def _expire_waiting(self, declined: errors.Declined) -> None:
        """Abort what has waited since an earlier barrier for longer than its timeout."""
        waiting = [checkpoint for checkpoint in self._context.unserved() if checkpoint.request.token in self._requests]
        earlier = self._context.waiting_since
        self._context.waiting_since = {
            checkpoint.id: earlier.get(checkpoint.id, self._reached) for checkpoint in waiting
        }
        for checkpoint in waiting:
            if self._context.clock() > earlier.get(checkpoint.id, math.inf) + checkpoint.timeout_s:
                details = f"no barrier could serve it within {checkpoint.timeout_s:g} s: {declined.message}"
                self._abort(checkpoint.id, EXPIRED, details)
