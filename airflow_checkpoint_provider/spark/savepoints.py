"""Savepoints of a running job: each barrier serves those that were asked for before it. Runs in the Spark driver.

They are copied in a thread of their own, one after the other, so that neither the job nor its own checkpoints wait for them. A
savepoint that cannot be taken is aborted, with words that say what to do, and the job goes on. Only a stop is waited for: when its
savepoint is completed, the job is suspended, and nothing of the script runs after that barrier.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from airflow_checkpoint_provider.coordinator.disposal import publish_due, target_of
from airflow_checkpoint_provider.coordinator.garbage import delete_target
from airflow_checkpoint_provider.coordinator.savepoint import exported
from airflow_checkpoint_provider.errors import CheckpointError, CommitStateUnknown, NotPending
from airflow_checkpoint_provider.protocol.kinds import kind_named
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement, StateSnapshot
from airflow_checkpoint_provider.protocol.state import ABORTED, PENDING, RETAINED, Checkpoint
from airflow_checkpoint_provider.spark import copies
from airflow_checkpoint_provider.spark.attempt import Attempt
from airflow_checkpoint_provider.spark.log import say
from airflow_checkpoint_provider.text import messages

Pinned = tuple[StateSnapshot, ...]
AGAIN = 1.0  # seconds between two tries to learn what became of a stop


class Savepoints:
    """The savepoints of one attempt. ``acknowledgement`` makes the word of this attempt for the one of that id."""

    def __init__(self, attempt: Attempt, acknowledgement: Callable[[int, Pinned], Acknowledgement]) -> None:
        self._attempt, self._acknowledgement = attempt, acknowledgement
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="savepoint")
        self._begun: list[Future[None]] = []
        self._closing = threading.Event()
        self.taken: set[int] = set()  # begun, and not ended

    def stopping(self) -> Checkpoint | None:
        """The savepoint with which somebody asked the job to stop, as far as the journal was read."""
        return next((one for one in self._attempt.state.pending if kind_named(one.kind).suspends), None)

    def serve(self, asked: frozenset[str], pinned: Pinned, *, stop: bool) -> None:
        """Begin to take what these requests asked for, with the states of this barrier: in the order of ids, a stop last.

        ``stop``: the script waits at this barrier, so that one may be taken.
        """
        due = [one for one in self._attempt.state.pending if one.savepoint and one.request.token in asked]
        for one in sorted(due, key=lambda one: (kind_named(one.kind).suspends, one.id)):
            stops = kind_named(one.kind).suspends
            if one.id not in self.taken and (stop or not stops):
                self.taken.add(one.id)
                self._begun.append(self._pool.submit(self._stop if stops else self._take, one, pinned))

    def settle(self) -> None:
        """Wait for those that are begun."""
        while self._begun:
            self._begun.pop(0).result()

    def close(self) -> None:
        """What is being copied stops at the next file; the attempt's end aborts it."""
        self._closing.set()
        self._pool.shutdown(wait=True)

    def publish(self) -> None:
        """Those that are completed, whoever completed them, become what anyone can open by its directory."""
        try:
            with self._attempt.journal() as coordinator:
                publish_due(coordinator)
        except CheckpointError as error:
            say(messages.not_published(error.message))

    # -- one savepoint -----------------------------------------------------------------------------------------------

    def _take(self, one: Checkpoint, pinned: Pinned) -> None:
        try:
            self._copy_and_complete(one, pinned)
        except (copies.Over, NotPending):
            self._gone(one)
        except CommitStateUnknown as error:
            say(messages.not_known(one, error.message))
        except Exception as error:  # noqa: BLE001 - a savepoint is no reason for the job to end
            if not isinstance(error, CheckpointError | copies.Late):
                traceback.print_exc()
            self._abort(one, *copies.why_not(error, one))
        finally:
            self.taken.discard(one.id)

    def _copy_and_complete(self, one: Checkpoint, pinned: Pinned) -> None:
        began = time.monotonic()
        with self._attempt.journal() as coordinator:
            coordinator.still_mine()
            self._wanted(one)
            acknowledged = not coordinator.missing(one)  # at an earlier barrier, whose end the store did not tell
        if not acknowledged:
            self._copy(one, pinned, began + one.timeout_s)
        with self._attempt.journal() as coordinator:
            coordinator.still_mine()
            self._wanted(one)
            if not acknowledged:
                coordinator.acknowledge(self._acknowledgement(one.id, pinned))
            coordinator.complete(one.id)
            completed = coordinator.state.checkpoint(one.id) or one
        say(messages.checkpoint_line(completed, time.monotonic() - began))
        self.publish()

    def _copy(self, one: Checkpoint, pinned: Pinned, deadline: float) -> None:
        coordinator, pointer = self._attempt.coordinator, target_of(one)
        target = coordinator.store.beside(pointer.root)
        pairs = exported(pinned, coordinator.keys, pointer.keys)
        total = sum({group.path: group.bytes for state in pinned for group in state.groups}.values())
        if not pairs:  # else a stop could be completed whose target nobody can write
            target.overwrite(f"{pointer.name}/tried", b"")
            target.delete([f"{pointer.name}/tried"])
        check = functools.partial(self._wanted, one, deadline)
        copies.copy(messages.savepoint(one), coordinator.store, target, pairs, total, check)
        copies.verify(target, pointer.keys, pinned)

    def _wanted(self, one: Checkpoint, deadline: float = math.inf) -> None:
        copies.still_wanted(self._attempt, one.id, self._closing, deadline)

    def _is(self, one: Checkpoint) -> str:
        found = self._attempt.state.checkpoint(one.id)
        return found.status if found else ABORTED

    def _abort(self, one: Checkpoint, reason: str, words: str) -> None:
        try:
            with self._attempt.journal() as coordinator, contextlib.suppress(NotPending):
                coordinator.abort(one.id, reason, missing=(self._attempt.record.application,), words=words)
        except CheckpointError as error:
            say(messages.not_known(one, error.message))
        self._gone(one)

    def _gone(self, one: Checkpoint) -> None:
        """If it was aborted, whoever did that: say so, and take away what was copied."""
        state = self._attempt.state
        found = state.checkpoint(one.id)
        if found and found.status == ABORTED:
            say(messages.aborted(state, found))
            self._clear(one)

    def _clear(self, one: Checkpoint) -> None:
        with contextlib.suppress(CheckpointError):  # the next start tries it again
            delete_target(self._attempt.coordinator.store, one)

    # -- stopping ----------------------------------------------------------------------------------------------------

    def _stop(self, one: Checkpoint, pinned: Pinned) -> None:
        """Until its outcome is known: the script must not go on beside a suspension that may have been written."""
        deadline = time.monotonic() + one.timeout_s
        self._take(one, pinned)
        while self._is(one) == PENDING and not self._closing.wait(AGAIN):
            if time.monotonic() > deadline:
                raise CommitStateUnknown(
                    f"the store did not say whether the job was stopped with {one.target}; look at `checkpoints show`"
                )
            self.taken.add(one.id)
            self._take(one, pinned)

    def stop(self, one: Checkpoint, barrier: str) -> None:
        """End the process if ``one`` was completed; say so if it was aborted. Called by the script's own thread."""
        self.settle()
        state = self._attempt.state
        found = state.checkpoint(one.id) or one
        if found.status == RETAINED:
            self._attempt.end_suspended(lambda unended: messages.stopped(self._attempt.state, found, barrier, unended))
        if found.status == ABORTED:
            say(messages.goes_on(state, found))
