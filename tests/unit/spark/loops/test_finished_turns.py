"""What a changed script does with the turns of loops that are finished."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import ItemsChanged
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.spark.state.carrying import of_next_run
from tests.unit.spark.loops.played import Played, Records, add, total

Capture = pytest.CaptureFixture[str]


# -- a list that ends before the finished turns ------------------------------------------------------------------------


def counted(attempt: Played, uid: str, items: range, every: int = 1) -> int:
    """Run a loop that adds 1 in each turn. Return the sum."""
    sums = attempt.frame("sums")
    for _ in attempt.iterate(uid, items, every):
        add(sums, 1)
    return total(sums)


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
    return total(frame), seen.get()


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


# -- items that are open again -------------------------------------------------------------------------------------------


def summed(attempt: Played, days: Iterable[Any], *, rates: str = "1-a", stop_at: str = "", ends: bool = True) -> int:
    """Do items of a history behind a stage. Return the sum. Break before the item ``stop_at``."""
    attempt.stage("rates", rates)
    sums = attempt.frame("sums")
    for day in attempt.once("days", days):
        if day == stop_at:
            break
        add(sums, 1)
    if ends:
        attempt.end()
    return total(sums)


def test_item_that_is_open_again_must_be_done_again(capsys: Capture) -> None:
    """For example, because the script lists the files that are there, and archives those of a done item."""
    first = Played()
    summed(first, ["mon", ["tue", 1], "wed"], stop_at="wed", ends=False)
    second = first.retry("rates corrected")
    with pytest.raises(
        ItemsChanged, match=r"2 items of this run were done, are open again .*: 'mon', \['tue', 1\]\. .*run-start"
    ):
        summed(second, ["wed"], rates="2-b")
    assert "Open again, so give them once more: 'mon', ['tue', 1]  [CKP161]" in capsys.readouterr().out
    third = second.retry("rates corrected")
    with pytest.raises(ItemsChanged, match=r"1 item of this run was done, is open again .*: 'mon'\."):
        summed(third, [("tue", 1), "thu"], rates="2-b")
    fourth = third.retry("the list corrected")
    assert summed(fourth, ["mon", "thu"], rates="2-b") == 4
    assert fourth.held("days") == ["wed", ["tue", 1], "thu", "mon"]
    assert summed(fourth.next_run(), ["fri"]) == 5


def test_loop_that_has_no_item_must_do_it_again_and_so_must_a_script_that_catches_the_error() -> None:
    first = Played()
    summed(first, ["mon"], ends=False)
    second = first.retry("rates corrected")
    for _ in range(2):
        with pytest.raises(ItemsChanged, match="is open again"):
            summed(second, [], rates="2-b", ends=False)
    with pytest.raises(ItemsChanged, match="is open again"):
        second.end()


@pytest.mark.parametrize("changed", [False, True])
def test_next_run_does_an_item_before_which_the_script_leaves_the_loop(changed: bool, capsys: Capture) -> None:
    """For example, because its time is up. The list still has the item, or gets it again."""
    first, days = Played(), ["mon", "tue", "wed"]
    summed(first, days, stop_at="wed", ends=False)
    second = first.retry("rates corrected" if changed else "first")
    assert summed(second, iter(days), rates="2-b", stop_at="tue", ends=False) == 1
    third = second.next_run()
    said = capsys.readouterr().out
    assert "loop 'days': 1 item of this run was done, and is open again (CKP161): 'tue'. The script has ended" in said
    assert "[CKP166]" in said
    assert summed(third, days) == 3
    assert third.held("days") == days
    assert "CKP166" not in capsys.readouterr().out


@pytest.mark.parametrize("earlier", [False, True], ids=["first run", "later run"])
@pytest.mark.parametrize("begun", [False, True])
def test_items_of_a_loop_to_which_the_script_has_not_come_are_named(
    begun: bool, earlier: bool, capsys: Capture
) -> None:
    first = Played()
    if earlier:
        summed(first, ["sun"], ends=False)
        first = first.next_run()
    summed(first, ["mon"], ends=False)
    second = first.retry()
    second.stage("rates", "2-b")
    next(second.once("days", ["mon"]))  # its turns count no longer, and the attempt fails
    third = second.retry()
    third.stage("rates", "2-b")
    if begun:
        third.once("days", ["mon"])
    capsys.readouterr()
    third.end()
    assert "is open again (CKP161): 'mon'. The script has ended before the end of this loop" in capsys.readouterr().out
    assert summed(third.next_run(), ["mon"]) == 1 + earlier


def test_item_that_an_earlier_run_has_done_is_not_open_again() -> None:
    first = Played()
    summed(first, ["mon"], ends=False)
    second = first.next_run()
    summed(second, ["tue"], ends=False)
    third = second.retry("rates corrected")
    with pytest.raises(ItemsChanged, match=r"1 item .*: 'tue'\."):
        summed(third, ["wed"], rates="2-b")
    assert third.held("days") == ["mon", "wed"]


def test_loop_behind_another_one_that_goes_further_must_do_its_items_again() -> None:
    def run(attempt: Played, steps: int, days: list[str]) -> int:
        sums = attempt.frame("sums")
        for _ in attempt.iterate("steps", range(steps)):
            add(sums, 10)
        for _ in attempt.once("days", days):
            add(sums, 1)
        return total(sums)

    first = Played()
    assert run(first, 1, ["mon"]) == 11
    second = first.retry()
    for _ in second.iterate("steps", range(2)):
        add(second.frame("sums"), 10)
    assert second.held("days") == []
    assert "days" not in {record.uid for record in carried(second.records())}, "another run need not do them"
    with pytest.raises(ItemsChanged, match="'mon'"):
        run(second.retry(), 2, ["tue"])
    assert run(second.retry(), 2, ["tue", "mon"]) == 22


def carried(records: Records) -> list[StateSnapshot]:
    return [kept for record in records if (kept := of_next_run(record, "another run"))]


def test_items_of_a_loop_that_the_script_has_no_longer_are_not_awaited() -> None:
    first = Played()
    summed(first, ["mon"], ends=False)
    second = first.retry("without the loop")
    for _ in second.iterate("steps", [1]):
        add(second.frame("sums"), 1)
    second.end()
    assert "days" not in {record.uid for record in second.records()}
