"""The pace of a loop: after which of its turns the state is stored. Pure. Runs in the Spark driver."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.protocol.config import SHORTEST, seconds

MOST_TURNS = 10  # between two barriers, unless a script says another number: the plan of a frame grows with each turn

Every = int | str | timedelta | None
"""``every`` as people write it: a number of turns, or a duration."""


@dataclass(frozen=True)
class Pace:
    """A barrier is due after so many turns, or after so many seconds, whichever comes first."""

    turns: int
    seconds: float

    @classmethod
    def of(cls, every: Every, interval_s: float) -> Pace:
        """Return the pace that ``every`` says; if it is None, that of the job's ``interval``. Raises ``InvalidConfig``."""
        if every is None:
            return cls(MOST_TURNS, interval_s)
        if isinstance(every, int) and not isinstance(every, bool):
            if every < 1:
                raise InvalidConfig(
                    f"every={every}: write a number of turns, 1 or more, or a duration such as '10 min'"
                )
            return cls(every, math.inf)
        duration = seconds(every, "every")
        if duration < SHORTEST:
            raise InvalidConfig(f"every={every!r} is shorter than 10 ms: write every=1 for a barrier after each turn")
        return cls(MOST_TURNS, duration)

    def due(self, turns: int, seconds: float, *, by_time: bool) -> bool:
        """Return whether a barrier is due after ``turns`` turns in ``seconds``. Not ``by_time``: only their number counts."""
        return turns >= self.turns or (by_time and turns > 0 and seconds >= self.seconds)


def check_every(name: str, value: Any) -> None:
    """Raise ``InvalidConfig`` unless ``value`` is a pace."""
    Pace.of(value, 0.0)
