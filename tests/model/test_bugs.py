"""Each mistake of ``bugs`` breaks a property, within bounds in which the unpatched protocol holds them all. Runs anywhere."""

from __future__ import annotations

import pytest

from tests.model.bugs import BUGS
from tests.model.explore import Found
from tests.model.scenarios import SMALL

WORLDS = 60_000


@pytest.mark.parametrize("number", BUGS)
def test_it_is_caught(number: str) -> None:
    bug = BUGS[number]
    scenario = SMALL[bug.scenario]()
    with bug.patch():
        found = scenario.explorer().exhaust(WORLDS)
    assert isinstance(found, Found), f"{bug.title}: {found} worlds without a breach"
    assert found.property.startswith(bug.breaks), f"{found.property}\n" + "\n".join(found.trace)
