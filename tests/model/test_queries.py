"""A query that drivers take over from each other keeps its rules, and each seeded bug breaks one of them. Runs anywhere."""

from __future__ import annotations

import pytest

from tests.model.explore import Breach, broken
from tests.model.queries import Kind, Schedules
from tests.model.query_bugs import BUGS

KINDS = {
    "with state": Kind(),
    "without state": Kind(stateful=False),
    "in S3": Kind(s3=True),
    "without state, in S3": Kind(stateful=False, s3=True),
    "that goes back": Kind(goes_back=True),
    "that goes back, in S3": Kind(s3=True, goes_back=True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_query_that_is_taken_over_keeps_all_rules(kind: str) -> None:
    assert not broken(Schedules(3, KINDS[kind]).rounds(3))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_query_that_is_taken_over_keeps_all_rules_in_many_rounds(kind: str) -> None:
    for seed in range(1, 11):  # each with a new memory; 400 rounds find each seeded bug
        assert not broken(Schedules(2 + seed % 2, KINDS[kind]).rounds(100, seed=seed))


@pytest.mark.parametrize("name", [name for name, bug in BUGS.items() if bug.schedule])
def test_schedule_that_leads_to_a_bug_keeps_all_rules(name: str) -> None:
    bug = BUGS[name]
    assert not broken(Schedules(3, bug.kind).directed(*bug.schedule))


@pytest.mark.parametrize("name", BUGS)
def test_seeded_bug_of_taking_over_is_caught(name: str) -> None:
    bug = BUGS[name]
    with bug.patch():
        schedules = Schedules(3, bug.kind)
        found = schedules.directed(*bug.schedule) if bug.schedule else schedules.rounds(20, seed=bug.seed)
    assert isinstance(found, Breach), f"{bug.title}: not caught"
    assert found.property.startswith(bug.breaks), broken(found)
