"""Tells the threads that the attempt ends or is over, and ends the process. Runs in the Spark driver."""

from __future__ import annotations

import threading
from typing import NoReturn

from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.errors import AttemptEnding
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.spark.attempt.activity import Activity
from airflow_checkpoint_provider.spark.process.exits import leave
from airflow_checkpoint_provider.text import messages


class Leaving:
    """The end of the attempt ``epoch``, as its threads see it."""

    def __init__(self, journal: Journal, epoch: int, activity: Activity) -> None:
        self._journal, self._epoch, self._activity = journal, epoch, activity
        self.begun = threading.Event()
        """The last entry is being written. After it, any entry of this attempt would be fenced."""
        self.written = threading.Event()
        """This process has written the last entry."""
        self.by_another_thread = threading.Event()
        """Another thread ends the process, with its own exit code."""

    def if_begun(self) -> None:
        """Wait for the end of the process if another thread ends it: this thread begins nothing more."""
        if self.by_another_thread.is_set():
            threading.Event().wait()

    def if_over(self) -> None:
        """End the process if the watch has seen that this attempt was replaced. Reads nothing from the store. Raises ``AttemptEnding``."""
        if self._journal.state.over(self._epoch):
            self.replaced()

    def replaced(self) -> NoReturn:
        """End the process before its next side effect. Print which attempt replaced this one.

        Raises ``AttemptEnding`` if this process has ended the attempt itself: then its exit code tells how the script ended.
        """
        self.if_begun()
        if self.written.is_set():
            raise AttemptEnding.now()
        leave(ExitCode.OVER, "\n".join(messages.fenced(self._journal.state, self._epoch, str(self._activity))))
