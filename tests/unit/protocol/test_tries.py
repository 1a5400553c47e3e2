"""Which tries of a task got no further: what counts as further, and where the count begins anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import GoneBack, Point, Token
from airflow_checkpoint_provider.protocol.tries import Tries, dying, got_further, tries_of
from tests.support.histories import History, complete, launch, start, token

RUN = "day-1"


def found(h: History, run: str = RUN) -> Tries:
    tries = tries_of(h.state, token(run))
    assert tries is not None
    return tries


def stuck(h: History) -> list[int]:
    """Return the tries in a row that got no further."""
    return [launch.latest_try for launch in found(h).stuck]


def failed(h: History, try_number: int, checkpoints: int = 0, generation: int = 0) -> None:
    """Let a try complete some checkpoints and fail."""
    h.started(RUN, try_number, generation=generation)
    for _ in range(checkpoints):
        h.completed()
    h.ended("failed")


def test_tries_without_a_checkpoint_are_counted() -> None:
    h = History()
    for number in (1, 2, 3):
        failed(h, number)
        assert stuck(h) == [*range(1, number + 1)]
    assert found(h).over


def test_more_memory_begins_the_count_anew() -> None:
    """The next try does not repeat the same work in the same memory. At the limit it would, and is counted."""
    h = History()
    for number, size in enumerate(("4g", "6g", "9g", "9g", "9g"), 1):
        plan = launch(RUN, number)
        h.do(replace(plan, spec=replace(plan.spec, memory={"spark.driver.memory": size})))
        h.do(start(RUN, number))
        h.ended("failed")
    assert stuck(h) == [3, 4, 5]


def test_a_newer_checkpoint_begins_the_count_anew() -> None:
    h = History()
    failed(h, 1)
    failed(h, 2, checkpoints=1)
    assert stuck(h) == []
    failed(h, 3)
    failed(h, 4)
    assert stuck(h) == [3, 4]


def test_a_lost_worker_and_a_driver_that_never_attached_count() -> None:
    h = History()
    failed(h, 1, checkpoints=1)
    h.started(RUN, 2)  # its worker was lost with its driver: no end is recorded
    h.launched(RUN, 3)
    h.do(c.EndLaunch(launch=3, try_number=3, outcome="failed", exit_code=1))
    assert stuck(h) == [2, 3]
    assert found(h).over
    failed(h, 4)
    assert stuck(h) == [2, 3, 4]


def test_a_driver_that_has_not_recorded_its_end_is_not_over() -> None:
    h = History()
    h.started()
    assert not found(h).over
    assert stuck(h) == [1]


def test_a_driver_that_a_later_try_adopts_counts_once() -> None:
    h = History()
    h.started()
    adopts = h.ask(replace(launch(RUN, 2), seen_alive=True))
    assert isinstance(adopts, tuple)
    h.write(*adopts)
    h.ended("failed")
    assert stuck(h) == [2]


def test_a_clear_begins_the_count_anew() -> None:
    h = History()
    failed(h, 1)
    failed(h, 2)
    failed(h, 3, generation=1)
    assert stuck(h) == [3]


def test_after_a_restore_nothing_is_known_until_the_next_launch() -> None:
    h = History()
    failed(h, 1, checkpoints=1)
    failed(h, 2)
    h.do(c.Restore(token=Token(dag="", run="by hand", task="ann"), base=Point(id=1), by="ann", reason=""))
    assert tries_of(h.state, token(RUN)) is None
    failed(h, 3)
    assert stuck(h) == [3]


def test_other_tasks_and_runs_are_not_counted() -> None:
    h = History()
    failed(h, 1)
    assert tries_of(h.state, token("day-2")) is None
    assert tries_of(h.state, token(RUN, task="other")) is None
    assert tries_of(History().state, token(RUN)) is None


def test_task_of_another_dag_whose_owner_reads_the_same_has_no_tries() -> None:
    h = History()
    h.launched(RUN, task="daily.load")
    other = Token(dag="flights.daily", run=RUN, task="load")
    assert h.state.launches[-1].spec.owner == other.owner
    assert tries_of(h.state, other) is None
    assert tries_of(h.state, token(RUN, task="daily.load", generation=7)) is not None


@pytest.mark.parametrize(("batch", "further"), [(7, False), (8, True)])
def test_checkpoints_of_a_stream_that_tries_one_batch_again_are_no_step(batch: int, further: bool) -> None:
    """The timer takes them while the query runs, also if it then dies in the same batch."""
    h = History()
    h.started()
    h.timer(7)
    h.ended("failed")
    h.started(RUN, 2)
    h.timer(batch)
    h.timer(batch)
    h.ended("failed")
    assert got_further(h.state, h.state.launches[1]) is further
    assert stuck(h) == ([] if further else [2])


def test_a_stream_that_has_committed_nothing_has_not_got_further() -> None:
    h = History()
    h.started()
    h.timer(-1)
    h.ended("failed")
    assert stuck(h) == [1]


def runs_query(h: History, try_number: int, start: int, taken_from: int = 0, **other: Any) -> None:
    """Let a try take over a query whose newest committed batch is ``start``, from the location of attempt ``taken_from``. Then it fails."""
    epoch = h.started(RUN, try_number)
    where = f"query/orders/{taken_from}-abc" if taken_from else None
    path = f"query/orders/{epoch}-abc"
    h.do(
        c.LocateQuery(
            uid="orders", path=path, taken_from=where, begun=start, committed=start, epoch=epoch, sink="/out", **other
        )
    )
    if taken_from:
        h.do(c.SettleQuery(uid="orders", path=path, epoch=epoch))
    h.ended("failed")


def test_a_stream_that_commits_batches_gets_further_without_a_checkpoint() -> None:
    """Each driver is lost before its first checkpoint, and the next one goes on after its batches."""
    h = History()
    runs_query(h, 1, -1)
    assert stuck(h) == [1]
    runs_query(h, 2, 100, 1)
    assert stuck(h) == [2]
    failed(h, 3)  # it died before it took the query over
    assert stuck(h) == [2, 3]
    runs_query(h, 4, 200, 2)
    assert stuck(h) == [3, 4]
    runs_query(h, 5, 200, 4)
    assert stuck(h) == [3, 4, 5]


def test_the_newest_location_says_how_far_the_newest_driver_got() -> None:
    h = History()
    runs_query(h, 1, -1)
    runs_query(h, 2, -1, 1)
    of = {batch: tries_of(h.state, token(RUN), {"orders": batch}) for batch in (-1, 0)}
    assert [len(tries.stuck) for tries in of.values() if tries] == [2, 0]
    failed(h, 3)
    tries = tries_of(h.state, token(RUN), {"orders": 0})
    assert tries
    assert [launch.latest_try for launch in tries.stuck] == [3], "it was the driver before this one that committed"


def test_a_way_back_is_no_step() -> None:
    """It gives the batches higher numbers than any that was used."""
    h = History()
    runs_query(h, 1, 7)
    runs_query(h, 2, 9, 1, gone_back=GoneBack(batch=3))
    assert stuck(h) == [1, 2]


def test_a_savepoint_is_a_step_too() -> None:
    h = History()
    h.started()
    number = h.triggered("save", kind="savepoint", folder="s3://lake/savepoints", nonce="9f3c")
    h.do(complete(number))
    h.ended("failed")
    assert stuck(h) == []


# -- drivers that die again and again, whoever launched them ---------------------------------------------------------------


def dead(h: History) -> list[int]:
    return [launch.number for launch in dying(h.state)]


def test_checkpoints_of_drivers_that_die_in_one_batch_save_nothing() -> None:
    h = History()
    for number in (1, 2, 3):
        h.streams(number, 6)
        assert dead(h) == ([] if number < 3 else [2, 3])


def test_one_driver_that_is_lost_while_no_rows_come_is_no_sign() -> None:
    h = History()
    h.streams(1, 6)
    h.streams(2, 6, how="")
    h.streams(3, 6, how="")
    assert dead(h) == []
    h.ended("failed")
    assert dead(h) == [2, 3]
    h.streams(4, 7)
    assert dead(h) == []


def test_a_driver_that_never_completed_a_checkpoint_hides_nothing() -> None:
    h = History()
    h.streams(1, 6)
    h.streams(2, 6)
    failed(h, 3)
    failed(h, 4)
    assert dead(h) == []


@pytest.mark.parametrize(("begun", "counts"), [(7, [2, 3, 4]), (6, [2, 3])])
def test_the_driver_that_runs_saves_work_unless_it_repeats_a_batch(begun: int, counts: list[int]) -> None:
    """A stream to which no rows come has nothing newer to save, however often its driver was lost."""
    h = History()
    for number in (1, 2, 3):
        h.streams(number, 6)
    h.streams(4, 6, how="", begun=begun)
    assert dead(h) == counts


@pytest.mark.parametrize("how", ["finished", "cancelled", "suspended"])
def test_an_end_in_order_is_no_death(how: str) -> None:
    h = History()
    for number in (1, 2, 3):
        h.streams(number, 6, run=f"day-{number}", how=how)
    assert dead(h) == []


def test_drivers_of_other_runs_die_in_the_same_batch() -> None:
    """The next run of a DAG continues the stream, and its tries are counted from one."""
    h = History()
    for number in (1, 2, 3):
        h.streams(1, 6, run=f"day-{number}")
    assert dead(h) == [2, 3]


def test_a_restore_begins_anew() -> None:
    h = History()
    for number in (1, 2, 3):
        h.streams(number, 6)
    h.do(c.Restore(token=Token(dag="", run="by hand", task="ann"), base=Point(id=1), by="ann", reason=""))
    h.streams(4, 6)
    assert dead(h) == []


def test_launches_whose_start_is_not_listed_any_more_have_not_got_further() -> None:
    """Of the checkpoints that are deleted, the newest hundred are listed. Drivers that die again and again leave more than that."""
    h = History()
    for number in (1, 2, 3):
        h.streams(number, 6)
    for listed in (3, 1):  # the checkpoint from which try 2 started was number 2; then only one of try 3 is left
        h.state = replace(h.state, checkpoints=h.state.checkpoints[-listed:])
        assert not got_further(h.state, h.state.launches[1])
        assert dead(h) == [2, 3]


def test_driver_that_has_committed_the_batch_saves_work_though_its_first_checkpoints_are_not_listed_any_more() -> None:
    """The cause is mended. Since then no rows come."""
    h = History()
    for number in (1, 2, 3):
        h.streams(number, 6)
    h.streams(4, 6, how="")
    for _ in range(3):
        h.timer(7)
    h.state = replace(h.state, checkpoints=h.state.checkpoints[-2:])
    assert dead(h) == []
