"""Savepoints of a running job: each barrier serves the savepoints that were requested before it. Runs in the Spark driver.

A thread copies them, one after the other, so that neither the job nor its own checkpoints wait for them. A savepoint that
cannot be taken is aborted with a reason, and the job goes on. The script waits only for a stop: when its savepoint is
completed, the job is suspended, and the script does not go on after that barrier.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait

from airflow_checkpoint_provider.coordinator.garbage import delete_target
from airflow_checkpoint_provider.coordinator.savepoint import target_of
from airflow_checkpoint_provider.coordinator.savepoint_target import check_target
from airflow_checkpoint_provider.errors import CheckpointError, CommitStateUnknown, NotPending, StoreError
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, PENDING, RETAINED, Checkpoint
from airflow_checkpoint_provider.protocol.kinds import EXPIRED, kind_named
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.checkpoints import copies
from airflow_checkpoint_provider.spark.checkpoints.participants import Streams
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.process.workers import Workers
from airflow_checkpoint_provider.spark.state.snapshot import BarrierSnapshots, NotWanted, Records
from airflow_checkpoint_provider.text import messages

PAUSE = 0.1  # seconds between two polls whether a copy has returned
RETRY_PAUSE = 1.0  # seconds between two tries to learn the outcome of a stop


class Savepoints:
    """The savepoints of one attempt. ``acknowledgement`` returns the acknowledgement of the savepoint with an id, taken at a barrier."""

    def __init__(self, attempt: Attempt, acknowledgement: Callable[[int, Records, str], Acknowledgement]) -> None:
        self._attempt, self._acknowledgement = attempt, acknowledgement
        self._thread = Workers(1, "savepoint")
        self._begun: list[Future[None]] = []
        self._closing = threading.Event()
        self._taking: tuple[Checkpoint, float] | None = None  # the savepoint that the thread takes, and until when
        self._late: set[int] = set()  # ids of savepoints that were given up: a call of the store did not return in time
        self.taken: set[int] = set()  # ids of savepoints that have begun and not ended

    def serve(self, requests: frozenset[str], snapshots: BarrierSnapshots, *, stop: bool) -> None:
        """Start the savepoints of ``requests`` with the states of this barrier, in the order of their ids, a stop last.

        ``stop``: the script waits at this barrier, so a savepoint that stops the job may be taken. The snapshots are discarded after the
        last savepoint. Savepoints that could not be published before are published now.
        """
        pending = self._attempt.journal.state.pending
        due = [savepoint for savepoint in pending if savepoint.savepoint and savepoint.request.token in requests]
        for savepoint in sorted(due, key=lambda savepoint: (savepoint.suspends, savepoint.id)):
            stops = savepoint.suspends
            if self._hangs():
                self._expire(savepoint, "the copy of an earlier savepoint has not returned")
            elif savepoint.id not in self.taken and (stop or not stops):
                self.taken.add(savepoint.id)
                self._begun.append(self._thread.submit(self._stop if stops else self._take, savepoint, snapshots))
        # ``wait_begun`` raises errors. The rest is dropped here: an attempt may reach barriers for months.
        self._begun = [begun for begun in self._begun if not begun.done() or begun.exception()]
        self._begun.append(self._thread.submit(snapshots.discard))
        if any(not savepoint.published for savepoint in self._attempt.journal.state.savepoints):
            self._begun.append(self._thread.submit(self.publish))

    def wait_begun(self) -> None:
        """Wait for the savepoints that have begun. Do not wait for a savepoint if its call of the store does not return."""
        while self._begun and not self._hangs():
            if wait(self._begun[:1], PAUSE).done:
                self._begun.pop(0).result()

    def _hangs(self) -> bool:
        """Return whether the thread has not returned from a savepoint that the watch has given up."""
        taking = self._taking
        return taking is not None and taking[0].id in self._late

    def stop_copying(self) -> None:
        """Stop copying at the next file. The end of the attempt aborts pending savepoints."""
        self._closing.set()

    def close(self) -> None:
        """Stop copying, and wait for that."""
        self.stop_copying()
        while wait(self._begun, PAUSE).not_done and not self._hangs():
            pass
        self._thread.shutdown(wait=False)

    def publish(self) -> None:
        """Publish all completed savepoints, also those of earlier attempts. Log errors; the next start tries again."""
        try:
            self._attempt.writer.publish_savepoints()
        except CheckpointError as error:
            say(messages.not_published(error.message))

    # -- one savepoint -----------------------------------------------------------------------------------------------

    def _take(self, savepoint: Checkpoint, snapshots: BarrierSnapshots) -> None:
        try:
            with self._or_aborted(savepoint):
                self._copy_and_complete(savepoint, snapshots)
        finally:
            self.taken.discard(savepoint.id)

    @contextlib.contextmanager
    def _or_aborted(self, savepoint: Checkpoint) -> Iterator[None]:
        """Abort the savepoint, and log it, if this block fails. Leave it pending if the store does not tell its outcome."""
        try:
            yield
        except (NotWanted, NotPending):
            self._log_if_aborted(savepoint)
        except CommitStateUnknown as error:
            say(messages.not_known(savepoint, error.message))
        except Exception as error:  # noqa: BLE001 - a savepoint is no reason for the job to end
            if not isinstance(error, CheckpointError | copies.TooLate):
                traceback.print_exc()
            self._abort(savepoint, *copies.abort_reason(error, savepoint))

    def _copy_and_complete(self, savepoint: Checkpoint, snapshots: BarrierSnapshots) -> None:
        began = time.monotonic()
        deadline = began + savepoint.timeout_s
        with self._watched(savepoint, deadline):
            self._refuse_unwanted(savepoint)
            # Otherwise it was acknowledged at an earlier barrier, and the store did not tell the outcome.
            with self._attempt.writer.exclusive() as coordinator:
                missing = coordinator.missing(savepoint)
            if missing:
                check_target(self._attempt.store, target_of(savepoint).root)
                records = self._copy(savepoint, snapshots, deadline)
                self._refuse_unwanted(savepoint)
                in_time = functools.partial(copies.in_time, self._attempt, savepoint.id, deadline)
                self._attempt.writer.acknowledge(
                    self._acknowledgement(savepoint.id, records, snapshots.barrier), in_time
                )
            state = self._attempt.writer.complete(savepoint.id)
            say(messages.checkpoint_line(state.checkpoint(savepoint.id) or savepoint, time.monotonic() - began))
            self.publish()

    def _refuse_unwanted(self, savepoint: Checkpoint) -> None:
        self._attempt.writer.catch_up()
        copies.still_wanted(self._attempt, savepoint.id, self._closing)

    @contextlib.contextmanager
    def _watched(self, savepoint: Checkpoint, deadline: float) -> Iterator[None]:
        """Show the watch that the savepoint is taken in this block, and its deadline."""
        self._taking = savepoint, deadline
        try:
            yield
        finally:
            self._taking = None

    def expire_late(self) -> None:
        """Give up the savepoint that is taken if a call of the store does not return in time. The attempt's watch calls it."""
        taking = self._taking
        if taking is None or taking[0].id in self._late:
            return
        savepoint, deadline = taking
        if time.monotonic() > deadline + self._attempt.journal.patience:
            self._expire(savepoint, f"the storage of its target has not answered within {savepoint.timeout_s:g} s")

    def _expire(self, savepoint: Checkpoint, details: str) -> None:
        """Abort a savepoint that is not completed, without a look at its target, which may not answer."""
        with contextlib.suppress(StoreError):  # the watch looks again
            self._attempt.writer.abort(savepoint.id, EXPIRED, details=details)
            self._late.add(savepoint.id)
            if self._status(savepoint) == ABORTED:
                self._log_aborted(savepoint)
            else:
                say(messages.not_published(details))

    def _copy(self, savepoint: Checkpoint, snapshots: BarrierSnapshots, deadline: float) -> Records:
        check = functools.partial(copies.still_wanted, self._attempt, savepoint.id, self._closing, deadline)
        total = copies.total_bytes(snapshots.records(check))
        return snapshots.records(check, copies.SavepointTarget(self._attempt, savepoint, total))

    def _status(self, savepoint: Checkpoint) -> str:
        listed = self._attempt.journal.state.checkpoint(savepoint.id)
        return listed.status if listed else ABORTED

    def _abort(self, savepoint: Checkpoint, reason: str, details: str) -> None:
        try:
            self._attempt.writer.abort(savepoint.id, reason, details=details)
        except CheckpointError as error:
            say(messages.not_known(savepoint, error.message))
        self._log_if_aborted(savepoint)

    def _log_if_aborted(self, savepoint: Checkpoint) -> None:
        """If the savepoint was aborted, log it and delete its copied files."""
        if self._status(savepoint) == ABORTED:
            if savepoint.id not in self._late:
                self._log_aborted(savepoint)
            self._clear(savepoint)

    def _log_aborted(self, savepoint: Checkpoint) -> None:
        state = self._attempt.journal.state
        if listed := state.checkpoint(savepoint.id):
            say(messages.aborted(state, listed))

    def _clear(self, savepoint: Checkpoint) -> None:
        with contextlib.suppress(CheckpointError):  # the next start tries it again
            delete_target(self._attempt.store, savepoint)

    # -- stopping ----------------------------------------------------------------------------------------------------

    def brought_to_rest(self, savepoint: Checkpoint, streams: Streams) -> bool:
        """Stop the queries for the savepoint. If that fails, abort the savepoint and return False."""
        deadline = time.monotonic() + savepoint.timeout_s
        check = functools.partial(copies.still_wanted, self._attempt, savepoint.id, self._closing, deadline)
        with self._or_aborted(savepoint):
            streams.rest(check, drain=kind_named(savepoint.kind).drains)
            return True
        return False

    def _stop(self, savepoint: Checkpoint, snapshots: BarrierSnapshots) -> None:
        """Take the savepoint of a stop. Try until its outcome is known: the script must not go on if the suspension may have been written."""
        deadline = time.monotonic() + savepoint.timeout_s
        self._take(savepoint, snapshots)
        while self._status(savepoint) == PENDING and not self._closing.wait(RETRY_PAUSE):
            if time.monotonic() > deadline:
                raise CommitStateUnknown(
                    f"the store did not answer whether the job was stopped with {savepoint.target}; run `checkpoints show` to see it"
                )
            self.taken.add(savepoint.id)
            self._take(savepoint, snapshots)

    def stop(self, savepoint: Checkpoint, barrier: str) -> None:
        """End the process if the savepoint was completed; log it if it was aborted. Called by the script's own thread."""
        state = self._attempt.journal.state
        listed = state.checkpoint(savepoint.id) or savepoint
        if listed.status == RETAINED:
            self._attempt.end.suspended(
                lambda unended: messages.stopped(self._attempt.journal.state, listed, barrier, unended)
            )
        if listed.status == ABORTED:
            say(messages.goes_on(state, listed))
