"""How long a history is needed, and what prevents closing it. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.policies.retention import KeepAll, KeepLatest, KeepWithin, Retention
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.checkpoint_records import Claim
from airflow_checkpoint_provider.protocol.lifetime import (
    FINISHED,
    GIVEN_UP,
    QUIET,
    TABLE_KEPT,
    just_finished,
    last_moved,
    outlived,
    over_for_good,
    quiet,
    why,
)
from airflow_checkpoint_provider.protocol.state import State
from tests.support.histories import Given, History, at, clear, described, in_turn, refusal, start, token, triggered

NEVER = 10_000
TARGET = "s3://lake/savepoints/savepoint-orders-1-9f3c"
BACK = c.Restore(token=token(task="restore"), base=None, by="ann", reason="wrong rows")


def moment(history: History, days: float) -> datetime:
    """Return the time ``days`` after the last event of the runs."""
    return datetime.fromisoformat(last_moved(history.state) or at(0)) + timedelta(days=days)


def nothing(h: History) -> None:
    """Leave the history empty."""


def running(h: History) -> None:
    h.started()


def completed(h: History) -> None:
    h.started()
    h.completed()


def ended(how: str) -> Given:
    return in_turn(completed, lambda h: h.ended(how))


def cleared(h: History) -> None:
    h.launched(try_number=2, generation=1)


def restored(h: History) -> None:
    h.do(BACK)


def aborted(h: History) -> None:
    h.do(c.Abort(id=4, reason="expired"))


# -- over for good -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "policy", "held_for", "scope"),
    [
        pytest.param(ended("finished"), KeepLatest(2), 0, "day-1", id="finished: at once"),
        pytest.param(ended("finished"), KeepAll(), 0, "day-1", id="finished: whatever is kept then is kept by its policy"),
        pytest.param(ended("finished"), KeepLatest(2), NEVER, "", id="finished, in the history of all runs: never"),
        pytest.param(ended("finished"), KeepLatest(2), NEVER, "november", id="finished, in a history that some runs share: never"),
        pytest.param(ended("failed"), KeepLatest(2), NEVER, "november", id="failed, in a history that some runs share: never"),
        pytest.param(ended("finished"), KeepWithin(days=40), 40, "november", id="… : what its author says of age"),
        pytest.param(ended("finished"), KeepWithin(days=40), NEVER, "", id="finished, in the history of all runs, with an age: never"),
        pytest.param(ended("failed"), KeepLatest(2), 7, "day-1", id="failed: a week"),
        pytest.param(ended("cancelled"), KeepLatest(2), 7, "day-1", id="cancelled: a week"),
        pytest.param(ended("failed"), KeepWithin(days=3), 3, "day-1", id="failed: what its policy says of age"),
        pytest.param(ended("failed"), KeepLatest(2) | KeepWithin(days=14), 14, "day-1", id="failed: that part of it"),
        pytest.param(ended("failed"), KeepWithin(hours=1), 1, "day-1", id="failed: a day at least"),
        pytest.param(ended("failed"), KeepAll(), NEVER, "day-1", id="failed: for ever"),
        pytest.param(ended("failed"), KeepLatest(2), NEVER, "", id="failed, in the history of all runs: never"),
        pytest.param(running, KeepLatest(2), NEVER, "day-1", id="an attempt that is not over: never"),
        pytest.param(lambda h: h.launched(), KeepLatest(2), 7, "day-1", id="a driver that never came: a week"),
        pytest.param(nothing, KeepLatest(2), NEVER, "day-1", id="no run yet: never"),
        pytest.param(in_turn(ended("failed"), History.suspended), KeepLatest(2), NEVER, "day-1", id="suspended: waits for a person"),
        pytest.param(in_turn(ended("finished"), cleared), KeepLatest(2), 7, "day-1", id="finished, then cleared: as any other"),
        pytest.param(in_turn(ended("finished"), restored), KeepLatest(2), 7, "day-1", id="finished, then went back: a start is to come"),
    ],
)  # fmt: skip
def test_history_is_over_for_good_after_its_period(given: Given, policy: Retention, held_for: int, scope: str) -> None:
    history = History(scope)
    given(history)
    if held_for:
        assert not over_for_good(history.state, policy, moment(history, held_for - 0.01))
    if held_for < NEVER:
        assert over_for_good(history.state, policy, moment(history, held_for + 0.01))


@pytest.mark.parametrize(
    ("how", "kept_for", "reason"), [("finished", 30, FINISHED), ("failed", 7, GIVEN_UP), ("lost", 7, GIVEN_UP)]
)
def test_history_is_outlived_after_its_period(how: str, kept_for: int, reason: str) -> None:
    history = History("day-1")
    ended(how)(history)
    assert not outlived(history.state, KeepLatest(2), moment(history, kept_for - 0.01))
    assert outlived(history.state, KeepLatest(2), moment(history, kept_for + 0.01))
    assert why(history.state) == reason


def test_newest_run_of_a_scope_key_decides() -> None:
    history = History("DE")
    ended("finished")(history)
    history.started("day-2")
    history.ended("failed")
    assert why(history.state) == GIVEN_UP
    assert not over_for_good(history.state, KeepLatest(2), moment(history, 6))


def test_empty_history_is_neither_quiet_nor_over() -> None:
    empty = State(scope="day-1")
    later = datetime.fromisoformat(at(NEVER * 24 * 60))
    assert not quiet(empty, later)
    assert not over_for_good(empty, KeepLatest(2), later)


def test_periods_end_after_their_last_moment() -> None:
    history = History("day-1")
    ended("finished")(history)
    then = moment(history, 0)
    assert [quiet(history.state, then + QUIET + more) for more in (timedelta(0), timedelta(microseconds=1))] == [
        False,
        True,
    ]
    assert not outlived(history.state, KeepLatest(2), then + TABLE_KEPT)
    assert outlived(history.state, KeepLatest(2), then + TABLE_KEPT + timedelta(microseconds=1))


@pytest.mark.parametrize(
    ("given", "days", "finished"),
    [
        pytest.param(ended("finished"), 0.99, True, id="within a day"),
        pytest.param(ended("finished"), 1.01, False, id="after a day"),
        pytest.param(ended("failed"), 0.99, False, id="failed"),
        pytest.param(in_turn(ended("finished"), cleared), 0.99, False, id="cleared since"),
    ],
)
def test_run_has_just_finished_for_a_day(given: Given, days: float, finished: bool) -> None:
    history = History("day-1")
    given(history)
    assert just_finished(history.state, moment(history, days)) is finished


@pytest.mark.parametrize(
    ("step", "moves"),
    [
        pytest.param(lambda h: h.launched(try_number=2), True, id="a launch"),
        pytest.param(lambda h: h.started(try_number=2), True, id="an attempt begins"),
        pytest.param(in_turn(aborted, lambda h: h.ended("failed")), True, id="it ends"),
        pytest.param(aborted, True, id="a checkpoint is aborted"),
        pytest.param(in_turn(aborted, lambda h: h.triggered()), True, id="one is triggered"),
        pytest.param(lambda h: h.completed(number=4), True, id="it is completed"),
        pytest.param(restored, True, id="somebody goes back"),
        pytest.param(in_turn(aborted, restored), True, id="somebody goes back, and nothing is pending"),
        pytest.param(lambda h: h.condemned(1), False, id="one is condemned"),
        pytest.param(in_turn(lambda h: h.condemned(1), lambda h: h.do(c.Forget(ids=(1,)))), False, id="one is deleted"),
        pytest.param(History.suspended, False, id="it is suspended"),
        pytest.param(lambda h: h.write(e.StopRequested(launch=1, by="t", reason="r")), False, id="a stop is asked for"),
    ],
)
def test_events_of_runs_move_the_history_and_deletions_do_not(step: Given, moves: bool) -> None:
    history = History("day-1")
    completed(history)
    history.completed()
    history.completed()
    history.triggered()
    before = last_moved(history.state)
    assert before == at(history.state.n)
    step(history)
    assert last_moved(history.state) == (at(history.state.n) if moves else before)


CLEARED = clear(scope="day-1")
ALONE = c.StartAlone(plan=clear(scope="day-1", alone=True), start=start("day-1", 2, generation=1, driver="script"))


# -- what prevents closing -----------------------------------------------------------------------------------------------


def over(h: History) -> None:
    """Finish a run with one completed savepoint that is not published."""
    running(h)
    h.write(replace(triggered(1, kind="savepoint", nonce="9f3c"), target=TARGET))
    h.completed(number=1)
    h.ended("finished")


def published(h: History) -> None:
    over(h)
    h.do(c.ConfirmPublished(id=1))


def claims(h: History) -> None:
    published(h)
    h.state = replace(h.state, claims=(Claim(pointer=TARGET, at=at(0)),))


def closing(h: History) -> None:
    published(h)
    h.do(c.CloseHistory(reason="the run finished", now=at(0)))


def closed(h: History) -> None:
    closing(h)
    h.do(c.FinishClosing())


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        pytest.param(nothing, "this history is not closed: there is no history", id="nothing"),
        pytest.param(running, "attempt 1 is not over", id="an attempt"),
        pytest.param(
            in_turn(published, History.suspended),
            "it is suspended since 2026-11-20 22:00 by upgrade.stop",
            id="a suspension",
        ),
        pytest.param(lambda h: h.launched(), "launch 1 waits for its driver", id="a launch"),
        pytest.param(claims, f"it owns {TARGET}", id="a savepoint that it claimed"),
        pytest.param(ended("failed"), "chk-1 is retained", id="a checkpoint"),
        pytest.param(over, "chk-1 is retained", id="a savepoint that stands nowhere else yet"),
    ],
)
def test_close_is_refused_while_the_history_is_needed(given: Given, reason: str) -> None:
    history = History("day-1")
    given(history)
    error = refusal(history.ask(c.CloseHistory(reason="over", now=at(60))), errors.StillNeeded)
    assert reason in error.message


def waited(h: History) -> None:
    """Close a history whose driver has not come for more than a day."""
    h.launched()
    h.do(c.CloseHistory(reason="over", now=moment(h, 1.01).isoformat()))


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(published, id="a savepoint that stands alone"),
        pytest.param(
            in_turn(running, lambda h: h.triggered(), lambda h: h.ended("failed")), id="an aborted checkpoint"
        ),
        pytest.param(in_turn(running, restored), id="a branch in which nobody was launched"),
        pytest.param(
            lambda h: h.write(e.HistoryOpened(incarnation="i", job="j", scope="day-1")), id="a history without runs"
        ),
    ],
)
def test_close_is_accepted_if_nothing_needs_the_history(given: Given) -> None:
    history = History("day-1")
    given(history)
    assert history.do(c.CloseHistory(reason="over", now=at(60))) == (e.HistoryClosing(reason="over"),)


@pytest.mark.parametrize(
    ("given", "asked", "answer"),
    [
        pytest.param(published, c.FinishClosing(), "done 5", id="nobody closes it"),
        pytest.param(closing, c.CloseHistory(reason="again", now=at(0)), "done 6", id="it is closing already"),
        pytest.param(closed, c.CloseHistory(reason="again", now=at(0)), "done 7", id="it is closed already"),
        pytest.param(closed, c.FinishClosing(), "done 7", id="it was finished already"),
        pytest.param(
            closing,
            c.Trigger(request=e.Request(token="r")),
            "RunFinished",
            id="who asks for a checkpoint hears that nothing runs",
        ),
        pytest.param(
            closed, c.Trigger(request=e.Request(token="r"), epoch=1), "Fenced", id="a driver hears that it is over"
        ),
        pytest.param(waited, start(), "Fenced", id="one that comes late, too"),
        pytest.param(closed, CLEARED, "open, launch 2 from nothing", id="a launch opens it again"),
        pytest.param(closed, ALONE, "open, launch 2 from nothing, attempt 2 from nothing", id="and so does a script"),
        pytest.param(closed, c.Abort(id=1, reason="expired"), "HistoryIsClosed", id="anyone else, that it was closed"),
        pytest.param(closing, c.ConfirmPublished(id=1), "done 1", id="what was done before is done"),
    ],
)
def test_command_on_a_closing_or_closed_history(given: Given, asked: c.Command, answer: str) -> None:
    history = History("day-1")
    given(history)
    assert described(history.ask(asked)) == answer


@pytest.mark.parametrize("asked", [c.FinishClosing(), CLEARED, ALONE], ids=lambda command: type(command).__name__)
def test_finished_closing_keeps_its_first_reason(asked: c.Command) -> None:
    """A launch that opens the history again finishes the closing first."""
    history = History("day-1")
    closing(history)
    assert history.ask(asked) == (e.HistoryClosed(reason="the run finished"),)
