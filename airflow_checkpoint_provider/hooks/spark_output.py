"""Spark's output in the log of a task: folded, so that a person sees the task's own lines first. Runs in Airflow (worker)."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable

from airflow_checkpoint_provider import _airflow
from airflow_checkpoint_provider.errors import printable
from airflow_checkpoint_provider.text import spark_output

LogLine = Callable[[str], object]
FOLD, END = "::group::Spark's output", "::endgroup::"  # Airflow's log view folds the lines between them
KEPT = 500  # lines, in which the cause of a failure is looked for


def _defused(line: str) -> str:
    """Return a line of Spark without marks of folds: a fold of the driver's own would close ours, or hide the task's lines."""
    return line.replace("::group::", ": :group: :").replace("::endgroup::", ": :endgroup: :")


class SparkOutput:
    """Writes one log from a task's own lines and the output of ``spark-submit``, which stands in folds.

    A fold ends before each line of the task, or of the runtime in the driver, and the next line of Spark begins another one. Threads
    may share the object.

    :param log: logs a line of the task.
    """

    def __init__(self, log: LogLine) -> None:
        self._log = log
        # Stands before each line that the runtime prints in the driver. It cannot be guessed: rows in an error of Spark must not look like that.
        self.mark = f"::checkpoint-{secrets.token_hex(16)}::"
        self._lock = threading.RLock()  # a signal handler may log while its thread does
        self._end_fold: Callable[[], object] | None = None
        self._last: deque[str] = deque(maxlen=KEPT)

    def log(self, lines: Iterable[str]) -> None:
        """Log lines of the task, outside of a fold."""
        with self._lock:
            self.end_fold()
            for line in lines:
                self._log(printable(line))

    def end_fold(self) -> None:
        """End the fold, if there is one."""
        with self._lock:
            if self._end_fold is not None:
                self._end_fold()
            self._end_fold = None

    def fold(self, lines: Iterable[str], log: LogLine) -> Generator[str]:
        """Yield the lines of Spark, which the caller logs at once with ``log``. Log the lines of the runtime. Close the iterator."""
        try:
            for line in lines:
                theirs, mark, ours = line.partition(self.mark)
                if theirs.strip() or not mark:
                    theirs = _defused(theirs)
                    with self._lock:  # until the caller asks for the next line
                        self._begin_fold(log)
                        self._last.append(theirs.rstrip())
                        yield theirs
                if mark:
                    self.log([ours.rstrip()])
        finally:
            self.end_fold()

    def _begin_fold(self, log: LogLine) -> None:
        if self._end_fold is None:
            log(FOLD)
            self._end_fold = lambda: log(END)

    @property
    def last(self) -> list[str]:
        """Return the last lines of Spark."""
        with self._lock:
            return [*self._last]

    def log_last_lines(self) -> None:
        """Log the last lines of Spark again, outside of a fold, and its last error."""
        self.log(spark_output.last_lines([_airflow.masked(line) for line in self.last]))
