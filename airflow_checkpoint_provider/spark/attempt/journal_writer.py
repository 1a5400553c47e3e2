"""Writes the driver's entries to the journal, and deletes files that are no longer needed. Runs in the Spark driver."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from airflow_checkpoint_provider.coordinator import garbage
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.journal import Journal, age_now
from airflow_checkpoint_provider.coordinator.savepoint import publish_due
from airflow_checkpoint_provider.errors import AttemptEnding, Busy, Fenced, NotPending, StoreError
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.kinds import ACKNOWLEDGE
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement
from airflow_checkpoint_provider.protocol.requests import ungated
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark.attempt.file_sets import FileSets
from airflow_checkpoint_provider.spark.attempt.leaving import Leaving
from airflow_checkpoint_provider.spark.process.log import say


class JournalWriter:
    """The driver's coordinator, for one thread at a time. If another process has ended the attempt, its next write ends the process."""

    def __init__(self, coordinator: Coordinator, application: str, file_sets: FileSets, leaving: Leaving) -> None:
        self._coordinator, self._application = coordinator, application
        self._journal, self._file_sets, self._leaving = coordinator.journal, file_sets, leaving
        self._lock = threading.RLock()

    @contextmanager
    def exclusive(self) -> Iterator[Coordinator]:
        """Yield the coordinator to one thread at a time. If this attempt was replaced, its refusal ends the process.

        Raises ``AttemptEnding`` if this process has written the last entry itself.
        """
        with self._lock:
            try:
                yield self._coordinator
            except Fenced:
                self._leaving.replaced()

    def poll(self) -> State:
        """Read the journal once for a new entry, and return the state. Raises ``StoreError``."""
        with self._lock:
            return self._journal.poll()

    def catch_up(self) -> State:
        """Read the journal to its end, and return the state. End the process if this attempt was replaced.

        Raises ``AttemptEnding`` and ``StoreError``.
        """
        with self.exclusive() as coordinator:
            coordinator.check_not_fenced()
            return self._journal.state

    def check_not_fenced(self) -> None:
        """End the process if this attempt was replaced. Call it before any side effect. Raises ``AttemptEnding``.

        If the store does not answer, log it and return. If another thread ends the process, do not return.
        """
        self._leaving.if_begun()
        try:
            self.catch_up()
        except StoreError as error:
            say(
                f"The journal could not be read, so nobody knows whether this attempt was replaced. The job continues: {error}"
            )

    def append(self, command: c.Command) -> None:
        """Write the events of a command of this attempt. Raises what refuses it, and ``StoreError``."""
        with self.exclusive():
            self._journal.append(command)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def trigger_unless_pending(self, request: Request, pause_left_s: float = 0.0) -> tuple[int, State]:
        """Return the id of the pending checkpoint that waits for this attempt alone, and the state that lists it.

        Trigger one if there is none. Raises ``Queued`` if that must wait for its turn, and ``MinPause`` as the coordinator does.
        """
        with self.exclusive() as coordinator:
            number = 0
            if not ungated(self._journal.state):
                try:
                    number = coordinator.trigger(request, pause_left_s=pause_left_s)
                except Busy:
                    if not ungated(self._journal.state):  # else somebody asked for one since the journal was last read
                        raise
            return number or ungated(self._journal.state)[0].id, self._journal.state

    def acknowledge(self, acknowledgement: Acknowledgement, check: Callable[[], object]) -> Acknowledgement:
        """Write the acknowledgement. Return the one that counts: an earlier acknowledgement of this attempt wins.

        ``check`` raises if the checkpoint is no longer wanted. It is asked before, when no other thread writes, and afterwards: the
        store may have answered late.
        """
        with self.exclusive() as coordinator:
            check()
            self._file_sets.acknowledge(acknowledgement.id, acknowledgement.states)
            counting = coordinator.acknowledge(acknowledgement)
            check()
            return counting

    def complete(self, number: int) -> State:
        """Seal and complete a checkpoint. Return the state in which it is completed. Raises ``NotPending`` if it was aborted."""
        with self.exclusive() as coordinator:
            coordinator.complete(number)
            return self._journal.state

    def abort(self, number: int, reason: str, *, phase: str = ACKNOWLEDGE, details: str = "") -> Checkpoint | None:
        """Abort a checkpoint unless it has another outcome already. Return it as the journal lists it."""
        with self.exclusive() as coordinator:
            with contextlib.suppress(NotPending):
                missing = (self._application,) if phase == ACKNOWLEDGE else ()
                coordinator.abort(number, reason, phase=phase, missing=missing, details=details)
            return self._journal.state.checkpoint(number)

    def abort_unless_ending(self, number: int, reason: str, *, phase: str, details: str) -> Checkpoint | None:
        """Abort a checkpoint unless the attempt's last entry is being written, which aborts it, too."""
        with self._lock:
            return None if self._leaving.begun.is_set() else self.abort(number, reason, phase=phase, details=details)

    def confirm_commits(self, number: int) -> None:
        """Note in the journal that all participants were notified of the checkpoint, for a task that waits for it."""
        with self.exclusive() as coordinator:
            if not self._leaving.begun.is_set():  # else a restore notifies them
                coordinator.confirm_commits(number)

    def second_reader(self) -> Coordinator:
        """Return another coordinator, caught up, for operations that may take long: no other thread waits for it."""
        own = self._journal
        journal = Journal(own.store, own.keys, own.by, segment=own.segment, patience=own.patience)
        journal.catch_up()
        return Coordinator(journal)

    def publish_savepoints(self) -> None:
        """Let everybody open the completed savepoints by their directories. A target that does not answer delays no other thread."""
        if any(not savepoint.published for savepoint in self._journal.state.savepoints):
            publish_due(self.second_reader())

    def end_within(self, timeout_s: float, last: Callable[[State], c.EndAttempt]) -> bool:
        """Write the last entry. Return False if another thread writes for so many seconds. ``last`` returns it for the newest state.

        Raises what refuses it, and ``StoreError``.
        """
        if not self._lock.acquire(timeout=timeout_s):
            return False
        try:
            self._coordinator.end_attempt(last(self._journal.catch_up()))
            return True
        finally:
            self._lock.release()

    # -- deleting --------------------------------------------------------------------------------------------------

    def condemn_retired(self) -> None:
        """Condemn the checkpoints that the retention policy no longer keeps."""
        with self.exclusive() as coordinator:
            garbage.condemn(coordinator, age_now())

    def delete_condemned(self) -> None:
        """Delete and forget the condemned checkpoints. Raises ``AttemptEnding``.

        Only writing entries needs the lock, so the watch still notices during a deletion that this attempt was replaced.
        """
        garbage.delete_condemned(self._deleting, age_now(), self.check_deleting)

    def remove_orphans(self, limit: int) -> None:
        """Delete files of attempts that are over, at most ``limit`` folders. Deleting needs no lock. Raises ``AttemptEnding``."""
        garbage.remove_orphans(self._deleting, limit, self.check_deleting)

    def delete_unneeded(self) -> None:
        """Delete the folders that neither a checkpoint nor this attempt needs. Raises ``AttemptEnding``, and the first ``StoreError``."""
        journal, folders = self._journal, self._file_sets.unneeded()
        deleted, errors = garbage.delete_folders(journal.store, journal.keys, folders, self.check_deleting)
        self._file_sets.deleted(deleted)
        if errors:
            raise errors[0]

    @contextmanager
    def _deleting(self) -> Iterator[Coordinator]:
        """Yield the coordinator as ``exclusive`` does. Raises ``AttemptEnding``: the last entry of the attempt would fence any later one of
        it.
        """
        with self.exclusive() as coordinator:
            if self._leaving.begun.is_set():
                raise AttemptEnding.now()
            yield coordinator

    def check_deleting(self) -> None:
        """Raise ``AttemptEnding`` if the attempt ends. End the process if the watch has seen that another attempt replaced this one."""
        with self._deleting():
            self._leaving.if_over()
