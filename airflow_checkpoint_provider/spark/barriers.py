"""A barrier becomes a checkpoint: trigger, acknowledge, complete, retire. Runs in the Spark driver.

The synchronous part pins what is consistent; acknowledging and sealing go on in a thread while the job goes on. One checkpoint is
in flight at a time, and no stage's end is skipped. A store that fails costs protection, never rows: the job goes on, loudly.

A *gated* checkpoint is acknowledged at the next barrier with the same states, and left to who finalizes it (``Gates``).

Where objects are registered, triggering belongs to the synchronous part: as in Flink, a checkpoint has its id before anybody
is asked for a state. One that cannot say it declines whatever waited for the barrier.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

from airflow_checkpoint_provider import __version__
from airflow_checkpoint_provider.coordinator import garbage
from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.errors import (
    Busy,
    CheckpointError,
    Damaged,
    Declined,
    NotPending,
    Refused,
    StoreError,
    TooLarge,
)
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.failures import DECLINED, EXPIRED, STORE_FAILED
from airflow_checkpoint_provider.protocol.kinds import kind_named
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement, StateSnapshot, Versions
from airflow_checkpoint_provider.protocol.requests import ungated
from airflow_checkpoint_provider.protocol.state import ABORTED, RETAINED, Checkpoint
from airflow_checkpoint_provider.spark import copies
from airflow_checkpoint_provider.spark.attempt import Attempt
from airflow_checkpoint_provider.spark.log import say
from airflow_checkpoint_provider.spark.manual_completion import Gates
from airflow_checkpoint_provider.spark.protection import Protection
from airflow_checkpoint_provider.spark.savepoints import Pinned, Savepoints
from airflow_checkpoint_provider.spark.state.registered import Registered
from airflow_checkpoint_provider.spark.state.states import States, new_in
from airflow_checkpoint_provider.text import messages

Held = dict[str, StateSnapshot]
"""What a completed checkpoint holds, by uid."""

FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0  # seconds between two tries while the store fails
ENDED = "attempt ended"
SWEPT_AT_ONCE = 1_000  # folders; the next start takes the rest


class Barriers:
    """The checkpoints of one attempt, as its script reaches its barriers."""

    def __init__(
        self, attempt: Attempt, states: States, registered: Registered, spark_version: str, config: CheckpointConfig
    ) -> None:
        self._attempt, self._states, self._registered, self._timeout_s = attempt, states, registered, config.timeout_s
        self._versions = Versions(package=__version__, spark=spark_version)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._flying: Future[Held] | None = None
        self._unsettled: int | None = None  # acknowledged, its outcome not known to us
        self._awaited = threading.Event()  # the job waits for the checkpoint in flight
        self._closing = threading.Event()
        self._reached = 0.0  # when the barrier of the newest checkpoint was, or its turn in the queue came
        attempt.coordinator.journal.patience = min(attempt.coordinator.journal.patience, self._timeout_s)
        self._count = 0
        self._asked: frozenset[str] | None = (
            None  # the requests that stood in the journal when this barrier was reached
        )
        self.protection = Protection(attempt, config.tolerable_failures)
        self.gates = Gates(attempt)
        self.savepoints = Savepoints(attempt, self._word)

    def reach(self, barrier: str, *, wait: bool = False) -> bool:
        """Take a checkpoint at this barrier, or serve the one that waits for it. If ``wait``: whether what there is to save is
        saved; raises ``Declined``."""
        self._registered.refuse_inside()
        self.settle()
        self._reached, self._asked = time.monotonic(), None
        self.protection.begin()
        stop = self.savepoints.stopping()
        declined = self._ask(barrier)
        if declined:
            self._flying = self._pool.submit(self._decline, declined, barrier)
        else:
            self._flying = self._pool.submit(self._take, self._states.pinned(barrier), barrier, stop is not None)
        if wait or stop:
            self.settle()
        if stop:
            self.savepoints.stop(stop, barrier)
        if wait and declined:
            raise declined
        return not wait or not (self._states.changed() or self._registered.unsaved)

    def stop(self, barrier: str) -> None:
        """Between two stages: nothing more is computed if somebody has asked for a stop meanwhile."""
        if self.savepoints.stopping():
            self.reach(barrier)

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
        """Wait for what is under way; while the store fails, not for longer than its last try. A full checkpoint is not
        copied to its end: a plain one takes its place."""
        self._closing.set()
        self._awaited.set()
        self._pool.shutdown(wait=True)
        self.savepoints.close()

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
                        say(messages.aborted(coordinator.state, coordinator.state.checkpoint(one.id) or one))
        except CheckpointError as error:
            self.protection.failed(f"to decline the checkpoint at {barrier}", error)
        return held

    def _waiting(self) -> tuple[Checkpoint, ...]:
        """The pending ones that no barrier has served yet."""
        served = self.gates.passed.keys() | self.savepoints.taken
        return tuple(one for one in self._attempt.state.pending if one.id not in served)

    def _take(self, pinned: Pinned, barrier: str, stop: bool) -> Held:
        """The asynchronous part: the checkpoint of this barrier, then what else was asked for before it; what completed."""
        held = self._take_own(pinned, barrier)
        states = _as_held(pinned, held)
        while True:
            self._retire()  # which may let the next of the queue in
            due = any(one.request.token in (self._asked or ()) for one in ungated(self._attempt.state))
            if not due or self._closing.is_set():
                break
            self._reached = time.monotonic()
            if (more := self._try(states, barrier)) is None:
                break
            held = more or held
        self.savepoints.serve(self._asked or frozenset(), states, stop=stop)
        return held

    def _take_own(self, pinned: Pinned, barrier: str) -> Held:
        """What completed. Whatever fails is said; nothing here ends the job but a fence.

        While the store fails, and nobody waits for this, it is tried again: the next barrier may be hours away.
        """
        held: Held = {}
        wait, tried = FIRST_WAIT, False
        while True:
            settled = {} if self._unsettled is None else self._settle_unknown(self._unsettled)
            done = tried and bool(settled)
            taken: Held | None = None
            if not done and self._unsettled is None:
                taken, tried = self._try(pinned, barrier), True
            held = taken or settled or held
            if done or taken is not None or self._awaited.wait(wait):
                break
            wait = min(2 * wait, LONGEST_WAIT)
        return held

    def _try(self, pinned: Pinned, barrier: str) -> Held | None:
        """What completed with these states, perhaps by an earlier word of this attempt; nothing if they can never complete,
        and None if another try may succeed."""
        held: Held | None = None
        try:
            # One that waited for us may have been aborted since it was seen, or hold an earlier word of ours.
            for _ in range(3):
                number = self._number(barrier)
                self._pass_gates(number, pinned)
                states = self._states_for(number, pinned)
                if states is None:
                    continue
                ack = self._acknowledgement(number, states)
                if stands := self._finish(ack):
                    held = {state.uid: state for state in stands.states}
                    self._pass_gates(number, pinned)
                    if stands.nonce == ack.nonce:
                        break
            else:
                raise NotPending("three in a row were aborted by somebody else; `checkpoints show` says by whom")
        except TooLarge as error:  # it is aborted
            self.protection.failed(f"the checkpoint at {barrier}", error)
            held = {} if self._unsettled is None else self._settle_unknown(self._unsettled)
        except CheckpointError as error:
            self.protection.failed(f"the checkpoint at {barrier}", error)
        return held

    def _states_for(self, number: int, pinned: Pinned) -> Pinned | None:
        """What checkpoint ``number`` is to hold. None if it is a full one that is not copied: then it has its outcome."""
        found = self._attempt.state.checkpoint(number)
        if found is None or not kind_named(found.kind).full:
            return pinned
        deadline = self._reached + found.timeout_s
        check = functools.partial(copies.still_wanted, self._attempt, number, self._closing, deadline)
        try:
            return copies.written_anew(self._attempt, number, pinned, check)
        except copies.Over:
            self._abort_copy(found, ENDED, "its attempt ended before it was copied")
        except (copies.Late, CheckpointError) as error:
            self._abort_copy(found, *copies.why_not(error, found))
        return None

    def _abort_copy(self, one: Checkpoint, reason: str, words: str) -> None:
        """Unless it has another outcome already. Either is said."""
        with self._attempt.journal() as coordinator:
            with contextlib.suppress(NotPending):
                coordinator.abort(one.id, reason, missing=(self._attempt.record.application,), words=words)
            found = coordinator.state.checkpoint(one.id)
            if found and found.status == ABORTED:
                say(messages.aborted(coordinator.state, found))

    def _number(self, barrier: str) -> int:
        """The pending checkpoint that waits for us and for nobody else, or a new one."""
        self._count += 1
        request = f"attempt {self._attempt.epoch} barrier {self._count}"
        with self._attempt.journal() as coordinator:
            number = 0
            if not ungated(coordinator.state):
                with contextlib.suppress(Busy):  # somebody asked for one since the journal was last read
                    number = coordinator.trigger(Request(token=request, timeout_s=self._timeout_s, barrier=barrier))
            if self._asked is None:
                state = coordinator.state
                self._asked = frozenset(
                    (
                        *(pending.request.token for pending in state.pending),
                        *(queued.request.token for queued in state.queue),
                    )
                )
            return number or ungated(coordinator.state)[0].id

    def _pass_gates(self, number: int, pinned: Pinned) -> None:
        """Acknowledge the gated ones too that were asked for before checkpoint ``number`` or before this barrier, but none ahead
        of another that still waits: a higher id never holds older states, else a restore would go back behind what was told."""
        with self._attempt.journal() as coordinator:
            state = coordinator.state
            ahead = min((one.id for one in ungated(state)), default=state.next_id)
            for one in state.pending:
                due = one.id < ahead and (one.id < number or one.request.token in (self._asked or ()))
                if one.request.gated and due and one.id not in self.gates.passed:
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
            say(messages.checkpoint_line(checkpoint, time.monotonic() - began))
        return stands

    def _acknowledgement(self, number: int, pinned: Pinned) -> Acknowledgement:
        self._registered.asked_for(number)
        return self._word(number, pinned)

    def _word(self, number: int, pinned: Pinned) -> Acknowledgement:
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
                    say(messages.outcome_known(found))
                elif found and found.over:
                    say(messages.aborted(coordinator.state, found))
            self._unsettled = None
        except CheckpointError as error:
            self.protection.failed(f"chk-{number}", error)
        return held

    def _complete_or_abort(self, number: int) -> None:
        coordinator = self._attempt.coordinator
        checkpoint = coordinator.state.checkpoint(number)
        if time.monotonic() - self._reached > (checkpoint.timeout_s if checkpoint else self._timeout_s):
            coordinator.abort(number, EXPIRED, phase="seal", words="the store did not answer in time")
            return
        try:
            coordinator.complete(number)
        except (NotPending, Damaged) as error:
            coordinator.abort(number, STORE_FAILED, phase="seal", missing=("",), words=error.message)

    def _retire(self) -> None:
        """Deleting, which may take long, needs no lock: the watch goes on seeing a fence or a stop."""
        try:
            garbage.expire(self._attempt.journal, utc_now())
        except StoreError as error:
            say(f"old checkpoints could not be deleted now, the next checkpoint tries again: {error}")
        except Refused:
            pass  # somebody else changed what we looked at: the next checkpoint looks again

    def _sweep(self) -> None:
        """Deleting needs no lock: nobody refers to an orphan again, however long this takes."""
        self._attempt.still_mine()
        self.savepoints.publish()
        try:
            garbage.remove_orphans(self._attempt.journal, SWEPT_AT_ONCE)
        except StoreError as error:
            say(f"leftovers of earlier attempts could not be deleted now, the next start tries again: {error}")


def _as_held(pinned: Pinned, held: Held) -> Pinned:
    """The same states, with what the checkpoint that holds them says of when they were new."""
    return tuple(
        mine if (mine := held.get(one.uid)) and mine.groups == one.groups and mine.value == one.value else one
        for one in pinned
    )
