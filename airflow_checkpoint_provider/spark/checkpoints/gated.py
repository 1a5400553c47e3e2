"""Gated checkpoints: acknowledged at a barrier, completed by a finalize task. Runs in the Spark driver."""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_checkpoint_provider.errors import StoreError
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.kinds import EXPIRED, FINALIZE
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.text import messages

ABORT_TIME = 10.0  # seconds that the abort of an expired checkpoint may take at the end of the job


class GatedCheckpoints:
    """The gated checkpoints that this attempt has acknowledged. Each waits for its finalize task until its timeout."""

    def __init__(self, attempt: Attempt, clock: Callable[[], float] = time.monotonic) -> None:
        self._attempt, self._clock = attempt, clock
        self.deadlines: dict[int, float] = {}  # by id; moments of ``clock``

    def acknowledged(self, checkpoint: Checkpoint) -> None:
        """Log that the checkpoint waits for its finalize task, and start its timeout."""
        self.deadlines[checkpoint.id] = self._clock() + checkpoint.timeout_s
        say(messages.gate_reached(checkpoint))

    def waiting(self) -> tuple[Checkpoint, ...]:
        """Return the acknowledged checkpoints without an outcome, as far as the journal was read."""
        return tuple(
            checkpoint for checkpoint in self._attempt.journal.state.pending if checkpoint.id in self.deadlines
        )

    def on_watch(self) -> None:
        """Log outcomes, and abort expired checkpoints. The attempt's watch calls it once a second."""
        # Read it now: an older state would not list a checkpoint acknowledged meanwhile
        state = self._attempt.journal.state
        for number, deadline in list(self.deadlines.items()):
            checkpoint = state.checkpoint(number)
            if checkpoint is None or checkpoint.ended_at:
                self._log_outcome(state, number)
            elif self._clock() > deadline:
                self._expire(checkpoint)

    def _log_outcome(self, state: State, number: int) -> None:
        """Log the outcome once: the first thread to take it out of ``deadlines`` logs it."""
        checkpoint = state.checkpoint(number)
        if self.deadlines.pop(number, None) is not None and checkpoint is not None:
            for line in messages.checkpoint_lines(state, checkpoint):
                say(line)

    def _expire(self, checkpoint: Checkpoint) -> None:
        details = f"nobody finalized it within {checkpoint.timeout_s:g} s after it was acknowledged"
        try:
            expired = self._attempt.writer.abort_unless_ending(checkpoint.id, EXPIRED, phase=FINALIZE, details=details)
        except StoreError:
            return  # the watch looks again
        if expired:
            self._log_outcome(self._attempt.journal.state, checkpoint.id)

    def wait(self, interrupted: Callable[[], bool]) -> None:
        """Wait at the end of the job until each checkpoint has its outcome or expires. Return earlier if ``interrupted()``."""
        if waiting := self.waiting():
            say(messages.gates_awaited(waiting))
            deadline = max(self.deadlines.get(checkpoint.id, 0.0) for checkpoint in waiting) + ABORT_TIME
            while self.waiting() and not interrupted() and self._clock() < deadline:
                time.sleep(0.2)
        self.on_watch()  # the watch may look too late to log the outcome
