"""Wrong names in loops, and names that only some turns open."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.errors import NonRestoredState
from tests.unit.spark.loops.played import Played, add

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("loops", ["a", "ab", "ba", "abc"])
def test_frame_that_a_turn_has_opened_is_in_its_place_whatever_loops_come_after(loops: str) -> None:
    """A new frame beside it is not its new name."""

    def run(attempt: Played) -> None:
        for loop in loops:
            for _ in attempt.iterate(loop, [1]):
                add(attempt.frame(f"of-{loop}"), 1)

    first = Played()
    run(first)
    second = first.retry("with one more frame")
    run(second)
    second.frame("late")
    second.end()
    assert [second.held(f"of-{loop}") for loop in loops] == [1] * len(loops)


def test_frame_that_the_script_had_opened_before_the_loops_is_missed() -> None:
    first = Played()
    sums = first.frame("sum")
    for loop in ("a", "b"):
        for _ in first.iterate(loop, [1]):
            add(sums, 1)
    second = first.retry("corrected")
    second.frame("sums")
    for loop in ("a", "b"):
        assert next(second.iterate(loop, [1]), None) is None
    with pytest.raises(NonRestoredState, match=r"frame 'sum', and used the new frame 'sums'"):
        second.end()
