"""A barrier becomes a checkpoint: trigger, acknowledge, complete, retire. Runs in the Spark driver.

The synchronous part pins what is consistent; acknowledging and sealing go on in a thread while the job goes on. One checkpoint is
in flight at a time, and no stage's end is skipped. A store that fails costs protection, never rows: the job goes on, loudly.

A *gated* checkpoint is acknowledged at the next barrier with the same states, and left to who finalizes it (``Gates``).

Where objects are registered, triggering belongs to the synchronous part: as in Flink, a checkpoint has its id before anybody
is asked for a state. One that cannot say it declines whatever waited for the barrier.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from airflow_checkpoint_provider import __version__
from airflow_checkpoint_provider.checkpoint import texts
from airflow_checkpoint_provider.checkpoint.errors import (
    Busy,
    CheckpointError,
    Damaged,
    Declined,
    NotPending,
    Refused,
    StoreError,
)
from airflow_checkpoint_provider.checkpoint.failures import DECLINED
from airflow_checkpoint_provider.checkpoint.journal import utc_now
from airflow_checkpoint_provider.checkpoint.metadata import Acknowledgement, StateSnapshot, Versions
from airflow_checkpoint_provider.checkpoint.requests import ungated
from airflow_checkpoint_provider.checkpoint.state import RETAINED, Checkpoint, State
from airflow_checkpoint_provider.spark.attempt import Attempt
from airflow_checkpoint_provider.spark.log import say
from airflow_checkpoint_provider.spark.registered import Registered
from airflow_checkpoint_provider.spark.states import States, new_in

Held = dict[str, StateSnapshot]
"""What a completed checkpoint holds, by uid."""

REMIND = 300.0  # seconds between two lines saying that the job is not protected
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0  # seconds between two tries while the store fails
SWEPT_AT_ONCE = 1_000  # folders; the next start takes the rest
LATE = 10.0  # seconds that the abort of an expired one may take at the end of the job


class Barriers:
    """The checkpoints of one attempt, as its script reaches its barriers."""

    def __init__(
        self, attempt: Attempt, states: States, registered: Registered, spark_version: str, timeout_s: float
    ) -> None:
        self._attempt, self._states, self._registered, self._timeout_s = attempt, states, registered, timeout_s
        self._versions = Versions(package=__version__, spark=spark_version)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._flying: Future[Held] | None = None
        self._unsettled: int | None = None  # acknowledged, its outcome not known to us
        self._awaited = threading.Event()  # the job waits for the checkpoint in flight
        self._reached = 0.0  # when the barrier of the newest checkpoint was
        attempt.coordinator.journal.patience = min(attempt.coordinator.journal.patience, timeout_s)
        self._count = 0
        self.protection = Protection(attempt)
        self.gates = Gates(attempt)

    def reach(self, barrier: str, *, wait: bool = False) -> bool:
        """Take a checkpoint at this barrier, or serve the one that waits for it. If ``wait``: whether what there is to save is
        saved; raises ``Declined``."""
        self._registered.refuse_inside()
        self.settle()
        self._reached = time.monotonic()
        declined = self._ask(barrier)
        if declined:
            self._flying = self._pool.submit(self._decline, declined, barrier)
        else:
            self._flying = self._pool.submit(self._take, self._states.pinned(barrier), barrier)
        if wait:
            self.settle()
            if declined:
                raise declined
        return not wait or not (self._states.changed() or self._registered.unsaved)

    def settle(self) -> None:
        """Wait for the checkpoint in flight, and leave none whose outcome is not known if the store answers. Registered
        objects are told the outcomes."""
        if self._flying is not None:
            self._awaited.set()
            self._states.completed(self._flying.result())
            self._flying = None
            self._awaited.clear()
        if self._unsettled is not None:
            self._states.completed(self._settle_unknown(self._unsettled))
        self._registered.tell(self._attempt.state)

    def sweep(self) -> None:
        """Begin to delete what attempts that are over left behind: rows nobody acknowledged, checkpoints nobody sealed."""
        self._pool.submit(self._sweep)

    def close(self) -> None:
        """Wait for what is under way; while the store fails, not for longer than its last try."""
        self._awaited.set()
        self._pool.shutdown(wait=True)

    def awaited(self) -> bool:
        """Whether somebody asked for a checkpoint that no barrier has served yet."""
        return bool(self._waiting())

    def _ask(self, barrier: str) -> Declined | None:
        """The registered objects say their states, if there are any; why not."""
        if not self._registered:
            return None
        number = None
        if self._unsettled is None:  # else another barrier's is in the way
            with contextlib.suppress(CheckpointError):  # ``_take`` tries it again, and says it
                number = self._number(barrier)
        try:
            self._registered.snapshot(barrier, number)
        except Declined as declined:
            return declined
        return None

    def _decline(self, declined: Declined, barrier: str) -> Held:
        """Abort all that waited for this barrier. If none did, one is triggered for it: people see it, and it is counted."""
        held = {} if self._unsettled is None else self._settle_unknown(self._unsettled)
        self.protection.failed(f"the checkpoint at {barrier}", declined)
        try:
            if self._unsettled is None:
                self._number(barrier)
                with self._attempt.journal() as coordinator:
                    for one in self._waiting():
                        self._registered.asked_for(one.id)
                        missing = (self._attempt.record.application,)
                        coordinator.abort(one.id, DECLINED, missing=missing, words=declined.message)
                        say(texts.aborted(coordinator.state, coordinator.state.checkpoint(one.id) or one))
        except CheckpointError as error:
            self.protection.failed(f"to decline the checkpoint at {barrier}", error)
        return held

    def _waiting(self) -> tuple[Checkpoint, ...]:
        """The pending ones that no barrier has served yet."""
        return tuple(one for one in self._attempt.state.pending if one.id not in self.gates.passed)

    def _take(self, pinned: tuple[StateSnapshot, ...], barrier: str) -> Held:
        """The asynchronous part; what completed. Whatever fails is said; nothing here ends the job but a fence.

        While the store fails, and nobody waits for this, it is tried again: the next barrier may be hours away.
        """
        held: Held = {}
        wait, tried = FIRST_WAIT, False
        while True:
            settled = {} if self._unsettled is None else self._settle_unknown(self._unsettled)
            done = tried and bool(settled)
            taken: Held = {}
            if not done and self._unsettled is None:
                taken, tried = self._try(pinned, barrier), True
            held = taken or settled or held
            if done or taken or self.protection.failures == 0 or self._awaited.wait(wait):
                break
            wait = min(2 * wait, LONGEST_WAIT)
        self._retire()
        return held

    def _try(self, pinned: tuple[StateSnapshot, ...], barrier: str) -> Held:
        """What completed with these states, perhaps by an earlier word of this attempt; nothing if the store failed."""
        held: Held = {}
        try:
            # One that waited for us may have been aborted since it was seen, or hold an earlier word of ours.
            for _ in range(3):
                number = self._number(barrier)
                self._pass_gates(pinned)
                ack = self._acknowledgement(number, pinned)
                if stands := self._finish(ack):
                    held = {state.uid: state for state in stands.states}
                    if stands.nonce == ack.nonce:
                        break
            else:
                raise NotPending("three in a row were aborted by somebody else; `checkpoints show` says by whom")
        except CheckpointError as error:
            self.protection.failed(f"the checkpoint at {barrier}", error)
        return held

    def _number(self, barrier: str) -> int:
        """The pending checkpoint that waits for us and for nobody else, or a new one."""
        self._count += 1
        request = f"attempt {self._attempt.epoch} barrier {self._count}"
        with self._attempt.journal() as coordinator:
            if not ungated(coordinator.state):
                with contextlib.suppress(Busy):  # somebody asked for one since the journal was last read
                    return coordinator.trigger(request, timeout_s=self._timeout_s, barrier=barrier)
            return ungated(coordinator.state)[0].id

    def _pass_gates(self, pinned: tuple[StateSnapshot, ...]) -> None:
        """Acknowledge the gated ones too: those that were asked for before the checkpoint of this barrier was triggered."""
        with self._attempt.journal() as coordinator:
            for one in coordinator.state.pending:
                if one.gated and one.id not in self.gates.passed:
                    coordinator.acknowledge(self._acknowledgement(one.id, pinned))
                    self.gates.acknowledged(one)

    def _finish(self, ack: Acknowledgement) -> Acknowledgement | None:
        """The acknowledgement with which its checkpoint completed; None if somebody aborted that."""
        began = time.monotonic()
        with self._attempt.journal() as coordinator:
            stands: Acknowledgement | None = coordinator.acknowledge(ack)
            self._unsettled = ack.id
            try:
                coordinator.complete(ack.id)
            except NotPending:
                stands = None
            self._unsettled = None
            checkpoint = coordinator.state.checkpoint(ack.id)
        if stands and stands.nonce == ack.nonce:
            self._registered.stands_in(ack.id)
        if stands and checkpoint:
            self.protection.restored()
            say(texts.checkpoint_line(checkpoint, time.monotonic() - began))
        return stands

    def _acknowledgement(self, number: int, pinned: tuple[StateSnapshot, ...]) -> Acknowledgement:
        self._registered.asked_for(number)
        return Acknowledgement(
            inc=self._attempt.state.incarnation, id=number, application=self._attempt.record.application, epoch=self._attempt.epoch,
            nonce=secrets.token_hex(16), run=self._states.run, states=tuple(new_in(number, state) for state in pinned),
            run_values=self._states.run_values, versions=self._versions,
        )  # fmt: skip

    def _settle_unknown(self, number: int) -> Held:
        """Its acknowledgement may stand: complete it now, or abort it, so that the next can be triggered. What completed."""
        held: Held = {}
        try:
            with self._attempt.journal() as coordinator:
                found = coordinator.journal.catch_up().checkpoint(number)
                if found and not found.over and not found.completed_at:
                    self._complete_or_abort(number)
                found = coordinator.state.checkpoint(number)
                if found and found.status == RETAINED:
                    held = coordinator.read_seal(found).states
                    self.protection.restored()
                    say(texts.outcome_known(found))
                elif found and found.over:
                    say(texts.aborted(coordinator.state, found))
            self._unsettled = None
        except CheckpointError as error:
            self.protection.failed(f"chk-{number}", error)
        return held

    def _complete_or_abort(self, number: int) -> None:
        coordinator = self._attempt.coordinator
        checkpoint = coordinator.state.checkpoint(number)
        if time.monotonic() - self._reached > (checkpoint.timeout_s if checkpoint else self._timeout_s):
            coordinator.abort(number, "expired", phase="seal", words="the store did not answer in time")
            return
        try:
            coordinator.complete(number)
        except (NotPending, Damaged) as error:
            coordinator.abort(number, "store failed", phase="seal", missing=("",), words=error.message)

    def _retire(self) -> None:
        try:
            with self._attempt.journal() as coordinator:
                coordinator.retire()
        except StoreError as error:
            say(f"old checkpoints could not be deleted now, the next checkpoint tries again: {error}")
        except Refused:
            pass  # somebody else changed what we looked at: the next checkpoint looks again

    def _sweep(self) -> None:
        """Deleting needs no lock: nobody refers to an orphan again, however long this takes."""
        self._attempt.still_mine()
        try:
            with self._attempt.journal() as coordinator:
                orphans = coordinator.orphans()[:SWEPT_AT_ONCE]
            for key in orphans:
                coordinator.store.delete_under(key)
        except StoreError as error:
            say(f"leftovers of earlier attempts could not be deleted now, the next start tries again: {error}")


class Gates:
    """The gated checkpoints that this attempt has acknowledged: each waits for its finalize, one ``timeout`` long."""

    def __init__(self, attempt: Attempt, clock: Callable[[], float] = time.monotonic) -> None:
        self._attempt, self._clock = attempt, clock
        self.passed: dict[int, float] = {}  # id -> when its time is over

    def acknowledged(self, checkpoint: Checkpoint) -> None:
        self.passed[checkpoint.id] = self._clock() + checkpoint.timeout_s
        say(texts.gate_reached(checkpoint))

    def waiting(self) -> tuple[Checkpoint, ...]:
        """Those that have no outcome yet, as far as the journal was read."""
        return tuple(one for one in self._attempt.state.pending if one.id in self.passed)

    def look(self) -> None:
        """Say what became of them, and abort those whose time is over. Called once a second by the attempt's watch."""
        state = self._attempt.state  # not an older one: what was acknowledged meanwhile would look forgotten
        for number, deadline in list(self.passed.items()):
            found = state.checkpoint(number)
            if found is None or found.ended_at:
                self._tell(state, number)
            elif self._clock() > deadline:
                self._expire(found)

    def _tell(self, state: State, number: int) -> None:
        """Once, whichever thread is first."""
        found = state.checkpoint(number)
        if self.passed.pop(number, None) is not None and found is not None:
            for line in texts.checkpoint_lines(state, found):
                say(line)

    def _expire(self, checkpoint: Checkpoint) -> None:
        words = f"nobody finalized it within {checkpoint.timeout_s:g} s after it was acknowledged"
        with self._attempt.journal() as coordinator, contextlib.suppress(StoreError, NotPending):
            if self._attempt.ending:  # its last entry settles them all
                return
            coordinator.abort(checkpoint.id, "expired", phase="finalize", words=words)
            self._tell(coordinator.state, checkpoint.id)

    def wait(self, interrupted: Callable[[], bool]) -> None:
        """At the job's end: until each has its outcome, bounded by its time, or until there is something to do."""
        waiting = self.waiting()
        if not waiting:
            return
        say(texts.gates_awaited(waiting))
        deadline = max(self.passed.get(one.id, 0.0) for one in waiting) + LATE
        while self.waiting() and not interrupted() and self._clock() < deadline:
            time.sleep(0.2)


class Protection:
    """How long a crash would throw the job back, and who has been told."""

    def __init__(self, attempt: Attempt, clock: Callable[[], float] = time.monotonic) -> None:
        self._attempt, self._clock = attempt, clock
        self._lock = threading.Lock()
        self._since = clock()
        self._said = 0.0
        self._last = ""
        self.failures = 0

    def failed(self, what: str, error: CheckpointError) -> None:
        with self._lock:
            self.failures += 1
            self._last = f"{what}: {error.message}"
            first = self.failures == 1
        self.remind(at_once=first)

    def restored(self) -> None:
        """A checkpoint completed: a crash costs only what comes after it."""
        with self._lock:
            self.failures, self._since = 0, self._clock()
        self._attempt.heart.update(lambda beat: replace(beat, protected_since=utc_now()))

    def remind(self, at_once: bool = False) -> None:
        """Say it at the first failure and then every five minutes."""
        with self._lock:
            due = self.failures and (at_once or self._clock() - self._said >= REMIND)
            if not due:
                return
            self._said = self._clock()
            failures, last, cost = self.failures, self._last, self._clock() - self._since
        point = self._attempt.state.restore_point(self._attempt.record.application)
        say(texts.not_protected(last, failures, cost, point))
