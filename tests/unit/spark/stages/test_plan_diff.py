"""The comparison of a plan with the stored plan: bounded, and never the end of a stage. Runs anywhere."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.spark.stages import plan_diff
from airflow_checkpoint_provider.spark.stages.plan import Plan
from airflow_checkpoint_provider.spark.stages.plan_diff import difference, difference_from_stored
from airflow_checkpoint_provider.storage import MemoryStore

KEY = "jobs/orders/runs/r/state/clean/1-abc/plan.json"
SCHEMA = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}


def plan(tree: Sequence[str] = ("Relation [id]",), exact: str = "x", leaves: Any = (), **schema: Any) -> Plan:
    text = "\n".join(["schema " + json.dumps(SCHEMA | schema), "conf a=1", "analysed", *tree, "exact", exact])
    return Plan(
        digest="d", read="r", text=text, leaves=tuple(leaves), python=False, local_rows=False, inputs=(), sorted=False
    )


def as_it_is(text: str) -> str:
    return text


def stored(body: bytes) -> MemoryStore:
    store = MemoryStore()
    store.create(KEY, body)
    return store


def body_of(old: Plan) -> bytes:
    return canonical({"v": 1, **old.to_json()})


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of lines that were compared with each other: the comparison's time grows with their third power."""
    sizes: list[int] = []

    class Matcher(difflib.SequenceMatcher[str]):
        def __init__(self, isjunk: None, a: Sequence[str] = "", b: Sequence[str] = "", autojunk: bool = True) -> None:
            sizes.append(max(len(a), len(b)))
            super().__init__(isjunk, a, b, autojunk)

    monkeypatch.setattr(difflib, "SequenceMatcher", Matcher)
    return sizes


REPEATED = ["x"] * 2000
MIXED = [line for number in range(1000) for line in ("x", f"y{number}")]


def test_difference_of_long_trees_is_cut_and_says_so(compared: list[int]) -> None:
    assert difference(plan(REPEATED), plan(MIXED)) == "`x` → `y999` (of the last 300 lines)"
    assert max(compared) <= 300


def test_difference_in_the_middle_of_long_trees_is_not_cut(compared: list[int]) -> None:
    old, new = ([*REPEATED, f"Filter (id > {least})", *REPEATED] for least in (1, 2))
    assert difference(plan(old), plan(new)) == "`id > 1` → `2`"
    assert max(compared) <= 300


def test_count_of_many_different_lines_is_cut(compared: list[int]) -> None:
    line = difference(plan(exact="\n".join(REPEATED)), plan(exact="\n".join(MIXED)))
    assert line == "the plan differs (more than 300 lines)"
    assert max(compared) <= 300


def test_many_casts_without_an_end_take_linear_time() -> None:
    open_cast = "cast(" + "a as " * 200_000
    assert difference(plan([f"{open_cast}1"]), plan([f"{open_cast}2"])) == "`as a as 1` → `2`"


def test_casts_do_not_count_as_a_difference() -> None:
    old, new = plan(["cast(id as int) > 1"]), plan(["cast(id as bigint) > 1"])
    assert difference(old, new) == "the plan differs (1 lines)"


def test_line_is_bounded_whatever_the_names_are() -> None:
    old = replace(plan(), text=plan().text.replace("conf a=1", f"conf {'A' * 1000}=1"))
    assert len(difference(old, plan())) == plan_diff.LONGEST


def test_plan_that_is_gone_is_named() -> None:
    assert difference_from_stored(MemoryStore(), KEY, plan(), as_it_is) == "the text of the stored plan is gone"


def test_plan_that_is_too_large_is_not_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_diff, "LARGEST", 100)
    line = difference_from_stored(stored(body_of(plan())), KEY, plan(), as_it_is)
    assert line == "the text of the stored plan is longer than 100 bytes, too long to compare"


@pytest.mark.parametrize(
    "old",
    [
        plan(leaves=[{"uid": "clean"}]),
        plan(leaves=[{"leaf": "Parquet", "file_set": "a"}]),
        plan(leaves=[{"leaf": "Parquet", "paths": 7}]),
        plan(leaves=[{"leaf": "Parquet", "paths": [1]}]),
        plan(fields=[{}]),
        plan(fields=7),
        plan(fields=[SCHEMA["fields"][0] | {"more": 1}]),  # type: ignore[operator]
        replace(plan(), text=plan().text.replace("schema ", "schema " + "[" * 10_000)),
        replace(plan(), text=plan().text.replace("conf a=1", "conf a")),
    ],
)
def test_stored_plan_of_another_shape_is_no_plan_to_compare_with(old: Plan) -> None:
    leaf = {"leaf": "Parquet", "paths": ["in"]}
    line = difference_from_stored(stored(body_of(old)), KEY, plan(leaves=[leaf] * len(old.leaves)), as_it_is)
    assert line.startswith("the stored plan is not of the shape that this version writes (")
    assert len(line) <= plan_diff.LONGEST


@pytest.mark.parametrize("body", [b"", b"[" * 100_000, b'{"v":1}', b'{"v":1,"digest":7}', b'{"v":9}', b"\xff\x00"])
def test_stored_plan_that_is_damaged_is_no_plan_to_compare_with(body: bytes) -> None:
    line = difference_from_stored(stored(body), KEY, plan(), as_it_is)
    assert line.startswith("the text of the stored plan cannot be read (")


def test_difference_that_is_hidden_is_called_so() -> None:
    assert difference(plan(), plan()) == "a text that the session's redaction hides"


def test_plan_that_was_stored_before_there_was_a_pattern_is_hidden_now() -> None:
    def hide(text: str) -> str:
        return re.sub(r"secret-\w+", "***", text)

    old, new = plan(["Filter (key = secret-alpha)"]), plan(["Filter (key = secret-bravo)"]).redacted(hide)
    assert difference_from_stored(stored(body_of(old)), KEY, new, hide) == "a text that the session's redaction hides"
