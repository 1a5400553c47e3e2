"""States that last from run to run, as the next run begins with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.spark.state.carrying import began_with, of_next_run
from airflow_checkpoint_provider.spark.state.states import States
from tests.unit.protocol.golden_states import with_loops, with_sinks
from tests.unit.spark.state.stored_states import seal, stage, value

RANK, DAYS, RANKS = with_loops().states


def test_frame_begins_with_its_newest_rows() -> None:
    carried = of_next_run(RANKS, "day-2")
    assert carried
    assert carried.frame
    assert [file_set.path for file_set in carried.file_sets] == ["state/ranks/1-e"]
    assert (carried.run, carried.frame.began, carried.frame.schemas) == ("day-2", "state/ranks/1-e", ("{}",))
    assert of_next_run(carried, "day-3") == StateSnapshot.from_json({**carried.to_json(), "run": "day-3"})


def test_of_the_items_of_a_history_the_list_counts() -> None:
    assert DAYS.loop
    carried = of_next_run(replace(DAYS, loop=replace(DAYS.loop, opened=("seen-mon",))), "day-2")
    assert carried
    assert carried.loop
    assert carried.value == ["mon", ["tue", 1]]
    assert (carried.loop.began, carried.loop.turns, carried.loop.frames) == (2, 0, {})
    assert carried.loop.opened == ("seen-mon",), "no turn opens it again"


def test_work_of_the_items_of_other_runs_is_not_that_of_the_next_run() -> None:
    carried = of_next_run(replace(DAYS, measures=replace(DAYS.measures, work_s=25.0)), "day-2")
    assert carried
    assert carried.measures == DAYS.measures


@pytest.mark.parametrize("state", [RANK, stage("clean")])
def test_states_of_a_run_are_not_carried_over(state: StateSnapshot) -> None:
    assert of_next_run(state, "day-2") is None


def test_values_are_carried_over_as_they_are() -> None:
    assert of_next_run(held := value("count", 7), "day-2") is held


def test_run_has_begun_with_what_earlier_runs_have_left() -> None:
    assert [began_with(state) for state in (RANK, DAYS, RANKS)] == [False, True, True]


def test_retry_has_all_and_the_next_run_what_lasts() -> None:
    held = seal(RANK, DAYS, RANKS, value("count", 7), run="day-1", count=3)
    retry, after = States.restored(held, "day-1"), States.restored(held, "day-2")
    assert set(retry.snapshots) == {"rank", "days", "ranks", "count"}
    assert retry.held_values == {"count": 7}
    assert set(after.snapshots) == {"days", "ranks", "count"}
    assert after.held_values is None


def test_lasting_states_that_the_script_does_not_use_are_unclaimed() -> None:
    states = States.restored(seal(RANK, DAYS, RANKS, run="day-1"), "day-2")
    assert [state.uid for state in states.unclaimed()] == ["days", "ranks"]
    assert [state.uid for state in states.unclaimed_of_earlier_runs()] == ["days", "ranks"]
    states.claim_loop("days", "once")
    states.claim_loop("rankz", "frame")
    assert [state.uid for state in states.unclaimed()] == ["ranks"]
    assert states.new(())["frame"] == {"rankz"}


def test_writes_of_another_history_belong_to_no_run_of_this_one() -> None:
    """Its runs may have the same names. What is committed is of no use any more."""
    orders = with_sinks().states[0]
    carried = States.restored(seal(orders, run="day-1"), "day-1", elsewhere=True).snapshots["orders"]
    assert carried.sink
    assert orders.sink
    assert (carried.run, carried.sink.version, carried.sink.target) == ("", 4, "s3://lake/orders")
    assert carried.sink.transactions == (replace(orders.sink.transactions[1], forked=True),)
    retry = States.restored(seal(carried, run="day-1"), "day-1").snapshots["orders"]
    assert retry == StateSnapshot.from_json(carried.to_json()), "a checkpoint of this history says so, too"
