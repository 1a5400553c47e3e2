"""Each seeded bug breaks a property, within bounds in which the real protocol holds all properties. Runs anywhere."""

from __future__ import annotations

import pytest

from tests.model import bugs, savepoint_scenarios, saving_bugs, scenarios, sink_bugs
from tests.model.actors import rescuer
from tests.model.bugs import LATER, NO_PLACE
from tests.model.explore import Breach

WORLDS = 60_000
BUGS = bugs.BUGS | saving_bugs.BUGS
SMALL = scenarios.SMALL | savepoint_scenarios.SMALL


LONG = ("11", "13", "35", "g", "h", "i", "s")
"""Slow: each takes more than a second. The others show the same in milliseconds, each property by a bug that breaks it."""


@pytest.mark.parametrize(
    "number", [pytest.param(number, marks=pytest.mark.slow) if number in LONG else number for number in BUGS]
)
def test_seeded_bug_is_caught(number: str) -> None:
    bug = BUGS[number]
    scenario = SMALL[bug.scenario]()
    with bug.patch():
        explorer = scenario.explorer()
        found = explorer.walk(bug.walks, depth=120, last=(rescuer,)) if bug.walks else explorer.exhaust(WORLDS)
    assert isinstance(found, Breach), f"{bug.title}: {found} worlds without a breach"
    assert found.property.startswith(bug.breaks), f"{found.property}\n" + "\n".join(found.trace)


def test_every_known_bug_is_seeded_or_listed_with_a_reason() -> None:
    """The known bugs have the numbers 1 to 52; there is no 49."""
    numbers = [
        *filter(str.isdecimal, BUGS | sink_bugs.BUGS),
        *NO_PLACE,
        *(number for reason in LATER.values() for number in reason),
    ]
    assert sorted(map(int, numbers)) == [*range(1, 49), 50, 51, 52]
