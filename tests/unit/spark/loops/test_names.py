"""Wrong names in loops, and names that only some turns open."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_checkpoint_provider.errors import NonRestoredState
from tests.unit.spark.loops.played import Played, add, total

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("loops", ["a", "ab", "ba", "abc"])
def test_frame_that_a_turn_has_opened_is_in_its_place_whatever_loops_come_after(loops: str) -> None:
    """A new frame beside it is not its new name."""

    def run(attempt: Played) -> None:
        for loop in loops:
            for _ in attempt.iterate(loop, [1]):
                add(attempt.frame(f"of-{loop}"), 1)

    first = Played()
    run(first)
    second = first.retry("with one more frame")
    run(second)
    second.frame("late")
    second.end()
    assert [second.held(f"of-{loop}") for loop in loops] == [1] * len(loops)


@pytest.mark.parametrize("kind", ["frame", "value"])
def test_state_that_the_script_had_opened_before_the_loops_is_missed(kind: str) -> None:
    first = Played()
    sums, seen = (
        first.frame("sum" if kind == "frame" else "same"),
        first.value("sum" if kind == "value" else "same-too"),
    )
    for loop in ("a", "b"):
        for _ in first.iterate(loop, [1]):
            add(sums, 1)
            seen.set(seen.get() + 1)
    second = first.retry("corrected")
    second.frame("sums" if kind == "frame" else "same")
    second.value("sums" if kind == "value" else "same-too")
    for loop in ("a", "b"):
        assert next(second.iterate(loop, [1]), None) is None
    with pytest.raises(NonRestoredState, match=rf"{kind} 'sum', and used the new {kind} 'sums'"):
        second.end()


# -- names that turns open -----------------------------------------------------------------------------------------------


def days_of(attempt: Played, days: list[str], name: str, *, before: str = "", kind: str = "once") -> list[str]:
    """Add to a frame and to a value that the turns open. ``before``: the script opens them before the loop, under this name."""
    if before:
        attempt.frame(before)
        attempt.value(f"of-{before}")
    done = []
    for day in getattr(attempt, kind)("days", days):
        add(attempt.frame(name), 1)
        seen = attempt.value(f"of-{name}")
        seen.set(seen.get() + 1)
        done.append(day)
    return done


@pytest.mark.parametrize("before", ["", "sum"])
def test_turn_is_not_stored_that_opens_a_new_state_in_place_of_one_that_the_script_had(before: str) -> None:
    """The corrected script would take its item for done."""
    first = Played()
    days_of(first, ["mon"], "sums", before="sums")
    second = first.next_run("with a typing error")
    with pytest.raises(
        NonRestoredState, match=r"frame 'sums' so far, and used the new frame 'sum', .* value 'of-sums'"
    ):
        days_of(second, ["tue"], "sum", before=before)
    assert second.held("days") == ["mon"]
    corrected = first.next_run("corrected")
    assert days_of(corrected, ["mon", "tue"], "sums", before="sums") == ["tue"]
    assert (corrected.held("sums"), corrected.held("of-sums")) == (2, 2)


def test_name_that_moves_out_of_the_turns_is_missed_afterwards() -> None:
    first = Played()
    days_of(first, ["mon"], "sums")
    second = first.next_run("opens it before the loop")
    days_of(second, ["tue"], "sums", before="sums")
    third = second.next_run("with a typing error")
    with pytest.raises(NonRestoredState, match=r"frame 'sums' so far, and used the new frame 'sum', "):
        days_of(third, ["wed"], "sum", before="sum")


def test_name_for_each_day_goes_on_beside_a_state_that_is_opened_after_the_loop(capsys: Capture) -> None:
    def run(attempt: Played, day: str) -> None:
        days_of(attempt, [day], f"of-{day}")
        attempt.frame("late")
        report = attempt.value("report")
        report.set(report.get() + 1)

    attempt = Played()
    for day in ("mon", "tue", "wed", "thu"):
        run(attempt, day)
        attempt = attempt.next_run()
    assert (attempt.held("report"), attempt.held("of-mon"), attempt.held("of-thu")) == (4, 1, 1)
    assert "CKP168" not in capsys.readouterr().out


def test_name_for_each_item_goes_on_if_a_new_item_is_the_first() -> None:
    def run(attempt: Played, shops: list[str]) -> Played:
        for shop in attempt.iterate("shops", shops):
            add(attempt.frame(f"of-{shop}"), 1)
        return attempt.next_run()

    second = run(Played(), ["b", "c"])
    third = run(second, ["a", "b", "c"])
    assert [third.held(f"of-{shop}") for shop in "abc"] == [1, 2, 2]


def test_new_name_in_place_of_one_that_turns_have_opened_is_said(capsys: Capture) -> None:
    """Nobody knows whether it is wrong: perhaps each turn opens a name of its own."""
    first = Played()
    days_of(first, ["mon"], "sums")
    second = first.next_run("with a typing error")
    days_of(second, ["tue", "wed"], "sum")
    said = capsys.readouterr().out
    assert said.count("CKP168") == 1
    assert (
        "loop 'days': turns of another version of the application have used value 'of-sums', frame 'sums'. This version has not so far,"
        " and has used the new value 'of-sum', frame 'sum'. If a name is wrong"
    ) in said
    third = second.next_run("with a typing error")
    days_of(third, ["thu"], "sum")
    third.end()
    assert "CKP168" not in capsys.readouterr().out


def test_turns_that_were_stored_under_a_wrong_name_are_named(capsys: Capture) -> None:
    """A loop of one run knows nothing of the run before, and is compared at the end. The corrected script does not run its turns again."""
    first = Played()
    days_of(first, ["mon"], "sums", kind="iterate")
    second = first.next_run("with a typing error")
    days_of(second, ["mon"], "sum", kind="iterate")
    with pytest.raises(NonRestoredState, match=r"stored turns, which have used 'of-sum' and 'sum'\. To run them again"):
        second.end()
    third = second.retry("corrected")
    days_of(third, ["mon", "tue"], "sums", kind="iterate")
    fourth = third.retry("corrected")
    assert days_of(fourth, ["mon", "tue"], "sums", kind="iterate") == []
    capsys.readouterr()
    fourth.end()
    said = capsys.readouterr().out
    assert (
        "Turns of another version of the application have used value 'of-sum', frame 'sum', and this version has not"
        in said
    )
    assert "[CKP168]" in said


def test_names_that_only_some_turns_of_an_application_open_are_not_said(capsys: Capture) -> None:
    first = Played()
    days_of(first, ["mon"], "first")
    second = first.retry()
    days_of(second, ["mon", "tue"], "second")
    third = second.retry()
    days_of(third, ["mon", "tue", "wed"], "third")
    fourth = third.retry()
    days_of(fourth, ["mon", "tue", "wed"], "third")
    fourth.end()
    assert "CKP168" not in capsys.readouterr().out


# -- the decision on unused states -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("allowed", [{"sums": "drop", "seen": "drop"}, {"sums": "keep", "seen": "keep"}, True, "keep"])
def test_listed_state_is_dropped_also_if_turns_have_opened_it(allowed: Any, capsys: Capture) -> None:
    """A decision on all states leaves it: no turn need open it again."""
    first = Played()
    for _ in first.once("days", ["mon"]):
        add(first.frame("sums"), 1)
        first.value("seen").set(1)
    second = first.next_run("without them", allowed=allowed)
    for _ in second.once("days", ["tue"]):
        pass
    kept = {record.uid for record in second.end()} >= {"sums", "seen"}
    assert kept == (allowed != {"sums": "drop", "seen": "drop"})
    assert ("this run did not use" in capsys.readouterr().out) == isinstance(allowed, dict)
    third = second.next_run()
    assert (total(third.frame("sums")), third.value("seen").get()) == ((1, 1) if kept else (0, 0))


@pytest.mark.parametrize("kind", ["once", "iterate"])
@pytest.mark.parametrize("fate", ["drop", "keep"])
def test_list_does_not_count_for_what_turns_of_this_run_and_this_script_have_opened(
    kind: str, fate: str, capsys: Capture
) -> None:
    """The list is left from an earlier upgrade. A retry does not run these turns again, and the script still uses the state."""
    allowed = dict.fromkeys(("sums", "of-sums"), fate)
    first = Played(allowed=allowed)
    days_of(first, ["mon"], "sums", kind=kind)
    second = first.retry(allowed=allowed)
    assert days_of(second, ["mon", "tue"], "others", kind=kind) == ["tue"]
    third = second.retry(allowed=allowed)
    assert days_of(third, ["mon", "tue"], "others", kind=kind) == []
    fourth = third.next_run(allowed=allowed)
    assert "this run did not use" not in capsys.readouterr().out
    assert (total(fourth.frame("sums")), fourth.value("of-sums").get()) == (1, 1)


@pytest.mark.parametrize("corrected", [False, True])
def test_list_counts_in_a_retry_whose_script_has_changed_or_whose_run_has_not_opened_the_state(corrected: bool) -> None:
    allowed = {"sums": "drop"}
    first = Played()
    days_of(first, ["mon"], "sums")
    second = first.retry("corrected", allowed=allowed) if corrected else first.next_run(allowed=allowed)
    days_of(second, ["mon", "tue"], "others")
    third = second.retry("corrected" if corrected else "first", allowed=allowed)
    assert days_of(third, ["mon", "tue"], "others") == []
    assert {record.uid for record in third.end()} == {"days", "others", "of-sums", "of-others"}


def test_frame_that_was_dropped_begins_anew_in_a_run_that_is_cleared() -> None:
    first = Played(allowed={"sums": "drop"})
    for _ in first.once("days", ["mon"]):
        add(first.frame("sums"), 1)
    dropping = first.retry("without it", allowed={"sums": "drop"})
    assert next(dropping.once("days", ["mon"]), None) is None
    assert "sums" not in {record.uid for record in dropping.end()}
    cleared = dropping.retry("with it again")
    assert next(cleared.once("days", ["mon"]), None) is None
    assert total(cleared.frame("sums")) == 0
