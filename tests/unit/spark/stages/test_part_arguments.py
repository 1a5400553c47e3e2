"""The checks of ``parts=`` and ``by=``. Run anywhere; tests of whole calls are in tests/integration/runtime/test_parts.py."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_checkpoint_provider.errors import InvalidConfig, WrongUse
from airflow_checkpoint_provider.spark.stages.part_arguments import MOST_PARTS, Parts

DAYS = ["mon", "tue"]


def of_day(day: Any) -> Any:
    """Stand for the function of a stage."""


@pytest.mark.parametrize(
    "parts", [DAYS, tuple(DAYS), range(3), [["a.csv", "b.csv"], {"from": 1}], [1, 1.5, True, None]]
)
def test_lists_of_json_are_parts(parts: Any) -> None:
    checked = Parts.of("days", of_day, parts, None)
    assert (checked.given, checked.values, checked.by) == (parts, list(parts), None)


def test_values_are_copies_that_the_script_cannot_change() -> None:
    parts = [["a.csv"]]
    checked = Parts.of("days", of_day, parts, None)
    parts[0].append("b.csv")
    assert checked.values == [["a.csv"]]


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([], "parts= is empty"),
        ({"mon", "tue"}, "parts= is a set. Give a list, in an order that is the same in each attempt"),
        ("mon", "parts= is a str"),
        (iter(DAYS), "parts= is a list_iterator"),
        (["mon", "tue", "mon"], 'parts= holds "mon" twice'),
        ([("mon", 1)], "part 1 of stage 'days': a tuple would come back as a list"),
        (range(MOST_PARTS + 1), "has 1001 parts, more than 1000"),
        (["x" * 60_000 + str(i) for i in range(5)], "bytes of JSON, more than"),
    ],
)
def test_other_lists_are_refused(parts: Any, why: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        Parts.of("days", of_day, parts, None)
    assert why in refused.value.message


def test_function_and_frame_are_not_taken_for_each_other() -> None:
    with pytest.raises(WrongUse, match=r"has parts=, and was given no function\. Give a function of one value"):
        Parts.of("days", object(), DAYS, None)
    with pytest.raises(WrongUse, match="a function that does not take one value"):
        Parts.of("days", lambda: None, DAYS, None)
    with pytest.raises(WrongUse, match=r"has by=, and was given a function\. Give the DataFrame"):
        Parts.of("days", of_day, None, "day")
    with pytest.raises(InvalidConfig, match="has parts= and by=: write one of them"):
        Parts.of("days", of_day, DAYS, "day")
    assert Parts.of("days", object(), None, "day").by == "day"
