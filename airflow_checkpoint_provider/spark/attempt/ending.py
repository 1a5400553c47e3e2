"""The last entry of the attempt, and the end of its process. Runs in the Spark driver."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NoReturn

from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.liveness import Heart
from airflow_checkpoint_provider.errors import CheckpointError, CommitStateUnknown
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark.attempt.journal_writer import JournalWriter
from airflow_checkpoint_provider.spark.attempt.leaving import Leaving
from airflow_checkpoint_provider.spark.process.exits import leave
from airflow_checkpoint_provider.spark.process.log import say

END_TIMEOUT = 3.0  # seconds for the last entry after a signal; Airflow kills the driver after five


class AttemptEnd:
    """Writes the last entry of the attempt ``record``."""

    def __init__(
        self, record: AttemptRecord, journal: Journal, writer: JournalWriter, heart: Heart, leaving: Leaving
    ) -> None:
        self._record, self._journal, self._writer = record, journal, writer
        self._heart, self._leaving = heart, leaving

    def write(self, outcome: str, exit_code: int) -> None:
        """Write the last entry. Raises ``StoreError`` and ``CommitStateUnknown``."""
        self._leaving.begun.set()
        self._heart.stop()
        ended = c.EndAttempt(epoch=self._record.epoch, outcome=outcome, exit_code=exit_code)
        with self._writer.exclusive() as coordinator:
            try:
                coordinator.end_attempt(ended)
            except CommitStateUnknown:  # if it was written, the second append is "done already"
                self._journal.append(ended)

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

    def failed(self, exit_code: int) -> None:
        """Write the last entry of a driver that fails. An error of the store is logged."""
        listed = self._journal.state.attempt(self._record.epoch)
        if listed and listed.outcome == "finished":  # the answer was lost; the task decides by the exit code
            return
        try:
            self.write(self._outcome_in(self._journal.state, "failed"), exit_code)
        except CheckpointError as error:
            say(f"the end of attempt {self._record.epoch} could not be written ({error}). The next attempt writes it.")

    def now(self, outcome: str, code: int, why: str) -> NoReturn:
        """End the process from any thread. Write the last entry if the store answers in time."""
        self._leaving.begun.set()
        self._leaving.by_another_thread.set()
        writing = threading.Thread(target=self._write_quietly, args=(outcome, code), daemon=True)
        writing.start()
        writing.join(END_TIMEOUT)
        leave(code, f"attempt {self._record.epoch} of {self._journal.state.job} ends: {why}")

    def _write_quietly(self, outcome: str, code: int) -> None:
        def last(state: State) -> c.EndAttempt:
            return c.EndAttempt(epoch=self._record.epoch, outcome=self._outcome_in(state, outcome), exit_code=code)

        try:
            self._writer.end_within(END_TIMEOUT, last)
        except CheckpointError as error:
            say(str(error))

    def _outcome_in(self, state: State, outcome: str) -> str:
        """Return ``outcome``, or that the attempt was cancelled if its task has asked for that."""
        launch = state.launch(self._record.launch)
        return "cancelled" if launch and launch.stop else outcome
