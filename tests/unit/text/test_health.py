"""Up to which moment the work of a job is saved, if its drivers die again and again. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.text import health
from tests.support.histories import History


def dying(tries: int) -> History:
    """Return a stream whose first driver commits batch 6. Each one after it dies in batch 7, and the timer goes on."""
    h = History()
    for number in range(1, tries + 1):
        h.streams(number, 6)
    return h


def found(state: State, max_age: float) -> str:
    return "; and ".join(health.problems(state, None, state.at, max_age, None))


def test_driver_that_dies_in_one_batch_makes_nothing_younger() -> None:
    """An entry of these histories comes one minute after the one before it."""
    first = dying(1).state
    assert health.saved_state(first).by == "chk-2"
    state = dying(8).state
    assert health.saved_state(state) == health.saved_state(first)
    assert "(chk-2), " in found(state, 1200)
    assert "newest 7 drivers add nothing to that" in found(state, 1200)


def test_driver_that_runs_in_the_same_batch_makes_nothing_younger() -> None:
    h = dying(3)
    h.streams(4, 6, how="")
    assert health.saved_state(h.state).by == "chk-2"
    h.timer(7)
    assert health.saved_state(h.state).by == "chk-9"


@pytest.mark.parametrize("lost", [1, 2, 9])
def test_stream_without_new_rows_is_healthy_while_a_driver_runs(lost: int) -> None:
    """However often a worker was lost with its driver."""
    h = History()
    for number in range(1, lost + 3):
        h.streams(number, 6, how="", begun=6)
    assert found(h.state, 1) == ""


def test_stream_that_loses_a_driver_once_is_healthy_before_the_next_one_has_saved_anything() -> None:
    h = History()
    for number in (1, 2):
        h.streams(number, 6, how="", begun=6)
    saved = h.state.at
    h.started("day-1", 3)
    assert health.saved_state(h.state).at == saved


def test_stream_that_never_commits_a_batch_has_saved_nothing() -> None:
    h = History()
    for number in (1, 2):
        h.started("day-1", number)
        h.timer(-1)
        h.ended("failed")
    saved = health.saved_state(h.state)
    assert (saved.at, saved.by) == (h.state.launches[0].at, "its first launch, and nothing newer since")


def test_start_of_the_dying_drivers_counts_if_what_they_started_from_is_not_listed_any_more() -> None:
    """The journal lists a hundred deleted checkpoints. Else a job with many would look young for ever."""
    state = dying(8).state
    few = replace(state, checkpoints=state.checkpoints[-5:])
    assert health.saved_state(few).at == state.launches[1].at
    assert health.saved_state(few).by == "what was there before try 2 of flights.delays"
