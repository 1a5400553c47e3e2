"""Commits what completed checkpoints hold, beside the script. Runs in the Spark driver.

The journal decides: a transaction is due when an entry that this process believes says that a checkpoint of this attempt which holds it
is completed. So it does not matter who completed it: the driver, a finalize task, a person.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from airflow_checkpoint_provider.errors import AttemptEnding, CheckpointError, CommitFailed
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.transactions import Transaction
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.process.workers import Workers
from airflow_checkpoint_provider.spark.sinks.sink_state import SinkState
from airflow_checkpoint_provider.spark.sinks.sinks import Sinks
from airflow_checkpoint_provider.spark.state.registered import words
from airflow_checkpoint_provider.text import sink_messages

PAUSE = 5.0  # seconds between two tries after an error
LAST_TRIES = 3  # at the end of a job, and where a script waits


class Commits:
    """Commits the transactions of one attempt, one after the other, in a thread of its own."""

    def __init__(self, attempt: Attempt, sinks: Sinks, clock: Callable[[], float] = time.monotonic) -> None:
        self._attempt, self._sinks, self._clock = attempt, sinks, clock
        self._thread = Workers(1, "commit")
        self._running: Future[None] | None = None
        self._lock = threading.Lock()  # guards ``_running``
        self._error: CheckpointError | None = None  # of the newest try
        self._not_before = 0.0

    def due(self) -> list[tuple[SinkState, Transaction]]:
        """Return the transactions of completed checkpoints that are not committed, in their order."""
        return [
            (state, transaction)
            for state in list(self._sinks.opened.values())
            for transaction in state.uncommitted()
            if transaction.version <= self._sinks.due_version(state)
        ]

    def begin(self) -> None:
        """Begin to commit what is due, if anything is, unless that has begun or has just failed. Returns at once."""
        with self._lock:
            busy = self._running is not None and not self._running.done()
            if not busy and self._clock() >= self._not_before and not self._refused and self.due():
                self._running = self._thread.submit(self._commit_all)

    @property
    def _refused(self) -> bool:
        return self._error is not None and self._error.permanent

    def _commit_all(self) -> None:
        try:
            aborted = list[str]()
            while due := [one for one in self.due() if one[1].name not in aborted]:
                state, transaction = due[0]
                if not self._sinks.commit(state, transaction):
                    aborted.append(transaction.name)
            if aborted:  # the script has passed it: only another attempt can do it again
                raise CommitFailed(sink_messages.aborted_meanwhile(aborted))
            self._error = None
        except AttemptEnding:  # the next attempt commits the rest
            pass
        except Exception as error:  # noqa: BLE001 - a sink of the author's own may raise anything
            failed = error if isinstance(error, CheckpointError) else CommitFailed(words(error))
            if str(failed) != str(self._error):
                say(sink_messages.commit_failed(failed))
            self._error, self._not_before = failed, self._clock() + PAUSE

    def wait(self) -> None:
        """Wait until all that is due is committed. Raises ``CommitFailed`` after some tries, and a permanent error of a sink at once."""
        for _ in range(LAST_TRIES):
            self._not_before = 0.0
            self.begin()
            if self._running is not None:
                self._running.result()
            if not self.due():
                return
            if self._error is not None and self._error.permanent:
                raise self._error
        raise CommitFailed(sink_messages.not_committed(len(self.due()), self._error)) from self._error

    def confirm_restored(self) -> None:
        """Note in the journal that the writes of the restore point are committed, if the script has opened all its sinks.

        A write that was found aborted is not: the next attempt must find the same.
        """
        state, checkpoint = self._attempt.journal.state, self._sinks.restored_checkpoint
        entries = checkpoint.states if checkpoint else ()
        held = {entry.uid for entry in entries if entry.sink and entry.sink.transactions}
        if checkpoint is None or not held or not held <= self._sinks.opened.keys():
            return
        aborted = any(self._sinks.opened[uid].aborted for uid in held)
        if not aborted and any(state.sink(uid).uncommitted for uid in held):
            self._attempt.writer.confirm_commits(checkpoint.id)

    def done(self, checkpoint: Checkpoint) -> bool:
        """Return whether all that a completed checkpoint publishes is committed.

        It also holds sinks that this attempt has not opened yet, as they were restored: nobody has asked their targets.
        """
        held = {entry.uid: entry.sink.version for entry in checkpoint.states if entry.sink}
        journal = self._attempt.journal.state
        if any(
            uid not in self._sinks.opened and journal.sink(uid).confirmed < min(version, journal.sink(uid).due)
            for uid, version in held.items()
        ):
            return False
        return not any(transaction.version <= held.get(state.uid, 0) for state, transaction in self.due())
