"""The asynchronous part of one barrier: trigger, write, acknowledge, complete. Runs in the Spark driver.

It runs in a thread while the job goes on. A failing store costs protection, never rows: errors are logged, and only a
newer attempt ends the job here.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Iterator, Mapping

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, Checkpoint
from airflow_checkpoint_provider.protocol.kinds import BARRIER, DECLINED, EXPIRED, kind_named
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement, StateSnapshot
from airflow_checkpoint_provider.protocol.requests import ungated
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark.checkpoints import copies
from airflow_checkpoint_provider.spark.checkpoints.context import (
    AbandonedCheckpoint,
    CheckpointContext,
    Outcome,
    Retry,
    TakenCheckpoint,
)
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.state.snapshot import BarrierSnapshots, NotWanted, Records
from airflow_checkpoint_provider.text import messages

FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0  # seconds between two tries while the store fails
TRIES = 3  # checkpoints in a row that other processes may abort while this barrier takes its own
ENDED = "attempt ended"
NOT_RETURNED = "the storage has not answered in time"


class CheckpointTask:
    """The checkpoint of one barrier, and the checkpoints that were requested before the script reached it.

    ``stop``: the savepoint with which the job stops, while the script waits. It takes the place of the barrier's own checkpoint, so that
    this savepoint is the only checkpoint of the moment at which the job stopped.
    """

    def __init__(self, context: CheckpointContext, barrier: str, stop: Checkpoint | None = None) -> None:
        self._context, self._barrier, self._stop = context, barrier, stop
        self._attempt = context.attempt
        self._reached = dict[int, float]()  # checkpoint -> when this barrier began to take it
        self._writing: int | None = None  # the checkpoint whose states are being written
        self._limit = 0.0  # when the present step must be over
        self._began = context.clock()
        self._tokens: frozenset[str] | None = None  # the requests in the journal when this barrier was reached
        # Pending checkpoint -> when the watch first saw that an object is asked
        self._asked_since: dict[int, float] = {}
        self._expired: set[int] = set()  # checkpoints that expired while an object was asked
        self._number: int | None = None  # the newest id that ``number`` returned
        if stop:
            self._note_requests(self._attempt.journal.state)

    def number(self) -> int:
        """Return the id of the pending checkpoint that waits for this barrier; trigger one if there is none."""
        if self._stop:
            self._number = self._stop.id
        else:
            self._number, state = self._context.trigger(BARRIER, self._barrier)
            self._note_requests(state)
            self._reached.setdefault(self._number, self._context.clock())
        return self._number

    def _note_requests(self, state: State) -> None:
        """Remember which requests wait for this barrier. Later ones wait for the next barrier."""
        if self._tokens is None:
            pending = (checkpoint.request.token for checkpoint in state.pending)
            self._tokens = frozenset((*pending, *(queued.request.token for queued in state.queue)))

    # -- the barrier's own checkpoint ------------------------------------------------------------------------------

    def run(self, snapshots: BarrierSnapshots) -> Mapping[str, StateSnapshot] | None:
        """Take all checkpoints of this barrier. Return the states that the newest completed one holds; None: none has completed."""
        self._begin_step()
        if not self._stop:
            self._take_checkpoints(snapshots)
        self._begin_step()
        self._context.savepoints.serve(self.requests, snapshots, stop=self._stop is not None)
        return snapshots.newest

    def _take_checkpoints(self, snapshots: BarrierSnapshots) -> None:
        """Take the barrier's own checkpoint, then those that were requested before it."""
        self._take_own(snapshots)
        while not self._context.closing.is_set():
            self._condemn_retired()  # this may make room for the next request of the queue
            if not any(
                checkpoint.request.token in self.requests for checkpoint in ungated(self._attempt.journal.state)
            ):
                break
            if isinstance(self._try(snapshots), Retry):
                break

    @property
    def requests(self) -> frozenset[str]:
        """Return the tokens of the requests that wait for this barrier."""
        return self._tokens or frozenset()

    def _take_own(self, snapshots: BarrierSnapshots) -> None:
        """Take the barrier's own checkpoint. Retry while the store fails and the script does not wait: the next barrier may be hours away."""
        pause, tried = FIRST_WAIT, False
        while True:
            outcome = self._read_outcome(snapshots)
            if tried and isinstance(outcome, TakenCheckpoint):
                return
            if not isinstance(outcome, Retry):
                outcome, tried = self._try(snapshots), True
            if not isinstance(outcome, Retry) or self._context.awaited.wait(pause):
                return
            pause = min(2 * pause, LONGEST_WAIT)

    def _read_outcome(self, snapshots: BarrierSnapshots) -> Outcome | None:
        self._begin_step()
        outcome = self._context.read_outcome()
        if isinstance(outcome, TakenCheckpoint):
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
                self._begin_step()
                number = self.number()
                self._acknowledge_gated(number, snapshots)
                taken = self._take(number, snapshots)
                if isinstance(taken, TakenCheckpoint):
                    outcome = taken
                    snapshots.completed(taken.states)
                    self._acknowledge_gated(number, snapshots)
                    if taken.holds_this_barrier:
                        return taken
                elif self._is_last(number):
                    return taken
            raise errors.NotPending(
                "three checkpoints in a row were aborted by other processes. Run `checkpoints show` to see them"
            )
        except errors.TooLarge as error:  # its coordinator has aborted it
            self._failed(error)
            known = self._read_outcome(snapshots)
            return known if isinstance(known, TakenCheckpoint) else AbandonedCheckpoint()
        except errors.CheckpointError as error:
            self._failed(error)
        return outcome

    def _is_last(self, number: int) -> bool:
        """Return whether the attempt ends, so that none is tried after checkpoint ``number``. A plain one takes the place of a full one."""
        checkpoint = self._attempt.journal.state.checkpoint(number)
        return self._context.closing.is_set() and not (checkpoint and kind_named(checkpoint.kind).full)

    def _take(self, number: int, snapshots: BarrierSnapshots) -> TakenCheckpoint | AbandonedCheckpoint:
        with self._written_in_time(number):
            records = self._records(number, snapshots)
            return self._complete(number, records) if records is not None else AbandonedCheckpoint()

    @contextlib.contextmanager
    def _written_in_time(self, number: int) -> Iterator[None]:
        """Let the watch abort checkpoint ``number`` if this block does not end in time."""
        self._writing, self._limit = number, self._deadline(number)
        try:
            yield
        finally:
            self._writing = None
            self._begin_step()

    def _failed(self, error: errors.CheckpointError) -> None:
        self._context.protection.failed(f"the checkpoint at {self._barrier}", error)

    def _records(self, number: int, snapshots: BarrierSnapshots) -> Records | None:
        """Write the states for checkpoint ``number``, and return their records; None if it was aborted instead."""
        checkpoint = self._attempt.journal.state.checkpoint(number)
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
            source, total = copies.CopyTarget.of(self._attempt), copies.total_bytes(records)
            return snapshots.records(check, copies.NewFileSets(self._attempt, f"chk-{number}", source, total))
        except NotWanted:
            self._abort(number, ENDED, "its attempt ended before its states were written")
        except Exception as error:  # noqa: BLE001 - a state that cannot be written does not end the job
            self._abort(number, *copies.abort_reason(error, checkpoint))
        return None

    def _deadline(self, number: int) -> float:
        """Return when checkpoint ``number`` expires. Its timeout begins when this barrier begins to take it."""
        checkpoint = self._attempt.journal.state.checkpoint(number)
        began = self._reached.setdefault(number, self._context.clock())
        return began + (checkpoint.timeout_s if checkpoint else self._context.timeout_s)

    def _begin_step(self) -> None:
        self._limit = self._context.clock() + self._context.timeout_s

    @property
    def overdue_s(self) -> float:
        """Return for how many seconds the present step is late: a call of the store does not return."""
        return max(0.0, self._context.clock() - self._limit)

    def expire_late(self) -> None:
        """Abort the checkpoint if its states are not written in time: a call of the store does not return. The watch calls it."""
        writing = self._writing
        if writing is not None and self.overdue_s > self._attempt.journal.patience:
            with contextlib.suppress(errors.StoreError):  # the watch looks again
                if self._attempt.journal.state.checkpoint(writing) in self._attempt.journal.state.pending:
                    self._abort(writing, EXPIRED, NOT_RETURNED)
                    self._failed(errors.StoreUnavailable(NOT_RETURNED))

    def _abort(self, number: int, reason: str, details: str) -> None:
        self._context.protection.aborting(number)
        checkpoint = self._attempt.writer.abort(number, reason, details=details)
        if checkpoint and checkpoint.status == ABORTED:
            say(messages.aborted(self._attempt.journal.state, checkpoint))

    def _complete(self, number: int, records: Records) -> TakenCheckpoint | AbandonedCheckpoint:
        began, context = time.monotonic(), self._context
        context.registered.expect_outcome(number)
        acknowledgement = context.acknowledgement(number, records, self._barrier)
        counted = self._acknowledge(acknowledgement)
        if counted is None:
            return AbandonedCheckpoint()
        context.unknown, context.deadline = number, self._deadline(number)
        try:
            checkpoint = self._attempt.writer.complete(number).checkpoint(number)
        except errors.NotPending:
            context.unknown = None
            return AbandonedCheckpoint()
        context.unknown = None
        own = counted.nonce == acknowledgement.nonce
        if own:
            context.registered.holds_newest(number)
        if checkpoint:
            context.protection.completed()
            context.say_completed(checkpoint, time.monotonic() - began)
        return TakenCheckpoint({state.uid: state for state in counted.states}, holds_this_barrier=own)

    def _acknowledge(self, acknowledgement: Acknowledgement) -> Acknowledgement | None:
        """Write an acknowledgement, and return the one that counts. None if it came too late: then the checkpoint is aborted."""
        number, context = acknowledgement.id, self._context
        check = functools.partial(copies.in_time, self._attempt, number, self._deadline(number), context.clock)
        try:
            return self._attempt.writer.acknowledge(acknowledgement, check)
        except NotWanted:
            return None
        except copies.TooLate:
            self._abort(number, EXPIRED, NOT_RETURNED)
            return None

    def _acknowledge_gated(self, number: int, snapshots: BarrierSnapshots) -> None:
        """Acknowledge pending gated checkpoints that were requested before checkpoint ``number`` or before this barrier.

        Ids must be acknowledged in order, so that a higher id never holds older states. Else a restore could go back to
        before an outcome that the job was notified of.
        """
        state = self._attempt.journal.state
        ahead = min((checkpoint.id for checkpoint in ungated(state)), default=state.next_id)
        for checkpoint in state.pending:
            requested = checkpoint.id < number or checkpoint.request.token in self.requests
            due = checkpoint.request.gated and checkpoint.id < ahead and requested
            if due and checkpoint.id not in self._context.gated_checkpoints.deadlines:
                with self._written_in_time(checkpoint.id):
                    records = self._records(checkpoint.id, snapshots)
                    if records is None:
                        continue
                    self._context.registered.expect_outcome(checkpoint.id)
                    if self._acknowledge(self._context.acknowledgement(checkpoint.id, records, self._barrier)):
                        self._context.gated_checkpoints.acknowledged(checkpoint)

    def _condemn_retired(self) -> None:
        """Condemn the checkpoints that the retention policy no longer keeps, and let them be deleted."""
        self._begin_step()
        try:
            self._attempt.writer.condemn_retired()
        except (errors.StoreError, errors.TooLarge) as error:
            self._context.not_deleted(error)
        except errors.Refused:
            pass  # the journal changed meanwhile: the next checkpoint tries again
        self._context.deletions.submit(self._attempt.writer.delete_condemned)

    # -- registered objects ----------------------------------------------------------------------------------------

    def expire(self, asked: str) -> None:
        """Abort each checkpoint whose timeout has passed while the object of ``asked`` does not return. The attempt's watch calls it."""
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

        If ``number`` is None, the store did not give an id. Then trigger a checkpoint first, so that the failure is listed and counted. The
        next barrier serves the other checkpoints that wait.
        """
        self._begin_step()
        outcome = self._context.read_outcome()
        try:
            if self._context.unknown is None and number not in self._expired:
                number = number or self.number()
                self._context.registered.expect_outcome(number)
                self._abort(number, DECLINED, declined.message)
            self._expire_waiting(declined)
        except errors.CheckpointError as error:
            self._context.protection.failed(f"to decline the checkpoint at {self._barrier}", error)
        self._failed(declined)
        return outcome.states if isinstance(outcome, TakenCheckpoint) else None

    def _expire_waiting(self, declined: errors.Declined) -> None:
        """Abort each checkpoint that has waited since an earlier barrier for longer than its timeout."""
        waiting = [checkpoint for checkpoint in self._context.unserved() if checkpoint.request.token in self.requests]
        earlier = self._context.waiting_since
        self._context.waiting_since = {checkpoint.id: earlier.get(checkpoint.id, self._began) for checkpoint in waiting}
        for checkpoint in waiting:
            if self._context.clock() > earlier.get(checkpoint.id, math.inf) + checkpoint.timeout_s:
                details = f"no barrier could serve it within {checkpoint.timeout_s:g} s: {declined.message}"
                self._abort(checkpoint.id, EXPIRED, details)
