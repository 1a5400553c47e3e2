"""One attempt of the application: its access to the journal, its watch, and its end. Runs in the Spark driver.

A thread reads the journal once a second. When the attempt is over, the process prints why and ends with exit code 79,
whatever its main thread is doing.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn

from airflow_checkpoint_provider.coordinator import garbage
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.journal import Journal, age_now, utc_now
from airflow_checkpoint_provider.coordinator.liveness import Beat, Heart, QueryProgress
from airflow_checkpoint_provider.coordinator.restore import Restored
from airflow_checkpoint_provider.coordinator.savepoint import publish_due
from airflow_checkpoint_provider.errors import Busy, CheckpointError, CommitStateUnknown, Fenced, NotPending, StoreError
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.protocol.kinds import ACKNOWLEDGE
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord, Run
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement, StateSnapshot
from airflow_checkpoint_provider.protocol.requests import ungated
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark.attempt.file_sets import FileSets
from airflow_checkpoint_provider.spark.process.exits import leave
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.storage import Store
from airflow_checkpoint_provider.text import messages, query_progress

POLL = 1.0  # seconds between two reads of the journal
END_TIMEOUT = 3.0  # seconds for the last entry after a signal; Airflow kills the driver after five


class AttemptEnding(Exception):
    """The attempt writes its last entry, so nothing more is begun."""


class Attempt:
    """The running attempt. The driver reads and writes the journal only here; ``lock`` admits one thread at a time."""

    def __init__(self, coordinator: Coordinator, record: AttemptRecord, run: Run, restored: Restored) -> None:
        self.coordinator, self.record, self.run, self.restored = coordinator, record, run, restored
        self.epoch = record.epoch
        paths = coordinator.state.paths()
        self.file_sets = FileSets([paths[number] for number in record.held_file_sets if number in paths])
        self.lock = threading.RLock()
        self.heart = Heart(coordinator.store, coordinator.keys.attempt_beat(self.epoch), Beat(epoch=self.epoch))
        self._over = threading.Event()
        self._leaving = threading.Event()  # another thread ends the process with its own exit code
        self._watch = threading.Thread(target=self._watch_journal, name="checkpoint-watch", daemon=True)
        self.on_state: Callable[[State], None] = lambda state: None
        self.stage: str | None = None  # the stage that is being computed
        self.queries: tuple[QueryProgress, ...] = ()  # that run
        self.draining: str | None = None  # the query that reads to its end before the job stops
        self._copying = ""  # the pointer whose files are copied before the script runs

    @property
    def state(self) -> State:
        return self.coordinator.state

    def doing(self) -> str:
        """Return what the driver is doing, for heartbeat and log."""
        if self._copying:
            return f"copying {self._copying}"
        if self.draining:
            return f"draining query '{self.draining}'"
        if self.stage:
            return f"stage '{self.stage}'"
        return query_progress.running(self.queries) or "the script's own code"

    def leave_if_over(self) -> None:
        """End the process if the watch has seen that this attempt is over. Reads nothing from the store."""
        if self.state.over(self.epoch):
            self.leave_replaced()

    def watch(self) -> None:
        """Start the heartbeat of the epoch, and read the journal once a second from now on."""
        self.heart.start()
        self._watch.start()

    @contextmanager
    def copying(self, source: str) -> Iterator[None]:
        """Show in the heartbeat that the driver copies ``source`` before it attaches."""
        self._copying = source
        self.heart.update(lambda beat: replace(beat, activity=self.doing()))
        try:
            yield
        finally:
            self._copying = ""

    def attach(self, application: str, spark_application: str = "", spark_ui: str = "") -> None:
        """Show in the heartbeat that the states are read and the script's own code begins."""
        self.heart.update(
            lambda beat: replace(
                beat,
                attached_at=utc_now(),
                application_change=application,
                activity=self.doing(),
                protected_since=utc_now(),
                spark_application=spark_application,
                spark_ui=spark_ui,
            )
        )
        self.heart.pulse()

    # -- the journal -----------------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        return self.coordinator.store

    @property
    def keys(self) -> Keys:
        return self.coordinator.keys

    @contextmanager
    def _journal(self) -> Iterator[Coordinator]:
        """Yield the coordinator to one thread at a time. If this attempt was replaced, this call ends the process."""
        with self.lock:
            try:
                yield self.coordinator
            except Fenced:
                self.leave_replaced()

    @property
    def patience_s(self) -> float:
        """Return the seconds that one write may wait for its answer while the store fails."""
        return self.coordinator.journal.patience

    def limit_patience(self, seconds: float) -> None:
        """Wait at most ``seconds`` for the answer to one write."""
        journal = self.coordinator.journal
        journal.patience = min(journal.patience, seconds)

    def second_reader(self) -> Coordinator:
        """Return a coordinator of its own, caught up, for what may take long: nobody waits for it."""
        own = self.coordinator.journal
        journal = Journal(own.store, own.keys, own.by, segment=own.segment, patience=own.patience)
        journal.catch_up()
        return Coordinator(journal)

    def catch_up(self) -> State:
        """Read the journal to its end, and return the state. Raises ``StoreError``; ends the process if this attempt is over."""
        with self._journal() as coordinator:
            coordinator.check_not_fenced()
            return coordinator.state

    def check_not_fenced(self) -> None:
        """End the process if this attempt is over. Call it before any side effect.

        If the store does not answer, log it and return.
        """
        try:
            self.catch_up()
        except StoreError as error:
            say(
                f"The journal could not be read, so nobody knows whether this attempt was replaced. The job continues: {error}"
            )

    def append(self, command: c.Command) -> None:
        """Write the events of a command of this attempt. Raises what refuses it, and ``StoreError``."""
        with self._journal() as coordinator:
            coordinator.journal.append(command)

    def trigger_unless_pending(self, request: Request, pause_left_s: float = 0.0) -> tuple[int, State]:
        """Return the id of the pending checkpoint that waits for this attempt alone, and the state that lists it.

        Trigger one if there is none. Raises ``Queued`` if that must wait for its turn, and ``MinPause`` as the coordinator does.
        """
        with self._journal() as coordinator:
            number = 0
            if not ungated(coordinator.state):
                try:
                    number = coordinator.trigger(request, pause_left_s=pause_left_s)
                except Busy:
                    if not ungated(coordinator.state):  # else somebody asked for one since the journal was last read
                        raise
            return number or ungated(coordinator.state)[0].id, coordinator.state

    def acknowledge(self, acknowledgement: Acknowledgement, check: Callable[[], object]) -> Acknowledgement:
        """Write the acknowledgement. Return the one that counts: an earlier acknowledgement of this attempt wins.

        ``check`` raises if the checkpoint is no longer wanted. It is asked before, when no other thread writes, and afterwards: the
        store may have answered late.
        """
        with self._journal() as coordinator:
            check()
            self.file_sets.acknowledge(acknowledgement.id, acknowledgement.states)
            counting = coordinator.acknowledge(acknowledgement)
            check()
            return counting

    def missing(self, checkpoint: Checkpoint) -> tuple[str, ...]:
        """Return the applications that have not acknowledged the checkpoint yet."""
        with self._journal() as coordinator:
            return coordinator.missing(checkpoint)

    def complete(self, number: int) -> State:
        """Seal and complete a checkpoint. Return the state in which it is completed. Raises ``NotPending`` if it was aborted."""
        with self._journal() as coordinator:
            coordinator.complete(number)
            return coordinator.state

    def abort(self, number: int, reason: str, *, phase: str = ACKNOWLEDGE, details: str = "") -> Checkpoint | None:
        """Abort a checkpoint unless it has another outcome already. Return it as the journal lists it."""
        with self._journal() as coordinator:
            with contextlib.suppress(NotPending):
                missing = (self.record.application,) if phase == ACKNOWLEDGE else ()
                coordinator.abort(number, reason, phase=phase, missing=missing, details=details)
            return coordinator.state.checkpoint(number)

    def abort_unless_ending(self, number: int, reason: str, *, phase: str, details: str) -> Checkpoint | None:
        """Abort a checkpoint unless the attempt's last entry is being written, which aborts it, too."""
        with self.lock:
            return None if self._over.is_set() else self.abort(number, reason, phase=phase, details=details)

    def sealed_states(self, checkpoint: Checkpoint) -> dict[str, StateSnapshot]:
        """Return the states of a completed checkpoint, by uid."""
        with self._journal() as coordinator:
            return coordinator.read_seal(checkpoint).states

    def publish_savepoints(self) -> None:
        """Let everybody open the completed savepoints by their directories. A target that hangs delays nobody else."""
        if any(not savepoint.published for savepoint in self.state.savepoints):
            publish_due(self.second_reader())

    def confirm_commits(self, number: int) -> None:
        """Note in the journal that all participants were notified of the checkpoint, for a task that waits for it."""
        with self._journal() as coordinator:
            if not self._over.is_set():  # else a restore notifies them
                coordinator.confirm_commits(number)

    # -- deleting --------------------------------------------------------------------------------------------------

    def condemn_expired(self) -> None:
        """Condemn the checkpoints that the retention policy no longer keeps."""
        with self._journal() as coordinator:
            garbage.condemn(coordinator, age_now())

    def delete_condemned(self) -> None:
        """Delete and forget what is condemned. Raises ``AttemptEnding``.

        Only writing entries needs the lock, so the watch still notices during a deletion that this attempt was replaced.
        """
        garbage.delete_condemned(self._deleting, age_now(), self.check_deleting)

    def remove_orphans(self, limit: int) -> None:
        """Delete files of attempts that are over, at most ``limit`` folders. Deleting needs no lock. Raises ``AttemptEnding``."""
        garbage.remove_orphans(self._deleting, limit, self.check_deleting)

    def delete_unneeded(self) -> None:
        """Delete the folders that neither a checkpoint nor this attempt needs. Raises ``AttemptEnding``, and the first ``StoreError``."""
        deleted, errors = garbage.delete_folders(self.store, self.keys, self.file_sets.unneeded(), self.check_deleting)
        self.file_sets.deleted(deleted)
        if errors:
            raise errors[0]

    @contextmanager
    def _deleting(self) -> Iterator[Coordinator]:
        """Yield the coordinator as ``_journal`` does. Raises ``AttemptEnding``: after the last entry, the attempt's own would be fenced."""
        with self._journal() as coordinator:
            if self._over.is_set():
                raise AttemptEnding
            yield coordinator

    def check_deleting(self) -> None:
        """Raise ``AttemptEnding`` if the attempt ends. End the process if the watch has seen that another attempt replaced this one."""
        with self._deleting():
            self.leave_if_over()

    # -- the watch -------------------------------------------------------------------------------------------------

    def _watch_journal(self) -> None:
        while not self._over.wait(POLL):
            try:
                with self.lock:
                    state = self.coordinator.journal.poll()
            except StoreError:
                continue
            except CheckpointError as error:
                leave(ExitCode.REFUSED if error.permanent else ExitCode.FAILED, str(error))
            except BaseException:  # noqa: BLE001 - without a watch the driver would not notice that it was replaced
                traceback.print_exc()
                leave(ExitCode.FAILED, "the journal could not be watched")
            if self._over.is_set():
                return
            if state.over(self.epoch):
                self.leave_replaced()
            launch = state.launch(self.record.launch)
            if launch and launch.stop:
                self.end_now("cancelled", ExitCode.OVER, f"stopped: {launch.stop}")
            self._show(state)

    def _show(self, state: State) -> None:
        """Call ``on_state``. Print its errors: the watch must go on."""
        try:
            self.on_state(state)
        except Exception:  # noqa: BLE001
            traceback.print_exc()

    def leave_replaced(self) -> NoReturn:
        """End the process before its next side effect. Print which attempt replaced this one."""
        if self._leaving.is_set():
            threading.Event().wait()  # another thread writes the last entry and ends the process
        leave(ExitCode.OVER, "\n".join(messages.fenced(self.state, self.epoch, self.doing())))

    # -- the end ---------------------------------------------------------------------------------------------------

    def end(self, outcome: str, exit_code: int) -> None:
        """Write the attempt's last entry. Raises ``StoreError`` and ``CommitStateUnknown``."""
        self._over.set()
        self.heart.stop()
        ended = c.EndAttempt(epoch=self.epoch, outcome=outcome, exit_code=exit_code)
        with self._journal() as coordinator:
            try:
                coordinator.end_attempt(ended)
            except CommitStateUnknown:  # if it was written, the second append is "done already"
                coordinator.journal.append(ended)

    def end_suspended(self, last_line: Callable[[str], str]) -> NoReturn:
        """End the process after the savepoint of a stop, even if the store does not answer.

        ``last_line`` returns the last line of the log. Its argument is the error that prevented the last entry, or "".
        """
        problem = ""
        try:
            self.end("suspended", ExitCode.OVER)
        except CheckpointError as error:
            problem = error.message
        leave(ExitCode.OVER, last_line(problem))

    def end_failed(self, exit_code: int) -> None:
        """Write the last entry of a driver that fails. An error of the store is logged."""
        launch, record = self.state.launch(self.record.launch), self.state.attempt(self.epoch)
        if record and record.outcome == "finished":  # the answer was lost; the task decides by the exit code
            return
        try:
            self.end("cancelled" if launch and launch.stop else "failed", exit_code)
        except CheckpointError as error:
            say(f"the end of attempt {self.epoch} could not be written ({error}). The next attempt writes it.")

    def end_now(self, outcome: str, code: int, why: str) -> NoReturn:
        """End the process from any thread. Write the last entry if the store answers in time."""
        self._over.set()
        self._leaving.set()
        ending = threading.Thread(target=self._end_quietly, args=(outcome, code), daemon=True)
        ending.start()
        ending.join(END_TIMEOUT)
        leave(code, f"attempt {self.epoch} of {self.state.job} ends: {why}")

    def _end_quietly(self, outcome: str, code: int) -> None:
        if self.lock.acquire(timeout=END_TIMEOUT):
            try:
                launch = self.coordinator.journal.catch_up().launch(self.record.launch)
                outcome = "cancelled" if launch and launch.stop else outcome
                self.coordinator.end_attempt(c.EndAttempt(epoch=self.epoch, outcome=outcome, exit_code=code))
            except CheckpointError as error:
                say(str(error))
            finally:
                self.lock.release()
