"""A target keeps its rules whoever commits, aborts, sleeps or dies, and each seeded bug breaks one of them. Runs anywhere."""

from __future__ import annotations

import pytest

from tests.model.explore import Breach, broken
from tests.model.sink_bugs import BUGS
from tests.model.sink_scenarios import AT_TARGET, OF_DRIVERS

SCENARIOS = AT_TARGET | OF_DRIVERS
WORLDS = 60_000


@pytest.mark.parametrize("name", SCENARIOS)
def test_sink_keeps_all_rules(name: str) -> None:
    assert not broken(SCENARIOS[name]().explorer().exhaust(1_500))


@pytest.mark.parametrize("name", SCENARIOS)
def test_sink_can_be_settled_after_a_random_walk(name: str) -> None:
    scenario = SCENARIOS[name]()
    assert not broken(scenario.explorer().walk(10, depth=150, last=scenario.last))


@pytest.mark.slow  # the two above
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SCENARIOS)
def test_sink_keeps_all_rules_in_a_long_search(name: str) -> None:
    assert not broken(SCENARIOS[name]().explorer().exhaust(400_000))
    for seed in range(1, 11):
        scenario = SCENARIOS[name]()
        assert not broken(scenario.explorer().walk(300, seed=seed, depth=200, last=scenario.last))


@pytest.mark.slow  # as before
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SCENARIOS)
def test_sink_can_be_settled_from_every_moment(name: str) -> None:
    scenario = SCENARIOS[name]()
    assert not broken(scenario.explorer().exhaust(20_000, scenario.last))


LONG = ("39", "40", "H")
"""Slow: each takes more than a second. The others show the same in milliseconds, each rule by a bug that breaks it."""


@pytest.mark.parametrize(
    "number", [pytest.param(number, marks=pytest.mark.slow) if number in LONG else number for number in BUGS]
)
def test_seeded_bug_of_sinks_is_caught(number: str) -> None:
    bug = BUGS[number]
    scenario = SCENARIOS[bug.scenario]()
    with bug.patch():
        explorer = scenario.explorer()
        found = explorer.walk(bug.walks, depth=150, last=scenario.last) if bug.walks else explorer.exhaust(WORLDS)
    assert isinstance(found, Breach), f"{bug.title}: {found} without a breach"
    assert found.property.startswith(bug.breaks), broken(found)
