"""Launches of a mapped item: which of two map indexes may have it, and what a clear is when it has moved. Runs anywhere."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.keys import History as HistoryName
from airflow_checkpoint_provider.protocol.keys import check_item
from tests.support.histories import History, described, launch, refusal, start

GONE = c.OtherIndex(index=3, holds=False)
CLEARED = c.OtherIndex(index=3, holds=False, cleared=True)
HELD = c.OtherIndex(index=3, holds=True)


def at_three(generation: int = 0, try_number: int = 3) -> History:
    """Return the history of an item that map index 3 has launched, in its third try."""
    history = History("day-1")
    history.do(launch("day-1", try_number, generation=generation, map_index=3, scope="day-1", item="orders"))
    history.do(start("day-1", try_number, generation=generation))
    return history


def moved(other: c.OtherIndex | None, *, generation: int = 9, try_number: int = 1, **options: Any) -> c.PlanLaunch:
    """Return the launch of the same item from map index 7, whose tries begin with 1."""
    return launch("day-1", try_number, generation=generation, map_index=7, scope="day-1", other=other, **options)


@pytest.mark.parametrize("other", [HELD, None, c.OtherIndex(index=4, holds=False)])
def test_item_that_another_index_has_is_refused_for_now(other: c.OtherIndex | None) -> None:
    """Also if nobody has looked, or somebody has looked at an index from which an older launch came."""
    error = refusal(at_three().ask(moved(other)), errors.OneItemTwice)
    assert not error.permanent
    assert "item orders, run day-1: map index 3 has this item, and map index 7 is asked to run it, too" in error.message
    assert error.about == {"indexes": (3, 7)}


def test_living_driver_is_adopted_by_the_index_to_which_its_item_has_moved() -> None:
    history = at_three()
    assert described(history.ask(moved(GONE, seen_alive=True))) == "adopt launch 1"
    history.do(moved(GONE, seen_alive=True))
    (record,), run = history.state.launches, history.state.run("day-1")
    assert (record.map_index, record.latest_try) == (7, 1)
    assert run
    assert (run.map_index, run.generation) == (7, 9)


def test_index_that_lost_its_item_follows_and_stops_nothing_more() -> None:
    history = at_three()
    history.do(moved(GONE, seen_alive=True))
    stop = c.RequestStop(launch=1, try_number=3, map_index=3, by="task", reason="killed")
    refusal(history.ask(stop), errors.Refused)
    refusal(history.ask(launch("day-1", 3, map_index=3, scope="day-1")), errors.Superseded)
    history.do(c.RequestStop(launch=1, try_number=1, map_index=7, by="task", reason="killed"))


def test_item_that_comes_back_is_adopted_again() -> None:
    history = at_three()
    history.do(moved(GONE, seen_alive=True))
    back = c.OtherIndex(index=7, holds=False)
    history.do(launch("day-1", 4, map_index=3, scope="day-1", other=back, seen_alive=True))
    (record,) = history.state.launches
    assert (record.map_index, record.latest_try) == (3, 4)


@pytest.mark.parametrize("other", [GONE, CLEARED])
def test_item_that_did_not_finish_continues_where_it_is_now(other: c.OtherIndex) -> None:
    history = at_three()
    history.completed()
    history.ended("failed")
    assert described(history.ask(moved(other))) == "launch 2 from chk-1"


def test_dead_driver_is_replaced() -> None:
    history = at_three()
    history.completed()
    assert described(history.ask(moved(GONE))).startswith("launch 2 from chk-1")


def test_finished_item_starts_again_only_if_the_index_that_ran_it_was_cleared() -> None:
    history = at_three()
    history.completed()
    history.ended()
    refusal(history.ask(moved(GONE)), errors.AlreadyFinished)
    assert "from nothing" in described(history.ask(moved(CLEARED)))
    assert described(history.ask(moved(CLEARED, on_clear="continue"))) == "launch 2 from chk-1"


def test_try_numbers_of_two_indexes_are_not_compared() -> None:
    history = at_three(try_number=9)
    history.ended("failed")
    assert "launch 2" in described(history.ask(moved(GONE)))


def test_earlier_try_of_the_same_index_is_superseded() -> None:
    history = at_three()
    history.ended("failed")
    refusal(history.ask(launch("day-1", 2, map_index=3, scope="day-1")), errors.Superseded)


def test_launch_without_an_index_is_compared_as_before() -> None:
    """It is one of an older version, or of the task before it was mapped."""
    history = History("day-1")
    history.started("day-1", 1)
    history.ended("failed")
    assert "launch 2" in described(history.ask(launch("day-1", 2, map_index=3, scope="day-1")))


def test_owner_is_named_with_its_item() -> None:
    asks = e.Token(dag="load_tables", run="r", task="load", item="x" * 200)
    assert asks.owner == f"load_tables.load[{'x' * 40} … {'x' * 40}]"
    assert e.Token(dag="load_tables", run="r", task="load", item="orders").owner == "load_tables.load[orders]"


def test_history_of_an_item_lies_below_that_of_its_run() -> None:
    assert HistoryName("load", "r1", "a/b").prefix == "jobs/load/runs/r1/items/a~2fb"
    assert HistoryName("load", None, "orders").prefix == "jobs/load/job/items/orders"


@pytest.mark.parametrize("item", ["", "  ", "x" * 1001, "a\nb", 7, None, ["orders"], "\udc80"])
def test_item_that_names_nothing_is_refused(item: object) -> None:
    with pytest.raises(errors.InvalidName):
        check_item(item)


@pytest.mark.parametrize("item", ["orders", "x" * 1000, "s3://lake/orders", "ärger", "7", "--yes"])
def test_item_is_any_printable_text(item: str) -> None:
    assert check_item(item) == item
