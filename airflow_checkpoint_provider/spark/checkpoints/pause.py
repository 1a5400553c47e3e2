"""The pause after a checkpoint, in which the timer takes none. Runs in the Spark driver."""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_checkpoint_provider.protocol.state import State


class Pause:
    """Measures how long ago any process completed a checkpoint of the history. A checkpoint that was completed before this attempt does not
    count: the first delay of the timer is at least the pause.
    """

    def __init__(
        self, length_s: float, state: Callable[[], State], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._length_s, self._state, self._clock = length_s, state, clock
        self._completed, self._ends = self._count(), clock()

    def update(self) -> None:
        """Begin anew if another checkpoint was completed. Call it often: the pause counts from the call that sees it."""
        completed = self._count()
        if completed != self._completed:
            self._completed, self._ends = completed, self._clock() + self._length_s

    def left_s(self) -> float:
        """Return the seconds that remain, as far as the journal was read."""
        self.update()
        return max(0.0, self._ends - self._clock())

    def _count(self) -> int:
        return self._state().counts.get("completed", 0)
