"""The protocol keeps every property in every scenario. Runs anywhere.

Small scenarios are searched breadth first. All scenarios are walked at random; from the end of a
walk one actor alone must settle everything (P10, P12). ``make test-slow`` searches much further.
"""

from __future__ import annotations

import math
from time import monotonic

import pytest

from tests.model import savepoint_scenarios, scenarios
from tests.model.actors import rescuer
from tests.model.explore import broken
from tests.model.scenarios import Scenario

SMALL = scenarios.SMALL | savepoint_scenarios.SMALL
LARGE = scenarios.LARGE | savepoint_scenarios.LARGE


def walked(scenario: Scenario, walks: int, depth: int, seconds: float = math.inf) -> tuple[str, int]:
    """Return the broken property with its trace, and the number of moves. Each hundred walks get a new explorer, which
    limits the memory; none starts after ``seconds``."""
    made, end = 0, monotonic() + seconds
    for seed in range(-(-walks // 100)):
        explorer = scenario.explorer()
        found = broken(explorer.walk(min(walks, 100), seed=seed, depth=depth, last=(rescuer,)))
        made += explorer.made
        if found or monotonic() > end:
            return found, made
    return "", made


@pytest.mark.parametrize("name", SMALL)
def test_small_scenario_keeps_all_properties(name: str) -> None:
    assert not broken(SMALL[name]().explorer().exhaust(2_000))


@pytest.mark.parametrize("name", SMALL)
def test_small_scenario_can_be_settled_after_a_random_walk(name: str) -> None:
    found, _ = walked(SMALL[name](), 5, 120)
    assert not found


@pytest.mark.parametrize("name", LARGE)
def test_large_scenario_keeps_all_properties_in_random_walks(name: str) -> None:
    found, _ = walked(LARGE[name](), 8, 300)
    assert not found


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SMALL)
def test_small_scenario_keeps_all_properties_in_a_long_search(name: str) -> None:
    assert not broken(SMALL[name]().explorer().exhaust(400_000))
    found, _ = walked(SMALL[name](), 300, 200)
    assert not found


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LARGE)
def test_large_scenario_keeps_all_properties_in_long_walks(name: str) -> None:
    found, made = walked(LARGE[name](), 10_000, 600, seconds=1500)
    assert not found
    assert made >= 100_000
