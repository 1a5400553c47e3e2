"""The turns of a loop as the script iterates over them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import WrongUse
from airflow_checkpoint_provider.protocol.metadata import LOOP, ONCE
from airflow_checkpoint_provider.spark.loops.pace import Pace
from airflow_checkpoint_provider.spark.loops.turns import Loop, LoopTurns, iterator, watched


def turns(kind: str = LOOP, count: int = 3) -> LoopTurns:
    def advance(loop: Loop, _: LoopTurns) -> Any:
        return next(loop.items)

    return LoopTurns(Loop("count", kind, iter(range(count)), Pace(1, 1.0)), advance)


def test_script_that_breaks_has_left_the_loop() -> None:
    held: list[Callable[[], object]] = []

    def looped() -> Iterator[None]:
        made = turns()
        held.append(watched(made))
        return iter(made)

    for _ in looped():
        assert held[0]() is not None
        break
    assert held[0]() is None


@pytest.mark.parametrize("take", [list, tuple, sorted, operator.length_hint, lambda made: [0, *made]])
def test_who_takes_all_turns_at_once_is_refused(take: Callable[[Any], Any]) -> None:
    with pytest.raises(WrongUse, match=r'for item in job\.iterate\("count", \.\.\.\):'):
        take(turns())


def test_other_iterators_take_one_turn_after_the_other() -> None:
    assert [pair for pair in enumerate(turns())] == [(0, 0), (1, 1), (2, 2)]  # noqa: C416 - list() would ask for its length
    assert [pair for pair in zip(turns(), "ab", strict=False)] == [(0, "a"), (1, "b")]  # noqa: C416


def test_what_is_no_list_is_refused() -> None:
    with pytest.raises(WrongUse, match=r"are the text 'mon': write \['mon'\]"):
        iterator("mon")
    with pytest.raises(WrongUse, match="are int: give a list"):
        iterator(3)  # type: ignore[arg-type]


def test_barrier_is_named_after_the_finished_turns() -> None:
    assert Loop("rank", LOOP, iter(()), Pace(1, 1.0), turns=3).barrier == "turn 3 of loop 'rank'"
    assert Loop("days", ONCE, iter(()), Pace(1, 1.0), turns=1, done=["mon", "tue"]).barrier == "item 2 of loop 'days'"
