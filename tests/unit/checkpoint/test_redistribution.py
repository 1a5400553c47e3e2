"""List states handed out to another number of subtasks: split, union, broadcast."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_checkpoint_provider.checkpoint.errors import InvalidConfig
from airflow_checkpoint_provider.checkpoint.redistribution import broadcast, split, union

LISTS = st.lists(st.lists(st.integers(), max_size=8), min_size=1, max_size=9)
SUBTASKS = st.integers(1, 12)


@pytest.mark.parametrize(
    ("rule", "old", "new"),
    [
        ("as many subtasks: each keeps its own, even or not", ["abcd", "", "e"], ["abcd", "", "e"]),
        ("fewer, and it comes out even", ["ab", "cd", "ef"], ["abc", "def"]),
        ("fewer: the first get one more", ["abc", "de"], ["abcde"]),
        ("fewer, of several", ["abc", "de", "fgh"], ["abcd", "efgh"]),
        ("more: one each", ["ab", "cd"], ["a", "b", "c", "d"]),
        ("more: the first get one more", ["abcde", "fg"], ["abc", "de", "fg"]),
        ("more than there are items: the last get none", ["ab", "c"], ["a", "b", "c", "", ""]),
        ("subtasks without items are passed over", ["", "abc", "", "d"], ["a", "b", "c", "d", ""]),
        ("nothing to hand out", ["", ""], ["", "", ""]),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_split(rule: str, old: list[str], new: list[str]) -> None:
    assert split(old, len(new)) == [list(items) for items in new]


@pytest.mark.parametrize(
    ("rule", "old", "parallelism"),
    [("as many subtasks", ["ab", "", "c"], 3), ("fewer", ["ab", "c"], 1), ("more", ["abc"], 4)],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_union_gives_all_to_all(rule: str, old: list[str], parallelism: int) -> None:
    assert union(old, parallelism) == [["a", "b", "c"]] * parallelism


@pytest.mark.parametrize(
    ("rule", "old", "new"),
    [
        ("as many subtasks: each its own", ["a", "b"], ["a", "b"]),
        ("fewer: the first ones' stay", ["a", "b", "c"], ["a", "b"]),
        ("more: copies, in turn", ["a", "b"], ["a", "b", "a", "b", "a"]),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_broadcast(rule: str, old: list[str], new: list[str]) -> None:
    assert broadcast(old, len(new)) == [list(items) for items in new]


@given(LISTS, SUBTASKS)
def test_split_loses_and_doubles_nothing_and_keeps_the_order(old: list[list[int]], parallelism: int) -> None:
    new = split(old, parallelism)
    assert len(new) == parallelism
    assert list(chain.from_iterable(new)) == list(chain.from_iterable(old))


@given(LISTS, SUBTASKS)
def test_split_is_even_once_the_number_of_subtasks_changes(old: list[list[int]], parallelism: int) -> None:
    sizes = [len(items) for items in split(old, parallelism)]
    if parallelism == len(old):
        assert sizes == [len(items) for items in old]
    else:
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] - sizes[-1] <= 1


@given(LISTS, SUBTASKS)
def test_union_gives_everything_to_everyone(old: list[list[int]], parallelism: int) -> None:
    assert union(old, parallelism) == [list(chain.from_iterable(old))] * parallelism


@given(st.lists(st.integers(), max_size=5), st.integers(1, 9), SUBTASKS)
def test_broadcast_gives_everyone_what_all_had(held: list[int], before: int, after: int) -> None:
    assert broadcast([held] * before, after) == [held] * after


@pytest.mark.parametrize("hand_out", [split, union, broadcast])
def test_what_is_handed_out_is_a_copy(hand_out: Callable[..., Any]) -> None:
    old = [[1], [2]]
    for parallelism in (1, 2, 3):
        hand_out(old, parallelism)[0].append(9)
    assert old == [[1], [2]]


@pytest.mark.parametrize("hand_out", [split, union, broadcast])
@pytest.mark.parametrize(("old", "parallelism"), [([], 1), ([[1]], 0), ([[1]], -1)])
def test_no_subtasks(hand_out: Callable[..., Any], old: list[list[int]], parallelism: int) -> None:
    with pytest.raises(InvalidConfig):
        hand_out(old, parallelism)
