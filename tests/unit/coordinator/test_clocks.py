"""Clocks that jump in the middle of a run: nothing is lost, and what is written can be read. Runs anywhere."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cache

import pytest

from airflow_checkpoint_provider.coordinator import statistics
from airflow_checkpoint_provider.coordinator.journal import age_clock
from airflow_checkpoint_provider.text import summary_table
from tests.support.faults import Call, Fault
from tests.support.histories import BEGIN
from tests.support.life import RUN, Disturbed, Life
from tests.support.saved import memory

JUMPS = [timedelta(days=3), timedelta(days=4000)]
BACK = [-jump for jump in JUMPS]


@pytest.mark.parametrize("jump", [*JUMPS, *BACK], ids=str)
def test_life_goes_on_after_a_jump_of_the_clock(jump: timedelta) -> None:
    """Each process after the jump has the new time. In each life it jumps at another moment."""
    calm = lived()
    for number in range(1, calm.store.requests.total(), 61):
        life = lived(number, jump)
        assert life.table == calm.table
        assert life.left() == calm.left()


@cache
def lived(number: int = 0, jump: timedelta = timedelta(0)) -> Life:
    """Return a life whose clock jumps at a request. Its texts and statistics are made at each step."""
    life = Life(Disturbed(memory()), memory().uri)

    def plan(call: Call) -> Fault:
        if call.number == number:
            life.offset = jump
        return Fault.NONE

    life.store.plan = plan
    for step in life.steps():
        step()
        state = life.opened().state
        summary_table.summary(state, RUN)
        durations = [line["end_to_end_duration"] for line in statistics.checkpoints(state)["history"]]
        assert all(duration >= -1 for duration in durations)
    return life


class Clock:
    """A wall clock that a person sets, and a monotonic one that goes on."""

    def __init__(self) -> None:
        self.set_by, self.passed = timedelta(0), timedelta(0)

    def wall(self) -> datetime:
        return BEGIN + self.passed + self.set_by

    def monotonic(self) -> float:
        return self.passed.total_seconds()


@pytest.mark.parametrize("jump", [timedelta(0), *JUMPS], ids=str)
def test_age_clock_that_is_set_forward_makes_nothing_older(jump: timedelta) -> None:
    clock = Clock()
    now = age_clock(clock.wall, clock.monotonic)
    clock.passed = timedelta(hours=2)
    clock.set_by = jump
    assert now() == "2026-11-20T02:00:00.000Z"


@pytest.mark.parametrize("jump", BACK, ids=str)
def test_age_clock_that_is_set_back_goes_back(jump: timedelta) -> None:
    clock = Clock()
    now = age_clock(clock.wall, clock.monotonic)
    clock.set_by = jump
    assert datetime.fromisoformat(now()) == BEGIN + jump
