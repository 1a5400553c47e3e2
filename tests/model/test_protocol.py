"""The protocol as it is keeps every property in every scenario. Runs anywhere.

The small ones are searched breadth first, most of them to the end; all are walked at random, and from wherever a walk stops
one actor alone must get everything settled (P10, P12). ``make test-slow`` looks much further.
"""

from __future__ import annotations

import pytest

from tests.model import savepoint_scenarios, scenarios
from tests.model.actors import rescuer
from tests.model.explore import Found
from tests.model.scenarios import Scenario

SMALL = scenarios.SMALL | savepoint_scenarios.SMALL
LARGE = scenarios.LARGE | savepoint_scenarios.LARGE


def broken(found: Found | int) -> str:
    return "" if isinstance(found, int) else "\n".join((found.property, *found.trace))


def walked(scenario: Scenario, walks: int, depth: int) -> str:
    """A new explorer every hundred walks: what one remembers of its worlds is not wanted again."""
    batches = (
        scenario.explorer().walk(min(walks, 100), seed=seed, depth=depth, last=(rescuer,))
        for seed in range(-(-walks // 100))
    )
    return next((text for text in map(broken, batches) if text), "")


@pytest.mark.parametrize("name", SMALL)
def test_a_small_scenario_holds(name: str) -> None:
    assert not broken(SMALL[name]().explorer().exhaust(25_000))


@pytest.mark.parametrize("name", SMALL)
def test_a_small_scenario_can_be_settled_from_anywhere(name: str) -> None:
    assert not walked(SMALL[name](), 15, 120)


@pytest.mark.parametrize("name", LARGE)
def test_a_large_scenario_holds(name: str) -> None:
    assert not walked(LARGE[name](), 100, 400)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SMALL)
def test_a_small_scenario_holds_far_out(name: str) -> None:
    assert not broken(SMALL[name]().explorer().exhaust(400_000))
    assert not walked(SMALL[name](), 300, 200)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LARGE)
def test_a_large_scenario_holds_far_out(name: str) -> None:
    assert not walked(LARGE[name](), 10_000, 600)
