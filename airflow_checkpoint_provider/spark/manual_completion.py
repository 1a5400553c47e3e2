"""Gated checkpoints: acknowledged at a barrier, completed by who finalizes them. Runs in the Spark driver."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from airflow_checkpoint_provider.errors import NotPending, StoreError
from airflow_checkpoint_provider.protocol.failures import EXPIRED
from airflow_checkpoint_provider.protocol.state import Checkpoint, State
from airflow_checkpoint_provider.spark.attempt import Attempt
from airflow_checkpoint_provider.spark.log import say
from airflow_checkpoint_provider.text import messages

LATE = 10.0  # seconds that the abort of an expired one may take at the end of the job


class Gates:
    """The gated checkpoints that this attempt has acknowledged: each waits for its finalize, one ``timeout`` long."""

    def __init__(self, attempt: Attempt, clock: Callable[[], float] = time.monotonic) -> None:
        self._attempt, self._clock = attempt, clock
        self.passed: dict[int, float] = {}  # id -> when its time is over

    def acknowledged(self, checkpoint: Checkpoint) -> None:
        self.passed[checkpoint.id] = self._clock() + checkpoint.timeout_s
        say(messages.gate_reached(checkpoint))

    def waiting(self) -> tuple[Checkpoint, ...]:
        """Those that have no outcome yet, as far as the journal was read."""
        return tuple(one for one in self._attempt.state.pending if one.id in self.passed)

    def look(self) -> None:
        """Say what became of them, and abort those whose time is over. Called once a second by the attempt's watch."""
        state = self._attempt.state  # not an older one: what was acknowledged meanwhile would look forgotten
        for number, deadline in list(self.passed.items()):
            found = state.checkpoint(number)
            if found is None or found.ended_at:
                self._tell(state, number)
            elif self._clock() > deadline:
                self._expire(found)

    def _tell(self, state: State, number: int) -> None:
        """Once, whichever thread is first."""
        found = state.checkpoint(number)
        if self.passed.pop(number, None) is not None and found is not None:
            for line in messages.checkpoint_lines(state, found):
                say(line)

    def _expire(self, checkpoint: Checkpoint) -> None:
        words = f"nobody finalized it within {checkpoint.timeout_s:g} s after it was acknowledged"
        with self._attempt.journal() as coordinator, contextlib.suppress(StoreError, NotPending):
            if self._attempt.ending:  # its last entry settles them all
                return
            coordinator.abort(checkpoint.id, EXPIRED, phase="finalize", words=words)
            self._tell(coordinator.state, checkpoint.id)

    def wait(self, interrupted: Callable[[], bool]) -> None:
        """At the job's end: until each has its outcome, bounded by its time, or until there is something to do."""
        waiting = self.waiting()
        if not waiting:
            return
        say(messages.gates_awaited(waiting))
        deadline = max(self.passed.get(one.id, 0.0) for one in waiting) + LATE
        while self.waiting() and not interrupted() and self._clock() < deadline:
            time.sleep(0.2)
