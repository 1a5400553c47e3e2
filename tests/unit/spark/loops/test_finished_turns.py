"""What a changed script does with the turns of loops that are finished."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.errors import ItemsChanged
from tests.unit.spark.loops.played import Played, add

Capture = pytest.CaptureFixture[str]


# -- a list that ends before the finished turns ------------------------------------------------------------------------


def counted(attempt: Played, uid: str, items: range, every: int = 1) -> int:
    """Run a loop that adds 1 in each turn. Return the sum."""
    total = attempt.frame("total")
    for _ in attempt.iterate(uid, items, every):
        add(total, 1)
    return total.df  # type: ignore[return-value]


@pytest.mark.parametrize("left", [0, 1, 3, 4])
def test_changed_script_may_not_give_fewer_items_than_turns_are_finished(left: int) -> None:
    """For example, because it runs the other items in another loop now: their turns would count twice."""
    first = Played()
    counted(first, "train", range(5))
    split = first.retry("split")
    with pytest.raises(
        ItemsChanged, match=rf"its list ends after {left} items? now, and 5 turns are finished\..*run-start"
    ):
        counted(split, "train", range(left))
    assert split.held("train") == {"turns": 5}
    assert counted(first.retry("longer"), "train", range(6)) == 6


def test_shorter_list_of_the_same_script_is_said(capsys: Capture) -> None:
    first = Played()
    counted(first, "train", range(5))
    assert counted(first.retry(), "train", range(3)) == 5
    said = capsys.readouterr().out
    assert "loop 'train': its list ends after 3 items now, and 5 turns are finished. What all of them have left" in said
    assert "[CKP167]" in said
