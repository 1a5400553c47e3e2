"""Attempts: start, stop request and end (docs/inside/attempts.md). Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.events import Point
from tests.support.histories import Given, History, at, clear, described, in_turn, launch, refusal, start, token


def planned(h: History) -> None:
    h.launched()


def running(h: History) -> None:
    h.started()


def ended(how: str) -> Given:
    return in_turn(running, lambda h: h.ended(how))


def replaced(h: History) -> None:
    """Start attempt 1; plan try 2, which has not started."""
    running(h)
    h.launched(try_number=2)


def branched(h: History) -> None:
    """Start attempt 1; another run opens a branch."""
    running(h)
    h.launched("day-2", restore="none")


def by_hand(h: History) -> None:
    """Open a branch by hand, without a launch."""
    h.write(e.BranchOpened(branch=1, application="", base=None, token=token(), by="cli", reason="restore"))


def stop_requested(h: History) -> None:
    h.do(c.RequestStop(launch=1, try_number=1, by="task", reason="marked failed"))


def second_driver(h: History) -> None:
    """Start the driver of launch 1 again, as a cluster may: attempt 2 of launch 1."""
    running(h)
    h.do(start(driver="again"))


@pytest.mark.parametrize(
    ("given", "asked", "answer"),
    [
        pytest.param(planned, start(), "attempt 1 from nothing", id="the driver of the current launch"),
        pytest.param(running, start(), "done 1", id="the same driver again"),
        pytest.param(in_turn(running, lambda h: h.triggered()), start(), "done 1", id="the same driver again, later"),
        pytest.param(replaced, start(), "Fenced", id="the same driver again, replaced since"),
        pytest.param(ended("finished"), start(), "Fenced", id="the same driver again, ended since"),
        pytest.param(second_driver, start(), "Fenced", id="the same driver again, another took its place"),
        pytest.param(replaced, start(driver="late"), "Fenced", id="a driver of a launch that was replaced"),
        pytest.param(branched, start(driver="late"), "Fenced", id="a driver of a launch on a branch that was left"),
        pytest.param(in_turn(running, by_hand), start(driver="late"), "Fenced", id="a driver that starts after a restore (B35)"),
        pytest.param(in_turn(running, lambda h: h.do(launch(try_number=2, seen_alive=True))), start(driver="again"),
                     "attempt 2 from nothing", id="the token is the planned one, not the adopter's"),
        pytest.param(in_turn(planned, stop_requested), start(), "Fenced", id="stop requested"),
        pytest.param(in_turn(planned, History.suspended), start(), "JobSuspended", id="suspended"),
        pytest.param(ended("finished"), start(driver="again"), "Fenced", id="the launch's attempt ended finished"),
        pytest.param(ended("cancelled"), start(driver="again"), "Fenced", id="the launch's attempt ended cancelled"),
        pytest.param(ended("suspended"), start(driver="again"), "Fenced", id="the launch's attempt ended suspended"),
        pytest.param(ended("failed"), start(driver="again"), "attempt 2 from nothing", id="the launch's attempt failed"),
        pytest.param(ended("lost"), start(driver="again"), "attempt 2 from nothing", id="the launch's attempt was lost"),
        pytest.param(running, start(driver="again", seen_alive=True), "JobAlreadyRunning", id="another driver is alive: it wins"),
        pytest.param(running, start(driver="again"), "attempt 2 from nothing", id="another driver was not seen"),
        pytest.param(ended("failed"), start(driver="again", seen_alive=True), "attempt 2 from nothing",
                     id="whose end is on record is not alive"),
        pytest.param(in_turn(running, lambda h: h.triggered()), start(driver="again"), "attempt 2 from nothing, abort chk-1",
                     id="what its older epoch left pending is settled"),
        pytest.param(in_turn(running, lambda h: h.completed()), start(driver="again"), "attempt 2 from chk-1",
                     id="the restore point is that of its own entry (P9)"),
    ],
)  # fmt: skip
def test_start_attempt_by_situation(given: Given, asked: c.StartAttempt, answer: str) -> None:
    history = History()
    given(history)
    assert described(history.ask(asked)) == answer


def test_epochs_rise_through_launches_runs_and_branches() -> None:
    """P2, B12: a second driver under one launch takes a new epoch, too."""
    history = History()
    history.started("day-1")
    history.do(start("day-1", driver="again"))
    history.ended("failed")
    history.started("day-1", 2)
    history.ended()
    history.started("day-2", restore="none")
    assert [attempt.epoch for attempt in history.state.attempts] == [1, 2, 3, 4]


def test_restore_point_of_a_second_driver_is_not_that_of_the_launch() -> None:
    """B14: the entry of the launch fences older drivers, so none of them completes a checkpoint after it. A driver that starts
    again under the launch starts from the checkpoints of the first one."""
    history = History()
    history.started()
    history.completed()
    history.do(start(driver="again"))
    current = history.state.current_launch()
    attempt = history.state.attempt(2)
    assert current
    assert attempt
    assert (current.restore_point, attempt.restore_point) == (None, Point(id=1))


@pytest.mark.parametrize(
    ("given", "by_try", "answer"),
    [
        pytest.param(planned, 1, "stop launch 1", id="before the driver started"),
        pytest.param(running, 1, "stop launch 1", id="while it runs"),
        pytest.param(in_turn(running, stop_requested), 1, "done 1", id="asked for already"),
        pytest.param(in_turn(running, stop_requested), 7, "done 1", id="asked for already by another"),
        pytest.param(replaced, 1, "Superseded", id="the launch was replaced"),
        pytest.param(branched, 1, "Superseded", id="the launch's branch was left"),
        pytest.param(in_turn(running, lambda h: h.do(launch(try_number=2, seen_alive=True))), 1, "Superseded",
                     id="a later try adopted the launch"),
        pytest.param(in_turn(running, lambda h: h.do(launch(try_number=2, seen_alive=True))), 2, "stop launch 1", id="its adopter asks"),
        pytest.param(lambda h: None, 1, "Superseded", id="no such launch"),
    ],
)  # fmt: skip
def test_request_stop_by_situation(given: Given, by_try: int, answer: str) -> None:
    history = History()
    given(history)
    assert (
        described(history.ask(c.RequestStop(launch=1, try_number=by_try, by="task", reason="marked failed"))) == answer
    )


def launch_ended(h: History) -> None:
    h.do(c.EndLaunch(launch=1, try_number=1, outcome="failed", exit_code=1))


def adopted(h: History) -> None:
    h.do(launch(try_number=2, seen_alive=True))


@pytest.mark.parametrize(
    ("given", "by_try", "answer"),
    [
        pytest.param(planned, 1, "end launch 1 failed", id="its driver never attached"),
        pytest.param(in_turn(planned, stop_requested), 1, "end launch 1 failed", id="it was told to stop"),
        pytest.param(in_turn(planned, launch_ended), 1, "done 1", id="it has ended"),
        pytest.param(in_turn(planned, launch_ended, adopted), 2, "end launch 1 failed", id="its driver came, and its adopter saw the end"),
        pytest.param(in_turn(planned, adopted), 1, "Superseded", id="a later try adopted it"),
        pytest.param(running, 1, "Fenced", id="its driver has attached"),
        pytest.param(ended("finished"), 1, "Fenced", id="its attempt has ended"),
        pytest.param(in_turn(planned, lambda h: h.launched(try_number=2)), 1, "Superseded", id="it was replaced"),
        pytest.param(lambda h: None, 1, "Superseded", id="no such launch"),
    ],
)  # fmt: skip
def test_end_launch_by_situation(given: Given, by_try: int, answer: str) -> None:
    history = History()
    given(history)
    ask = c.EndLaunch(launch=1, try_number=by_try, outcome="failed", exit_code=1)
    assert described(history.ask(ask)) == answer


def test_ended_launch_changes_no_decision() -> None:
    """A driver that comes all the same starts; a later try adopts the driver that it sees."""
    history = History()
    planned(history)
    launch_ended(history)
    assert described(history.ask(start())) == "attempt 1 from nothing"
    assert described(history.ask(launch(try_number=2, seen_alive=True))) == "adopt launch 1"


def end(how: str, epoch: int = 1, *, from_task: bool = False, cause: str = "") -> c.EndAttempt:
    return c.EndAttempt(
        epoch=epoch, outcome=how, exit_code=0 if how == "finished" else 1, from_task=from_task, cause=cause
    )


def of_memory(by: str = "task") -> Given:
    """End attempt 1 by its driver, which does not know why; then add the cause."""

    def does(h: History) -> None:
        h.started()
        h.do(c.EndAttempt(epoch=1, outcome="failed", exit_code=1))
        h.do(c.EndAttempt(epoch=1, outcome="failed", exit_code=52, reported_by=by, from_task=True, cause="driver_heap"))

    return does


@pytest.mark.parametrize(
    ("given", "asked", "answer"),
    [
        pytest.param(running, end("finished"), "attempt 1 finished", id="it ends"),
        pytest.param(ended("finished"), end("finished"), "done 1", id="the same end again"),
        pytest.param(ended("lost"), end("lost"), "done 1", id="the same end, said by another"),
        pytest.param(in_turn(running, lambda h: h.triggered()), end("failed"), "attempt 1 failed, abort chk-1",
                     id="what it left pending is settled"),
        pytest.param(ended("lost"), end("finished"), "Fenced", id="ended another way: taken for lost, it must not finish"),
        pytest.param(ended("failed"), end("finished"), "Fenced", id="ended another way"),
        pytest.param(ended("finished"), end("failed"), "Fenced", id="the driver cannot turn finished into failed"),
        pytest.param(ended("finished"), end("failed", from_task=True), "attempt 1 failed", id="the task can: it saw the exit code"),
        pytest.param(ended("finished"), end("lost", from_task=True), "Fenced", id="but only into failed"),
        pytest.param(ended("cancelled"), end("failed", from_task=True), "Fenced", id="and only finished"),
        pytest.param(in_turn(ended("finished"), lambda h: h.launched(try_number=2, generation=1)), end("failed", from_task=True),
                     "Fenced", id="and not once a newer launch stands"),
        pytest.param(replaced, end("finished"), "Fenced", id="replaced by a launch"),
        pytest.param(branched, end("finished"), "Fenced", id="its branch was left"),
        pytest.param(second_driver, end("finished"), "Fenced", id="replaced by another driver"),
        pytest.param(second_driver, end("finished", 2), "attempt 2 finished", id="the driver that replaced it"),
        pytest.param(running, end("finished", 9), "Fenced", id="no such attempt"),
        pytest.param(ended("failed"), end("failed", from_task=True, cause="driver_heap"), "attempt 1 failed",
                     id="the task adds of what it died"),
        pytest.param(of_memory(), end("failed", from_task=True, cause="driver_heap"), "done 1", id="and does so once"),
        pytest.param(of_memory(), end("failed", from_task=True, cause="executor_heap"), "done 1", id="the first cause stays"),
        pytest.param(ended("failed"), end("failed", from_task=True), "done 1", id="nothing to add"),
        pytest.param(ended("failed"), end("failed", cause="driver_heap"), "done 1", id="a driver adds nothing afterwards"),
        pytest.param(ended("lost"), end("failed", from_task=True, cause="driver_heap"), "Fenced", id="nor to another end"),
        pytest.param(in_turn(ended("failed"), lambda h: h.launched(try_number=2)), end("failed", from_task=True, cause="driver_heap"),
                     "done 1", id="nor once a newer launch stands"),
    ],
)  # fmt: skip
def test_end_attempt_by_situation(given: Given, asked: c.EndAttempt, answer: str) -> None:
    history = History()
    given(history)
    assert described(history.ask(asked)) == answer


def test_cause_that_a_task_adds_changes_nothing_else() -> None:
    """A release trusts the end that the driver has written; and the attempt did not end later than it did."""
    history, plain = History(), History()
    of_memory()(history)
    plain.started()
    plain.do(c.EndAttempt(epoch=1, outcome="failed", exit_code=1))
    found, expected = history.state.attempt(1), plain.state.attempt(1)
    assert found
    assert expected
    assert (found.cause, expected.cause) == ("driver_heap", "")
    assert found.ending == expected.ending
    assert history.state.runs == plain.state.runs


def test_deaths_of_a_launch_are_those_of_all_its_drivers() -> None:
    history = History()
    history.started()
    history.do(end("failed", cause="driver_heap"))
    history.do(start(driver="again"))
    history.do(end("failed", 2, cause="executor_overhead"))
    launch = history.state.current_launch()
    assert launch
    assert history.state.causes_of(launch) == {"driver_heap", "executor_overhead"}
    history.launched(try_number=2)
    history.do(c.EndLaunch(launch=2, try_number=2, outcome="failed", exit_code=52, cause="driver_heap"))
    assert history.state.launches[-1].cause == "driver_heap"
    assert history.state.causes_of(history.state.launches[-1]) == {"driver_heap"}


@pytest.mark.parametrize(
    "late",
    [
        pytest.param(lambda h: c.Trigger(request=e.Request(token="late"), epoch=1), id="trigger"),
        pytest.param(
            lambda h: c.Complete(id=1, digest="d", metadata_bytes=9, bytes=0, states=(), acknowledged=("",), epoch=1),
            id="complete",
        ),
        pytest.param(lambda h: c.Abort(id=2, reason="declined", epoch=1), id="abort"),
        pytest.param(lambda h: c.EndAttempt(epoch=1, outcome="finished"), id="end"),
    ],
)
@pytest.mark.parametrize(
    "fence",
    [
        pytest.param(lambda h: h.launched(try_number=2), id="by a launch"),
        pytest.param(lambda h: h.do(start(driver="again")), id="by another driver"),
        pytest.param(lambda h: h.launched("day-2", restore="none"), id="by a branch"),
        pytest.param(by_hand, id="by a restore"),
        pytest.param(lambda h: h.ended("lost"), id="taken for lost"),
    ],
)
def test_ended_attempt_is_fenced_whatever_it_sends(fence: Given, late: Callable[[History], c.Command]) -> None:
    """P3; B42, B43."""
    history = History()
    history.started()
    history.triggered()
    fence(history)
    error = refusal(history.ask(late(history)), errors.Fenced)
    assert error.about["epoch"] == 1


@pytest.mark.parametrize(
    ("fence", "why"),
    [
        (lambda h: h.launched(try_number=2), "launch 2 (try 2) replaced it"),
        (lambda h: h.started(try_number=2), "attempt 2 replaced it"),
        (lambda h: h.do(start(driver="again")), "attempt 2 replaced it"),
        (lambda h: h.ended("lost"), "it ended lost"),
    ],
)
def test_fenced_attempt_is_told_the_cause(fence: Given, why: str) -> None:
    history = History()
    running(history)
    fence(history)
    assert why in refusal(history.ask(c.Trigger(request=e.Request(token="late"), epoch=1)), errors.Fenced).message


def test_run_has_the_end_of_its_newest_launch() -> None:
    history = History()
    history.started()
    history.ended("failed")
    assert history.state.runs[0].outcome == "failed"
    history.started(try_number=2)
    assert history.state.runs[0].outcome is None
    history.ended()
    assert (history.state.runs[0].outcome, history.state.runs[0].ended_at) == ("finished", at(history.state.n))
    history.do(clear(try_number=3))
    assert (history.state.runs[0].outcome, history.state.runs[0].ended_at) == (None, "")


def alone(try_number: int, driver: str, **other: Any) -> c.StartAlone:
    plan = launch("alone-1", try_number, task="script", alone=True, **other)
    return c.StartAlone(plan=plan, start=c.StartAttempt(token=plan.spec.token, try_number=try_number, driver=driver))


def test_script_writes_launch_and_attempt_in_one_entry() -> None:
    history = History()
    assert described(history.ask(alone(1, "first"))) == "open, launch 1 from nothing, attempt 1 from nothing"
    history.do(alone(1, "first"))
    assert history.state.n == 0


@pytest.mark.parametrize(
    ("given", "seen_alive", "answer"),
    [
        pytest.param(lambda h: None, False, "launch 2 from chk-1, attempt 2 from chk-1", id="the next script goes on"),
        pytest.param(lambda h: None, True, "JobAlreadyRunning", id="beside a living one: refused"),
        pytest.param(
            lambda h: h.triggered(), False, "launch 2 from chk-1, abort chk-2, attempt 2 from chk-1", id="settles"
        ),
        pytest.param(
            lambda h: h.ended("failed"), True, "launch 2 from chk-1, attempt 2 from chk-1", id="its end is on record"
        ),
        pytest.param(lambda h: h.suspended(), False, "JobSuspended", id="suspended"),
    ],
)
def test_second_script_by_situation(given: Given, seen_alive: bool, answer: str) -> None:
    history = History()
    history.do(alone(1, "first"))
    history.completed()
    given(history)
    assert described(history.ask(alone(2, "second", seen_alive=seen_alive))) == answer


def test_second_script_of_the_same_try_is_superseded() -> None:
    """Both scripts count the same try; the second to write is superseded, not answered with the launch of the first."""
    history = History()
    history.do(alone(1, "first"))
    assert described(history.ask(alone(1, "second"))) == "Superseded"
