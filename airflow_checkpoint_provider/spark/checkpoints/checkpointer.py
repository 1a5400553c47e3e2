"""The checkpoints of one attempt: each barrier of the script takes one. Runs in the Spark driver.

The synchronous part pins the states. Writing, acknowledging and sealing go on in a thread while the job goes on. One
checkpoint is in flight at a time, and no stage's end is skipped.

Where objects are registered, triggering belongs to the synchronous part: as in Flink, a checkpoint has its id before any object is asked
for its state. An object that fails declines this checkpoint. Other requests that waited for the barrier are served at the next one. If an
object does not return, the checkpoints that wait expire; the attempt's watch aborts them.
"""

from __future__ import annotations

import contextlib
import enum
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from concurrent.futures import Future
from contextlib import AbstractContextManager

from airflow_checkpoint_provider import __version__
from airflow_checkpoint_provider.errors import (
    CheckpointError,
    CommitStateUnknown,
    Declined,
    MinPause,
    Queued,
    StoreError,
    StoreUnavailable,
)
from airflow_checkpoint_provider.protocol.checkpoint_records import CONDEMNED, Checkpoint
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.kinds import BARRIER, PERIODIC
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot, Versions
from airflow_checkpoint_provider.protocol.requests import stop_requested, ungated
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.attempt.protection import Protection
from airflow_checkpoint_provider.spark.checkpoints.confirmations import Confirmations
from airflow_checkpoint_provider.spark.checkpoints.context import CheckpointContext, TakenCheckpoint
from airflow_checkpoint_provider.spark.checkpoints.participants import Participants
from airflow_checkpoint_provider.spark.checkpoints.pause import Pause
from airflow_checkpoint_provider.spark.checkpoints.task import NOT_RETURNED, CheckpointTask
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.process.workers import Workers
from airflow_checkpoint_provider.spark.state.snapshot import BarrierSnapshots

PAUSE = 0.1  # seconds between two polls whether the checkpoint in flight is late
WRITERS = 4  # snapshots that are written at once
LAST_NOTIFICATION_TIMEOUT = 10.0  # seconds that an object may take in the background when the job ends
LAST_DELETION_TIMEOUT = 10.0  # seconds that deletions may take when the job ends
ORPHANS_PER_START = 1_000  # folders; the next start takes the rest


Script = Callable[[], AbstractContextManager[bool]]
"""Tells whether the script stands still, and keeps it so inside the block: it changes no value and no registered object."""


def at_barrier() -> AbstractContextManager[bool]:
    """Say that the script stands still, because it has called for this checkpoint."""
    return contextlib.nullcontext(True)


class Turn(enum.Enum):
    """The result of the timer's turn when its checkpoint was due."""

    TAKEN = "completed"
    FAILED = "not completed"
    WAITS = "in the queue, or until deletion has kept up"
    PAUSED = "until the pause after the checkpoint before is over"


class Checkpointer:
    """Takes the checkpoints of one attempt, one barrier after the other. Its methods may be called from any thread."""

    def __init__(
        self,
        attempt: Attempt,
        participants: Participants,
        spark_version: str,
        config: CheckpointConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._attempt, self._participants, self._lock = attempt, participants, attempt.barriers
        self._states, self._registered = participants.states, participants.registered
        self._sinks, self._commits = participants.sinks, participants.commits
        self._confirmations = Confirmations(attempt, participants)
        self._script: Script = at_barrier  # at the barrier that is being served
        self._thread, self._writers = Workers(1, "checkpoint"), Workers(WRITERS, "snapshot")
        self._in_flight: Future[Mapping[str, StateSnapshot] | None] | None = None
        self._task: CheckpointTask | None = None  # of the one in flight
        self._left = False  # a barrier has gone on without the one in flight: the storage has not answered in time
        self._saved = True  # the newest one that was waited for is completed
        self._asking: CheckpointTask | None = None  # the task whose barrier asks registered objects now
        self._ahead = False  # the rows of a stage are written, and its barrier is not reached yet
        attempt.journal.patience = min(attempt.journal.patience, config.timeout_s)
        self._context = CheckpointContext(
            attempt=attempt,
            states=participants.states,
            registered=participants.registered,
            protection=Protection(attempt, config.tolerable_failures, clock),
            versions=Versions(package=__version__, spark=spark_version),
            timeout_s=config.timeout_s,
            clock=clock,
        )
        self.protection = self._context.protection
        self.timeout_s = config.timeout_s
        self.pause = Pause(config.min_pause_s, lambda: attempt.journal.state, clock)
        self._config = config
        self.gated_checkpoints, self.savepoints = self._context.gated_checkpoints, self._context.savepoints
        self._deletions = self._context.deletions

    def checkpoint(self, barrier: str, *, wait: bool = False, script: Script = at_barrier) -> bool:
        """Take a checkpoint at this barrier, or serve the checkpoint that waits for it.

        With ``wait``, return False if not all states are saved, and raise ``Declined`` if a registered object declined. Without ``wait``,
        the result is not known yet, and the answer is True. If ``script`` does not stand still, its values are those of its last barrier,
        and no object is called. The script is kept still only while states are pinned and objects are called, and while the savepoint of a
        stop is taken.
        """
        self._registered.refuse_inside()
        with self._lock, self._barrier_of(script):
            free = self.wait()
            self.protection.begin()
            if not free:
                self._not_returned(barrier)
                return not wait
            declined = self._serve(barrier)
            if wait:
                self.wait()
            if wait and declined:
                raise declined
            if wait and script is at_barrier:
                self._commits.wait()
                self._confirmations.write()
            return not wait or self._all_saved()

    def _all_saved(self) -> bool:
        """Return whether the barrier's checkpoint holds all states. A query has always gone on, so with queries this barrier's own
        checkpoint must be completed.
        """
        if self._states.claimed_queries and not self._saved:
            return False
        unsaved = self._states.changed() or self._registered.unsaved or self._sinks.unsaved
        return self._script is not at_barrier or not unsaved

    @contextlib.contextmanager
    def _barrier_of(self, script: Script) -> Iterator[None]:
        before, self._script = self._script, script
        try:
            yield
        finally:
            self._script = before

    def _serve(self, barrier: str) -> Declined | None:
        """Take the barrier's own checkpoint, or the savepoint of a stop in its place. Return the error of a registered object.

        Tasks that wait for a checkpoint get it before the stop. If the savepoint fails, the barrier takes its own checkpoint after that.
        """
        stop = stop_requested(self._attempt.journal.state)
        if stop is None:
            self._participants.streams.resume()  # a stop whose outcome was unknown may have left them standing still
            return self._begin(barrier)
        if ungated(self._attempt.journal.state):
            declined = self._begin(barrier)
            return declined or (self._stop(stop, barrier) if self.wait() else None)
        return self._stop(stop, barrier) or self._begin(barrier)

    def _stop(self, savepoint: Checkpoint, barrier: str) -> Declined | None:
        """Drain the queries if asked to, take the savepoint of a stop, and end the process.

        If the savepoint fails, return: the job goes on. Return the error of a registered object that declined it.
        """
        declined = None
        try:
            at_rest = self.savepoints.brought_to_rest(savepoint, self._participants.streams)
            with self._script():  # the script must not go on when the job may be suspended
                if at_rest:
                    declined = self._save_stop(savepoint, barrier)
                self.savepoints.stop(savepoint, barrier)
        except CommitStateUnknown:  # the job may be suspended by now: no batch may begin
            raise
        except BaseException:
            self._participants.streams.resume()
            raise
        self._participants.streams.resume()
        return declined

    def _save_stop(self, savepoint: Checkpoint, barrier: str) -> Declined | None:
        """Take the savepoint of a stop. If it is completed, notify and close registered objects."""
        declined = self._begin(barrier, savepoint)
        if not declined:
            self._registered.expect_outcome(savepoint.id)
        self.wait()
        self.savepoints.wait_begun()
        listed = self._attempt.journal.state.checkpoint(savepoint.id)
        if listed and listed.completed_at:
            self._commit_last()
            self.notify_last()
        return declined

    def _commit_last(self) -> None:
        """Commit the rows of the savepoint with which the job stops. What fails is committed by the next attempt, which starts from it."""
        try:
            self._commits.wait()
        except CheckpointError as error:
            say(str(error))

    def _begin(self, barrier: str, stop: Checkpoint | None = None) -> Declined | None:
        """Pin the states and give them to the checkpoint thread. Return the error of a registered object that declined.

        ``stop``: the savepoint with which the job stops. It takes the place of the barrier's own checkpoint.
        """
        self._task = task = CheckpointTask(self._context, barrier, stop)
        number = self._number_for_objects(task)
        with self._script() as stands:
            declined = self._ask_registered(task, barrier, number) if stands else None
            pinned = () if declined else self._participants.pin(barrier, of_script=stands)
        if declined:
            self._in_flight = self._thread.submit(task.decline, declined, number)
        else:
            self._in_flight = self._thread.submit(task.run, BarrierSnapshots(pinned, self._writers, barrier))
        return declined

    def _number_for_objects(self, task: CheckpointTask) -> int | None:
        """Return the id that registered objects are given; None if there are none, or the store does not give it."""
        if self._registered and self._context.unknown is None:  # else an earlier checkpoint has no outcome yet
            with contextlib.suppress(CheckpointError):  # the task tries it again, and logs it
                return task.number()
        return None

    def _ask_registered(self, task: CheckpointTask, barrier: str, number: int | None) -> Declined | None:
        """Ask the registered objects for their states. Return the error of one that declined."""
        if not self._registered:
            return None
        self._asking = task
        try:
            self._registered.snapshot(barrier, number, task.refuse_late)
        except Declined as declined:
            return declined
        finally:
            self._asking = None
        return None

    def periodic_checkpoint(self, barrier: str, *, script: Script = at_barrier) -> Turn:
        """Take the timer's checkpoint, or serve the one that is pending already. A checkpoint that is only postponed is no failure."""
        with self._lock:
            free = self.await_in_flight()
            if free and not self.requested() and (turn := self._not_yet(barrier)):
                return turn
            taken = self.checkpoint(barrier, wait=True, script=script)
            return Turn.TAKEN if taken else Turn.FAILED

    def _not_yet(self, barrier: str) -> Turn | None:
        """Ask for the timer's checkpoint, unless a request waits already. Return why it cannot be taken now; None if it can."""
        state = self._attempt.journal.state
        crowded = len(state.with_status(CONDEMNED)) > self._config.max_concurrent
        if state.queue or (crowded and self._deletions.within(self._config.timeout_s)):
            return Turn.WAITS
        try:
            self._context.trigger(PERIODIC, barrier, self.pause.left_s())
        except Queued:
            return Turn.WAITS
        except MinPause:
            return Turn.PAUSED
        except CheckpointError:
            pass  # the checkpoint tries it again, and logs it
        return None

    def request(self, origin: str, barrier: str = "") -> int:
        """Ask for a checkpoint that the next barrier serves. Return the id of the pending checkpoint."""
        return self._context.trigger(origin, barrier)[0]

    def requested(self) -> bool:
        """Return whether a checkpoint is pending that no barrier has served yet."""
        return bool(self._context.unserved())

    def asked(self) -> bool:
        """Return whether somebody else waits for a checkpoint, and the one in flight does not serve that."""
        flying = self._in_flight is not None and not self._in_flight.done()
        served = self._task.requests if flying and self._task else frozenset()
        requests = (checkpoint.request for checkpoint in self._context.unserved())
        return any(one.origin not in (BARRIER, PERIODIC) and one.token not in served for one in requests)

    def stop_if_asked(self, barrier: str) -> None:
        """Take the checkpoint of a requested stop now, before the next stage computes anything."""
        if stop_requested(self._attempt.journal.state):
            self.checkpoint(barrier)

    def beside(self, call: Callable[[], object]) -> None:
        """Run ``call`` beside the script, as the snapshots are written."""
        self._writers.submit(call)

    def wait(self) -> bool:
        """Wait for the checkpoint in flight, read unknown outcomes if the store answers, and notify registered objects.

        Return False if the checkpoint in flight has not returned in time.
        """
        with self._lock:
            if not self.await_in_flight():
                return False
            outcome = self._context.read_outcome()
            if isinstance(outcome, TakenCheckpoint):
                self._states.completed(outcome.states)
                self._saved = True
            self._mark_unneeded()
            with self._script() as stands:
                if stands:
                    self._registered.notify(self._attempt.journal.state)
            self._commits.begin()
            self._confirmations.write()
            return True

    def await_in_flight(self) -> bool:
        """Wait for the checkpoint in flight, if there is one. Return False if it has not returned in time: the script goes on."""
        with self._lock:
            if self._in_flight is not None:
                self._context.awaited.set()
                if not self._returned(self._in_flight):
                    return False
                completed = self._in_flight.result()
                if completed is not None:
                    self._states.completed(completed)
                self._saved, self._in_flight, self._left = completed is not None, None, False
                self._context.awaited.clear()
            return True

    def _returned(self, in_flight: Future[Mapping[str, StateSnapshot] | None]) -> bool:
        """Wait until the checkpoint in flight has returned, at most as long as it may take. Count it as failed if it has not."""
        arrived, clock, patience_s = self._context.clock(), self._context.clock, self._attempt.journal.patience
        while not futures.wait([in_flight], 0.0 if self._left else PAUSE).done:
            late = self._task is not None and self._task.overdue_s > patience_s and clock() > arrived + patience_s
            if late and not self._left:
                self._left, self._saved = True, False
                self._not_returned("the barrier before")
            if self._left:
                return False
        return True

    def _not_returned(self, barrier: str) -> None:
        """Count the barrier as failed: it has no checkpoint, because the storage does not answer."""
        error = StoreUnavailable(f"{NOT_RETURNED}. The job continues without waiting for it")
        self.protection.failed(f"the checkpoint at {barrier}", error)

    def _mark_unneeded(self) -> None:
        """Delete file sets that neither a checkpoint nor the attempt needs, while nothing is written. A savepoint may copy any of them."""
        if self.savepoints.taken or stop_requested(self._attempt.journal.state):
            return
        if self._attempt.file_sets.mark_unneeded(self._attempt.journal.state, tuple(self._states.snapshots.values())):
            self._deletions.submit(self._attempt.writer.delete_unneeded)

    def on_watch(self) -> None:
        """Notify objects in the background, confirm commits to tasks, and let checkpoints expire. The watch calls it every second."""
        self.gated_checkpoints.on_watch()
        self.pause.update()
        self._deletions.report_late(self._config.timeout_s)
        if task := self._task:
            task.expire_late()
        self.savepoints.expire_late()
        if asking := self._asking:
            asking.expire(self._registered.asked)
        self._registered.notify_in_background(self._attempt.journal.state)
        self._commits.begin()
        self._confirmations.write()
        self.protection.enforce_limit()

    def delete_later(self, delete: Callable[[], None]) -> None:
        """Run ``delete`` in the thread of the deletions. It deletes files that no checkpoint holds."""
        self._deletions.submit(delete)

    def remove_garbage(self) -> None:
        """Start to delete files of attempts that are over: unacknowledged rows, unsealed checkpoints."""
        self._deletions.submit(self._remove_garbage)

    def _remove_garbage(self) -> None:
        """Delete without the lock: no later entry refers to an orphan."""
        self._attempt.writer.check_not_fenced()
        self.savepoints.publish()
        try:
            self._attempt.writer.remove_orphans(ORPHANS_PER_START)
        except StoreError as error:
            say(f"Leftovers of earlier attempts could not be deleted. The next start tries again: {error}")

    @contextlib.contextmanager
    def barrier_ahead(self) -> Iterator[None]:
        """Say that the rows of a stage are written. Its barrier follows in this block."""
        self._ahead = True
        try:
            yield
        finally:
            self._ahead = False

    def save_rows(self, timeout_s: float) -> bool:
        """Let the checkpoint of proved rows complete when the process ends. Return False if that takes more than ``timeout_s`` seconds.

        The script reaches the barrier of its stage, and the checkpoint thread takes the checkpoint, as always: both are Python alone. What
        needs Spark is given up, and nothing more is copied.
        """
        self._context.closing.set()
        self.savepoints.stop_copying()
        deadline = self._context.clock() + timeout_s
        while self._unsaved() and self._context.clock() < deadline:
            time.sleep(PAUSE)
        return not self._unsaved()

    def _unsaved(self) -> bool:
        in_flight = self._in_flight
        return self._ahead or (in_flight is not None and not in_flight.done())

    def close(self) -> None:
        """Wait for the checkpoint thread. While the store fails, its current try is the last.

        The copy of a full checkpoint stops. A plain checkpoint takes its place. A deletion gets some seconds.
        """
        self._context.closing.set()
        with contextlib.suppress(Exception):  # the job ends, whatever became of the checkpoint
            self.await_in_flight()
        self._thread.shutdown(wait=not self._left)
        self.savepoints.close()
        self._writers.shutdown(wait=False)
        self._deletions.close(LAST_DELETION_TIMEOUT)

    def notify_last(self) -> None:
        """Notify all objects of the last outcomes, at the end of the job, and close them. Background objects get some seconds."""
        self._registered.notify(self._attempt.journal.state)
        self._confirmations.write()
        self.close_objects()
        self._confirmations.write()

    def close_objects(self) -> None:
        """Close the registered objects that were not closed yet."""
        self._registered.close(LAST_NOTIFICATION_TIMEOUT)
