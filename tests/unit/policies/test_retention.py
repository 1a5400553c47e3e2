"""Which completed checkpoints a policy keeps, while the history lives and after its end (docs/concepts/checkpoints.md). Runs anywhere."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.policies.retention import (
    KeepAll,
    KeepLatest,
    KeepWithin,
    Retention,
    retention_from_json,
)
from airflow_checkpoint_provider.protocol.records import canonical

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Retainable:
    id: int
    completed_at: str


def taken(*hours_ago: float) -> tuple[Retainable, ...]:
    """Return chk-1, chk-2, … with the given ages in hours."""
    return tuple(
        Retainable(n, (NOW - timedelta(hours=age)).isoformat().replace("+00:00", "Z"))
        for n, age in enumerate(hours_ago, start=1)
    )


FIVE = taken(48, 24, 3, 2, 1)


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        pytest.param(KeepLatest(1), {5}, id="the newest"),
        pytest.param(KeepLatest(2), {4, 5}, id="the two newest"),
        pytest.param(KeepLatest(9), {1, 2, 3, 4, 5}, id="more than there are"),
        pytest.param(KeepWithin(hours=2), {4, 5}, id="within two hours, the second included"),
        pytest.param(KeepWithin(timedelta(hours=2)), {4, 5}, id="as a timedelta"),
        pytest.param(KeepWithin(minutes=1), set(), id="within a minute: none"),
        pytest.param(KeepAll(), {1, 2, 3, 4, 5}, id="all"),
        pytest.param(KeepLatest(1) | KeepWithin(days=1), {2, 3, 4, 5}, id="either"),
        pytest.param(KeepLatest(3) & KeepWithin(hours=2), {4, 5}, id="both"),
        pytest.param(KeepLatest(4) & KeepWithin(hours=3) | KeepLatest(1), {3, 4, 5}, id="joined further"),
    ],
)
def test_policy_keeps_the_checkpoints_of_its_row(policy: Retention, kept: set[int]) -> None:
    assert policy.keeps(FIVE, NOW) == kept
    assert policy.keeps(FIVE[::-1], NOW) == kept, "in any order"
    assert policy.keeps((), NOW) == frozenset()


def test_newest_checkpoint_is_the_highest_id() -> None:
    """Times come from clocks of several machines (trap 11)."""
    assert KeepLatest(1).keeps(taken(1, 48), NOW) == {2}


def test_checkpoint_with_a_future_time_is_kept() -> None:
    assert KeepWithin(hours=1).keeps(taken(-5), NOW) == {1}


@pytest.mark.parametrize(
    ("policy", "after"),
    [
        (KeepLatest(2), None),
        (KeepWithin(days=7), KeepWithin(days=7)),
        (KeepAll(), KeepAll()),
        (KeepLatest(2) | KeepWithin(days=7), KeepWithin(days=7)),
        (KeepWithin(days=7) & KeepLatest(2), KeepWithin(days=7)),
        (KeepLatest(2) | KeepLatest(3), None),
        (KeepWithin(days=7) | KeepAll(), KeepWithin(days=7) | KeepAll()),
        (KeepWithin(days=7) & KeepAll(), KeepWithin(days=7) & KeepAll()),
        ((KeepLatest(1) | KeepWithin(days=1)) & KeepAll(), KeepWithin(days=1) & KeepAll()),
    ],
)
def test_after_end_leaves_only_policies_of_age(policy: Retention, after: Retention | None) -> None:
    assert policy.after_end() == after


policies = st.recursive(
    st.integers(1, 9).map(KeepLatest)
    | st.integers(1, 99).map(lambda hours: KeepWithin(hours=hours))
    | st.just(KeepAll()),
    lambda inner: (
        st.tuples(inner, inner).map(lambda two: two[0] | two[1])
        | st.tuples(inner, inner).map(lambda two: two[0] & two[1])
    ),
    max_leaves=6,
)


@given(policies)
def test_policy_is_equal_after_json(policy: Retention) -> None:
    assert retention_from_json(json.loads(canonical(policy.to_json()))) == policy


@given(policies, policies, st.lists(st.floats(0, 99), max_size=12))
def test_joined_policies_keep_union_and_intersection(first: Retention, other: Retention, ages: list[float]) -> None:
    all_taken = taken(*ages)
    assert (first | other).keeps(all_taken, NOW) == first.keeps(all_taken, NOW) | other.keeps(all_taken, NOW)
    assert (first & other).keeps(all_taken, NOW) == first.keeps(all_taken, NOW) & other.keeps(all_taken, NOW)


@pytest.mark.parametrize("count", [0, -1, 1.5, "2", None, True])
def test_invalid_count_is_refused(count: Any) -> None:
    with pytest.raises(InvalidConfig, match="how many checkpoints to keep, 1 or more"):
        KeepLatest(count)


@pytest.mark.parametrize("age", [timedelta(0), timedelta(days=-1), None, "7 days", 7])
def test_invalid_age_is_refused(age: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"e\.g\. KeepWithin\(days=7\)"):
        KeepWithin(age)


@pytest.mark.parametrize("other", [5, "KeepAll()", None])
def test_policy_joins_only_policies(other: Any) -> None:
    with pytest.raises(InvalidConfig, match="is not a retention policy: join policies"):
        KeepLatest(2) | other
    with pytest.raises(InvalidConfig, match="is not a retention policy: join policies"):
        KeepLatest(2) & other


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"keep": "oldest"},
        {"keep": "latest"},
        {"keep": "either", "of": [{"keep": "all"}]},
        {"keep": "latest", "count": 0},
    ],
)
def test_policy_of_a_newer_version_is_refused(data: dict[str, Any]) -> None:
    """If it were read as "keep nothing", the last checkpoint would be deleted."""
    with pytest.raises(InvalidConfig):
        retention_from_json(data)


@pytest.mark.parametrize(
    "parts",
    [
        {"days": 10**400},
        {"days": 1e308},
        {"days": float("nan")},
        {"days": float("inf")},
        {"days": "7"},
        {"weeks": None},
        {"days": True},
    ],
)
def test_age_that_is_no_time_is_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=r"e\.g\. KeepWithin\(days=7\)"):
        KeepWithin(**parts)


def test_longest_timedelta_is_refused() -> None:
    """In seconds it rounds up, and no reader could turn it back."""
    with pytest.raises(InvalidConfig, match=r"KeepAll\(\)"):
        KeepWithin(timedelta.max)
