"""A write that a checkpoint holds is compared with the write that the script asks for now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_checkpoint_provider.protocol.transactions import Origin
from airflow_checkpoint_provider.spark.sinks.replay import OPAQUE, OTHER_OPTIONS, REBUILT, difference

STORED = Origin(
    plan="p",
    inputs="i",
    python=True,
    application="a",
    earlier_stages="s",
    listed="l",
    captured={"rate": "7"},
    options="o",
)
VALUES = {"rate": "19", "limit": "3"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"plan": "q"}, "its plan changed"),
        ({"plan": "q", "inputs": "j"}, REBUILT),
        ({"plan": "q", "captured": VALUES}, "its plan changed: the value of `limit`, `rate` in a Python function"),
        ({"earlier_stages": "t"}, f"{OPAQUE}, and {REBUILT}"),
        ({"application": "b"}, f"the application changed and {OPAQUE}, so equal rows cannot be proved"),
        ({"application": "b", "python": False}, ""),
        ({"options": "other"}, OTHER_OPTIONS),
        ({"options": "", "plan": "q"}, OTHER_OPTIONS),
        ({"listed": "m"}, ""),
        ({"listed": "m", "generation": 1}, "its inputs moved, and the task was cleared"),
        ({"listed": "m", "application": "b", "python": False}, "its inputs moved, and the application changed"),
    ],
)
def test_difference_says_why_the_rows_may_differ(changes: dict[str, Any], why: str) -> None:
    assert difference(STORED, replace(STORED, **changes)) == why


def test_options_that_an_older_attempt_has_not_noted_are_not_compared() -> None:
    assert difference(replace(STORED, options=""), STORED) == ""
