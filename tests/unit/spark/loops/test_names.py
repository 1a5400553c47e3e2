"""Wrong names in loops, and names that only some turns open."""

from __future__ import annotations

from typing import Any

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


# -- the decision on unused states -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("allowed", [{"sums": "drop", "seen": "drop"}, {"sums": "keep", "seen": "keep"}, True, "keep"])
def test_listed_state_is_dropped_also_if_turns_have_opened_it(allowed: Any, capsys: Capture) -> None:
    """A decision on all states leaves it: no turn need open it again."""
    first = Played()
    for _ in first.once("days", ["mon"]):
        add(first.frame("sums"), 1)
        first.value("seen").set(1)
    second = first.next_run("without them", allowed=allowed)
    for _ in second.once("days", ["tue"]):
        pass
    kept = {record.uid for record in second.end()} >= {"sums", "seen"}
    assert kept == (allowed != {"sums": "drop", "seen": "drop"})
    assert ("this run did not use" in capsys.readouterr().out) == isinstance(allowed, dict)
    third = second.next_run()
    assert (third.frame("sums").df, third.value("seen").get()) == ((1, 1) if kept else (0, 0))


def test_frame_that_was_dropped_begins_anew_in_a_run_that_is_cleared() -> None:
    first = Played(allowed={"sums": "drop"})
    for _ in first.once("days", ["mon"]):
        add(first.frame("sums"), 1)
    dropping = first.retry("without it", allowed={"sums": "drop"})
    assert next(dropping.once("days", ["mon"]), None) is None
    assert "sums" not in {record.uid for record in dropping.end()}
    cleared = dropping.retry("with it again")
    assert next(cleared.once("days", ["mon"]), None) is None
    assert cleared.frame("sums").df == 0
