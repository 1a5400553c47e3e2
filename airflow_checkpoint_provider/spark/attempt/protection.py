"""Protection: failed checkpoints in a row, what a crash would cost, and when the job must end. Runs in the Spark driver."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.text import messages

REMIND_EVERY = 300.0  # seconds between two lines saying that the job is not protected


class Protection:
    """The failures since the last completed checkpoint. ``tolerable``: how many in a row are tolerated; None: any number."""

    def __init__(
        self, attempt: Attempt, tolerable: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._attempt, self._tolerable, self._clock = attempt, tolerable, clock
        self._lock = threading.Lock()
        self._since = clock()
        self._reminded = 0.0  # a moment of ``clock``
        self._last_failure = ""
        self._barrier = 0
        self._failed: dict[int, int] = {}  # barrier -> the newest completed checkpoint when it failed there
        self._aborted: dict[int, int] = {}  # checkpoint -> the barrier at which this attempt aborted it

    @property
    def failures(self) -> int:
        """Return how many barriers in a row failed since the last completed checkpoint. Retries at one barrier count once."""
        return len(self._failed_barriers())

    def _failed_barriers(self) -> set[int]:
        newest = self._attempt.journal.state.newest_completed
        return {barrier for barrier, since in self._failed.items() if since == newest}

    def attach(self) -> None:
        """Note that the script begins: no checkpoint has saved its work from now on."""
        self._protected()

    def begin(self) -> None:
        """Note that the script has reached its next barrier."""
        self._barrier += 1

    def aborting(self, number: int) -> None:
        """Note that checkpoint ``number`` is aborted because of this barrier: all failures of one barrier count once."""
        self._aborted[number] = self._barrier

    def failed(self, operation: str, error: CheckpointError) -> None:
        """Note that ``operation`` failed at this barrier. Log it, and end the attempt if more failed than are tolerated."""
        with self._lock:
            first = not self.failures
            self._failed = {**self._failed, self._barrier: self._attempt.journal.state.newest_completed}
            self._last_failure = f"{operation}: {error.message}"
        self.remind(at_once=first)
        self.enforce_limit()

    def enforce_limit(self) -> None:
        """End the attempt as failed if more checkpoints in a row failed than are tolerated.

        Failures in the journal count, and failures that could not be written there. All failures at one barrier count once. Do not call it
        while holding the journal.
        """
        if self._tolerable is None:
            return
        failed = self._attempt.journal.state.failed(self._attempt.epoch)
        in_journal = {self._aborted.get(checkpoint.id, f"chk-{checkpoint.id}") for checkpoint in failed}
        failures = self._failures_before() + len(in_journal | self._failed_barriers())
        if failures <= self._tolerable:
            return
        last = f"chk-{failed[-1].id} {failed[-1].abort_cause}" if failed and not self.failures else self._last_failure
        self._attempt.end.now("failed", ExitCode.FAILED, messages.not_tolerated(failures, self._tolerable, last))

    def _failures_before(self) -> int:
        """Return how many checkpoints failed in earlier attempts of this start of the run, since the last completed one.

        The count begins anew after it ended an attempt, as in Flink: else the next attempt would end at once, too.
        """
        state, failures = self._attempt.journal.state, 0
        own = state.launch(self._attempt.record.launch)
        for attempt in state.attempts:
            launch = state.launch(attempt.launch)
            if own and launch and attempt.epoch < self._attempt.epoch and launch.spec.token == own.spec.token:
                failures += len(state.failed(attempt.epoch))
                failures = 0 if failures > (self._tolerable or 0) else failures
        return failures

    def completed(self) -> None:
        """Note that a checkpoint completed: a crash costs only the work after it."""
        with self._lock:
            self._failed = {}
        self._protected()

    def _protected(self) -> None:
        """Let the cost of a crash begin at zero, in the log and in the heartbeat."""
        with self._lock:
            self._since = self._clock()
        self._attempt.heart.update(lambda beat: replace(beat, protected_since=utc_now()))

    def remind(self, at_once: bool = False) -> None:
        """Log that the job is not protected: at the first failure, then every five minutes."""
        with self._lock:
            due = self.failures and (at_once or self._clock() - self._reminded >= REMIND_EVERY)
            if not due:
                return
            self._reminded = self._clock()
            failures, last, cost = self.failures, self._last_failure, self._clock() - self._since
        point = self._attempt.journal.state.restore_point(self._attempt.record.application)
        say(messages.not_protected(last, failures, cost, point))
