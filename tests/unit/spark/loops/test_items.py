"""The items of a loop: a retry knows them again, and a history remembers them."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import InvalidConfig, ItemsChanged
from airflow_checkpoint_provider.spark.loops import items

AGAIN = "checkpoints restore orders --from run-start"


def digests(*done: Any) -> str:
    return "".join(items.item_digest(items.item_json("count", item)) for item in done)


@pytest.mark.parametrize(
    ("item", "body"),
    [(3, b"3"), ("mon", b'"mon"'), ((1, ("a", 2.5)), b'[1,["a",2.5]]'), ({"b": 1, "a": None}, b'{"a":null,"b":1}')],
)
def test_item_is_json(item: Any, body: bytes) -> None:
    assert items.item_json("count", item) == body


@pytest.mark.parametrize("item", [date(2026, 11, 27), {1}, float("nan"), object(), b"x"])
def test_item_that_is_no_json_is_refused(item: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"loop 'count': the item .* is no JSON .*such as str\(day\)"):
        items.item_json("count", item)


def test_item_that_lies_too_deep_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(InvalidConfig, match="is no JSON"):
        items.item_json("count", deep)


def test_large_item_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="has 4097 bytes of JSON, 4096 are allowed"):
        items.item_json("count", "x" * 4095)


def test_items_of_finished_turns_are_skipped() -> None:
    left = iter([0, 1, 2, 3])
    assert items.skip_finished("count", left, digests(0, 1), AGAIN) == 2
    assert list(left) == [2, 3]


def test_shorter_list_is_finished() -> None:
    assert items.skip_finished("count", iter([0]), digests(0, 1), AGAIN) == 1


def test_first_item_that_differs_is_named() -> None:
    with pytest.raises(ItemsChanged, match=rf"loop 'count': item 2 is 7 now, .* 3 turns are finished\. .*: {AGAIN}"):
        items.skip_finished("count", iter([0, 7, 8]), digests(0, 1, 2), AGAIN)


def test_long_item_is_shown_by_its_beginning() -> None:
    assert items.shown("x" * 200) == f"'{'x' * 79}…"


def test_too_many_done_items_are_refused() -> None:
    done = [b'"%d"' % number + b" " * 4_000 for number in range(1_100)]
    with pytest.raises(InvalidConfig, match=r"its history has 1100 done items in .* such as one item for a day"):
        items.refuse_many("days", done)
    items.refuse_many("days", done[:1_000])
