"""The pace of a loop: after which turns its state is stored."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.spark.loops.pace import Pace


@pytest.mark.parametrize(
    ("every", "turns", "seconds"),
    [(None, 10, 600.0), (1, 1, math.inf), (25, 25, math.inf), ("2 min", 10, 120.0), (timedelta(seconds=5), 10, 5.0)],
)
def test_pace_is_a_number_of_turns_or_a_duration(every: Any, turns: int, seconds: float) -> None:
    assert Pace.of(every, 600.0) == Pace(turns, seconds)


@pytest.mark.parametrize("every", [0, -1, "often", "0 s", timedelta(0), True, [1]])
def test_other_paces_are_refused(every: Any) -> None:
    with pytest.raises(InvalidConfig, match="every="):
        Pace.of(every, 600.0)


@pytest.mark.parametrize(
    ("turns", "seconds", "by_time", "due"),
    [
        (1, 0.0, True, False),
        (1, 60.0, True, True),
        (1, 60.0, False, False),
        (0, 60.0, True, False),
        (10, 0.0, True, True),
        (10, 0.0, False, True),
    ],
)
def test_barrier_is_due_after_turns_or_after_time(turns: int, seconds: float, by_time: bool, due: bool) -> None:
    assert Pace(10, 60.0).due(turns, seconds, by_time=by_time) is due
