"""Whether a crash now would cost more than it should, and when that is too much. Runs in the Spark driver."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.spark.attempt import Attempt
from airflow_checkpoint_provider.spark.log import say
from airflow_checkpoint_provider.text import messages

REMIND = 300.0  # seconds between two lines saying that the job is not protected


class Protection:
    """How long a crash would throw the job back, and who has been told; and how many failures in a row are ``tolerable``."""

    def __init__(
        self, attempt: Attempt, tolerable: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._attempt, self._tolerable, self._clock = attempt, tolerable, clock
        self._lock = threading.Lock()
        self._since = clock()
        self._said = 0.0
        self._last = ""
        self._barrier = 0
        self._failed: dict[int, int] = {}  # barrier -> the newest completed checkpoint when it failed there

    @property
    def failures(self) -> int:
        """The barriers in a row whose checkpoint failed, however often it was tried, since one of any kind was completed."""
        newest = self._attempt.state.newest_completed
        return sum(since == newest for since in self._failed.values())

    def begin(self) -> None:
        """The script has reached its next barrier."""
        self._barrier += 1

    def failed(self, what: str, error: CheckpointError) -> None:
        with self._lock:
            first = not self.failures
            self._failed = {**self._failed, self._barrier: self._attempt.state.newest_completed}
            self._last = f"{what}: {error.message}"
        self.remind(at_once=first)
        self.judge()

    def judge(self) -> None:
        """End the attempt, which then failed, if more checkpoints in a row failed than are tolerated.

        What the journal says counts, and what failed before it could be written there. What earlier attempts failed at is
        theirs: else the one after an attempt that ended for it would end at once. Not while holding the journal.
        """
        failed = self._attempt.state.failed(self._attempt.epoch)
        failures = max(len(failed), self.failures)
        if self._tolerable is None or failures <= self._tolerable:
            return
        last = (
            f"chk-{failed[-1].id} {failed[-1].reason}: {failed[-1].words}"
            if failed and not self.failures
            else self._last
        )
        self._attempt.end_now("failed", ExitCode.FAILED, messages.not_tolerated(failures, self._tolerable, last))

    def restored(self) -> None:
        """A checkpoint completed: a crash costs only what comes after it."""
        with self._lock:
            self._failed, self._since = {}, self._clock()
        self._attempt.heart.update(lambda beat: replace(beat, protected_since=utc_now()))

    def remind(self, at_once: bool = False) -> None:
        """Say it at the first failure and then every five minutes."""
        with self._lock:
            due = self.failures and (at_once or self._clock() - self._said >= REMIND)
            if not due:
                return
            self._said = self._clock()
            failures, last, cost = self.failures, self._last, self._clock() - self._since
        point = self._attempt.state.restore_point(self._attempt.record.application)
        say(messages.not_protected(last, failures, cost, point))
