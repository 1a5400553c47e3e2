"""The last entry of the attempt, and the end of its process. Runs in the Spark driver.

A driver that gets SIGTERM, or loses its JVM, ends in order: first the checkpoint of the rows that are proved, then the last entry. All of
that is Python alone, and has a limit: the store may not answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NoReturn

from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.errors import CheckpointError, CommitStateUnknown
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark.attempt.journal_writer import JournalWriter
from airflow_checkpoint_provider.spark.attempt.leaving import Leaving
from airflow_checkpoint_provider.spark.process.exits import leave
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.text import messages

DEPLOY_MODE = "spark.submit.deployMode"
CLIENT_TIMEOUT = 3.0  # seconds from a signal to the end; Airflow kills a driver in client mode after five
CLUSTER_TIMEOUT = 10.0  # in cluster mode, where the settings of the cluster decide how long a driver has
LAST_ENTRY = 1.0  # of these seconds, for the last entry
Save = Callable[[float], bool]
"""Completes the checkpoint of the rows that are proved. Returns False if that was not possible within so many seconds."""


def timeout_in(deploy_mode: str | None) -> float:
    """Return how many seconds the end of a driver may take."""
    return CLUSTER_TIMEOUT if deploy_mode == "cluster" else CLIENT_TIMEOUT


class AttemptEnd:
    """Writes the last entry of the attempt ``record``."""

    def __init__(
        self, record: AttemptRecord, journal: Journal, writer: JournalWriter, heart: Heart, leaving: Leaving
    ) -> None:
        self._record, self._journal, self._writer = record, journal, writer
        self._heart, self._leaving = heart, leaving
        self._only = threading.Lock()  # taken by the thread that ends the process, for good

    def write(self, outcome: str, exit_code: int, cause: str = "") -> None:
        """Write the last entry. ``cause``: the memory that the attempt ran out of. Raises ``StoreError`` and ``CommitStateUnknown``."""
        self._leaving.if_begun()
        self._leaving.begun.set()
        self._heart.stop()
        ended = c.EndAttempt(epoch=self._record.epoch, outcome=outcome, exit_code=exit_code, cause=cause)
        with self._writer.exclusive() as coordinator:
            try:
                coordinator.end_attempt(ended)
            except CommitStateUnknown:  # if it was written, the second append is "done already"
                self._journal.append(ended)
            self._leaving.written.set()

    def suspended(self, last_line: Callable[[str], str]) -> NoReturn:
        """End the process after the savepoint of a stop, even if the store does not answer.

        ``last_line`` returns the last line of the log. Its argument is the error that prevented the last entry, or "".
        """
        problem = ""
        try:
            self.write("suspended", ExitCode.OVER)
        except CheckpointError as error:
            problem = error.message
        leave(ExitCode.OVER, last_line(problem))

    def failed(self, exit_code: int, cause: str = "") -> None:
        """Write the last entry of a driver that fails. An error of the store is logged."""
        if self._finished:  # the answer was lost; the task decides by the exit code
            return
        try:
            self.write(self._outcome_in(self._journal.state, "failed"), exit_code, cause)
        except CheckpointError as error:
            say(f"the end of attempt {self._record.epoch} could not be written ({error}). The next attempt writes it.")

    @property
    def _finished(self) -> bool:
        listed = self._journal.state.attempt(self._record.epoch)
        return listed is not None and listed.outcome == "finished"

    def in_order(self, outcome: str, code: int, why: str, save: Save, timeout_s: float, cause: str = "") -> NoReturn:
        """End the process when the rows that are proved are in a checkpoint. Do not call it in a thread that takes checkpoints."""
        self._end(outcome, code, why, save, timeout_s, cause)

    def now(self, outcome: str, code: int, why: str) -> NoReturn:
        """End the process from any thread. Write the last entry if the store answers in time."""
        self._end(outcome, code, why, lambda _: True, CLIENT_TIMEOUT)

    def _end(self, outcome: str, code: int, why: str, save: Save, timeout_s: float, cause: str = "") -> NoReturn:
        if not self._only.acquire(blocking=False):
            threading.Event().wait()  # until the thread that was first has ended the process
        self._leaving.begun.set()
        self._leaving.by_another_thread.set()
        deadline, missing = time.monotonic() + timeout_s, ["the checkpoint of its newest rows", "its last entry"]

        def write() -> None:
            if save(timeout_s - LAST_ENTRY):
                del missing[0]
            if self._write(outcome, code, deadline, cause):
                del missing[-1]

        writing = threading.Thread(target=write, name="checkpoint-end", daemon=True)
        writing.start()
        writing.join(timeout_s)
        lines = [f"attempt {self._record.epoch} of {self._journal.state.job} ends: {why}"]
        leave(code, "\n".join([*lines, *messages.not_written_in_time(missing, timeout_s)]))

    def _write(self, outcome: str, code: int, deadline: float, cause: str) -> bool:
        """Write the last entry. Log the checkpoints that it aborts, or the error that refuses it. Return False if it is not written."""

        def last(state: State) -> c.EndAttempt:
            how = self._outcome_in(state, outcome)
            return c.EndAttempt(epoch=self._record.epoch, outcome=how, exit_code=code, cause=cause)

        pending = self._journal.state.pending
        try:
            written = self._writer.end_within(max(0.0, deadline - time.monotonic()), last)
        except CheckpointError as error:
            if not self._finished:
                say(str(error))
            return self._finished
        state = self._journal.state
        for listed in filter(None, (state.checkpoint(checkpoint.id) for checkpoint in pending)):
            say(messages.aborted(state, listed))
        return written

    def _outcome_in(self, state: State, outcome: str) -> str:
        """Return ``outcome``, or that the attempt was cancelled if its task has asked for that."""
        launch = state.launch(self._record.launch)
        return "cancelled" if launch and launch.stop else outcome
