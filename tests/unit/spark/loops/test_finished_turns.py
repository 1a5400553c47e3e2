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


# -- a loop before it that ends by break -------------------------------------------------------------------------------


def cleaned_and_scored(attempt: Played, clean: int | None, adds: int = 100) -> tuple[int, int]:
    """Return what two loops come to in a frame and in a value. ``clean``: the turns of the first one before break; None: it is not there."""
    frame, seen = attempt.frame("f"), attempt.value("seen")

    def change(number: int) -> None:
        add(frame, number)
        seen.set(seen.get() + number)

    for turn in () if clean is None else attempt.iterate("clean", range(9), every=10):
        if turn == clean:
            break
        change(adds)
    for _ in attempt.iterate("score", range(3)):
        change(1)
    return frame.df, seen.get()  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("before", "after", "right"),
    [
        ((None, 0), (2, 100), 203),
        ((2, 100), (4, 100), 403),
        ((4, 100), (2, 100), 203),
        ((2, 100), (2, 10), 23),
        ((2, 100), (None, 0), 3),
    ],
    ids=["new", "longer", "shorter", "other changes", "gone"],
)
def test_turns_are_run_again_behind_other_changes_of_a_loop_that_ends_by_break(
    before: tuple[int | None, int], after: tuple[int | None, int], right: int, capsys: Capture
) -> None:
    """No barrier has stored these changes, so that they would be lost without a line."""
    first = Played()
    cleaned_and_scored(first, *before)
    second = first.retry("second")
    assert cleaned_and_scored(second, *after) == (right, right)
    assert "loop 'score': its 3 turns are run again. Loop 'clean' before it ends by break" in capsys.readouterr().out
    assert cleaned_and_scored(second.retry("second"), *after) == (right, right)
    assert "are run again" not in capsys.readouterr().out


def test_turns_are_kept_behind_a_loop_that_is_left_without_a_change(capsys: Capture) -> None:
    first = Played()
    assert cleaned_and_scored(first, 0) == (3, 3)
    assert cleaned_and_scored(first.retry("second"), 0) == (3, 3)
    assert "are run again" not in capsys.readouterr().out
