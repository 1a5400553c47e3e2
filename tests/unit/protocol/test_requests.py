"""Requests for checkpoints: the queue and its decider, rule by rule as Flink's users know it. Runs anywhere."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.coordinator.entry import LARGEST_EVENTS, events_size
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol import requests
from airflow_checkpoint_provider.protocol.commands import DoneAlready, Refusal
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.state import QueuedRequest, State
from tests.support.histories import History, at, launch, refusal

TARGET = "s3://lake/savepoints"


def running(**options: Any) -> History:
    history = History()
    history.started(checkpointing=CheckpointConfig(**options).to_json())
    return history


OBSERVED = ("epoch", "run", "pause_left_s")


def ask(history: History, token: str, *, origin: str = "task", **other: Any) -> None:
    observed = {name: other.pop(name) for name in OBSERVED if name in other}
    history.do(c.Trigger(request=e.Request(token=token, origin=origin, **other), **observed))


def savepoint(history: History, token: str, *, kind: str = "savepoint") -> None:
    ask(history, token, kind=kind, folder=TARGET, nonce="9f3c")


def waiting(state: State) -> list[str]:
    return [one.request.token for one in requests.in_order(state.queue)]


def pending(state: State) -> list[str]:
    return [checkpoint.request.token for checkpoint in state.pending]


def queued(token: str, *, n: int = 0, **other: Any) -> QueuedRequest:
    """``n`` only says in which order they were asked for."""
    request = e.Request(token=token, timeout_s=1.0, **{"origin": "task", **other})
    return QueuedRequest(request=request, epoch=1)


def waits(token: str, **other: Any) -> e.RequestQueued:
    return e.RequestQueued(request=queued(token, **other).request, epoch=1)


# -- what is triggered at once -----------------------------------------------------------------------------------------


def test_a_request_with_nothing_in_the_way_is_triggered_at_once() -> None:
    history = running()
    ask(history, "a", name="before the change", owner="dag.task")
    (one,) = history.state.pending
    assert (one.request.token, one.request.name, one.request.owner, one.queued_at) == (
        "a",
        "before the change",
        "dag.task",
        "",
    )
    assert not history.state.queue


def test_a_second_one_waits() -> None:
    """Rule 4: as many are pending as may be."""
    history = running()
    ask(history, "a")
    ask(history, "b")
    assert (pending(history.state), waiting(history.state)) == (["a"], ["b"])


def test_as_many_as_the_job_allows_are_pending_at_once() -> None:
    history = running(max_concurrent=2)
    for token in "abc":
        ask(history, token)
    assert (pending(history.state), waiting(history.state)) == (["a", "b"], ["c"])


def test_a_savepoint_is_forced() -> None:
    """Rule 7: it does not wait for others; those after it wait for it."""
    history = running()
    ask(history, "a")
    savepoint(history, "s")
    ask(history, "b")
    assert (pending(history.state), waiting(history.state)) == (["a", "s"], ["b"])
    history.completed(number=1)
    assert (pending(history.state), waiting(history.state)) == (["s"], ["b"])


def test_a_savepoint_has_a_folder_of_its_own() -> None:
    history = running()
    savepoint(history, "s")
    assert history.state.pending[0].target == f"{TARGET}/savepoint-flights.delays-1-9f3c"


def test_a_checkpoint_has_none() -> None:
    history = running()
    ask(history, "a", folder=TARGET, nonce="9f3c")
    assert history.state.pending[0].target is None


ASKED: dict[str, Any] = {
    "timeout_s": 7.5, "barrier": "after 'joined'", "name": "before the change", "pinned": True, "owner": "dag.task", "origin": "person",
}  # fmt: skip


@pytest.mark.parametrize("waits", [False, True])
def test_what_was_asked_for_is_what_is_triggered(waits: bool) -> None:
    history = running()
    if waits:
        ask(history, "a")
    ask(history, "b", **ASKED)
    if waits:
        history.completed(number=1)
    (one,) = history.state.pending
    assert one.request == e.Request(token="b", **{"origin": "task", **ASKED})
    assert bool(one.queued_at) is waits


def test_a_gated_one_is_in_nobodys_way() -> None:
    history = running()
    ask(history, "g", gated=True)
    ask(history, "a")
    assert pending(history.state) == ["g", "a"]


def test_a_barrier_serves_what_waits_for_it() -> None:
    """It cannot wait: its moment is now."""
    history = running()
    ask(history, "a")
    refused = history.ask(c.Trigger(request=e.Request(token="barrier"), epoch=1))
    assert isinstance(refused, Refusal)
    assert isinstance(refused.error, errors.Busy)
    savepoints = running()
    savepoint(savepoints, "s")
    ask(savepoints, "barrier", origin="barrier", epoch=1)
    assert pending(savepoints.state) == ["s", "barrier"]


def test_a_barrier_is_told_of_the_oldest_that_waits_for_it() -> None:
    history = running(max_concurrent=2)
    ask(history, "a")
    ask(history, "b")
    busy = refusal(history.ask(c.Trigger(request=e.Request(token="barrier"), epoch=1)), errors.Busy)
    assert "chk-1 is pending" in busy.message


def test_an_earlier_try_hears_what_the_later_one_asked_for() -> None:
    """Its aborted checkpoint is the answer; only a try after that one asks anew."""
    history = running()
    ask(history, "a", try_number=2)
    history.do(c.Abort(id=1, reason="expired"))
    for number in (1, 2):
        assert history.ask(c.Trigger(request=e.Request(token="a", origin="task", try_number=number))) == DoneAlready(1)
    ask(history, "a", try_number=3)
    assert pending(history.state) == ["a"]


# -- when nothing runs -------------------------------------------------------------------------------------------------


def test_without_a_job_there_is_nothing_to_ask() -> None:
    nothing = refusal(History().ask(c.Trigger(request=e.Request(token="a", origin="task"))), errors.NotRunning)
    assert nothing.message.startswith("this job: no driver is running")
    history = running()
    history.ended("failed")
    ended = refusal(history.ask(c.Trigger(request=e.Request(token="a", origin="task"))), errors.NotRunning)
    assert ended.message.startswith("flights.delays: no driver is running")


def test_a_run_that_has_finished_takes_none() -> None:
    history = running()
    history.ended()
    found = refusal(
        history.ask(c.Trigger(request=e.Request(token="a", origin="task"), run="day-1")), errors.RunFinished
    )
    assert found.about["run"] == "day-1"


def test_in_run_scope_the_newest_run_is_meant() -> None:
    history = History("weekly")
    history.started("day-1")
    history.ended()
    history.started("day-2")
    history.ended("failed")
    refusal(history.ask(c.Trigger(request=e.Request(token="a", origin="task"))), errors.NotRunning)
    empty = History("weekly")
    refusal(empty.ask(c.Trigger(request=e.Request(token="a", origin="task"))), errors.NotRunning)


# -- the order of the queue --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param({"kind": "savepoint"}, {}, id="a savepoint before a checkpoint"),
        pytest.param({}, {"origin": "periodic"}, id="a user's before a periodic one"),
        pytest.param({"kind": "savepoint", "origin": "periodic"}, {}, id="a savepoint first of all"),
        pytest.param({"n": 1}, {"n": 2}, id="the older first"),
        pytest.param({"n": 1, "origin": "periodic"}, {"n": 2, "origin": "periodic"}, id="of periodic ones, too"),
    ],
)
def test_rule_1_the_order(first: dict[str, Any], second: dict[str, Any]) -> None:
    one, other = queued("first", **first), queued("second", **second)
    queues = [(one, other)] if "n" in first else [(one, other), (other, one)]
    for queue in queues:
        assert [each.request.token for each in requests.in_order(queue)] == ["first", "second"]


# -- admission ---------------------------------------------------------------------------------------------------------


def full(monkeypatch: pytest.MonkeyPatch, *origins: str) -> History:
    monkeypatch.setattr(requests, "LONGEST_QUEUE", len(origins))
    history = running()
    ask(history, "pending")
    for n, origin in enumerate(origins):
        ask(history, f"{origin} {n}", origin=origin)
    return history


def test_the_queue_holds_a_thousand() -> None:
    assert requests.LONGEST_QUEUE == 1000


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
def test_rule_2_a_queue_of_users_takes_no_more(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Nobody whose request was taken loses it to another person, not even to one who would be served before."""
    history = full(monkeypatch, "task", "task")
    refusal(
        history.ask(c.Trigger(request=e.Request(token="one more", origin="task", kind=kind, folder=TARGET))),
        errors.TooManyRequests,
    )


def test_rule_2_a_periodic_one_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    history = full(monkeypatch, "task", "periodic")
    ask(history, "one more")
    assert waiting(history.state) == ["task 0", "one more"]
    assert [(one.token, one.why) for one in history.state.dropped] == [("periodic 1", "too many requests")]


def test_rule_2_the_new_one_may_be_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    history = full(monkeypatch, "task", "periodic")
    refused = history.ask(c.Trigger(request=e.Request(token="one more", origin="periodic")))
    assert isinstance(refused, Refusal)
    assert isinstance(refused.error, errors.TooManyRequests)


# -- asked again -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["completed", "aborted"])
def test_rule_8_an_outcome_makes_room_in_the_same_entry(outcome: str) -> None:
    history = running()
    ask(history, "a")
    ask(history, "b")
    before = history.state.n
    if outcome == "completed":
        history.completed(number=1)
    else:
        history.do(c.Abort(id=1, reason="expired"))
    assert history.state.n == before + 1
    assert (pending(history.state), waiting(history.state)) == (["b"], [])
    assert history.state.pending[0].queued_at == at(3)


def test_what_is_served_first_is_what_comes_first() -> None:
    history = running()
    ask(history, "a")
    for token, origin in (("p", "periodic"), ("b", "task"), ("c", "task")):
        ask(history, token, origin=origin)
    for served, left in (("b", ["c", "p"]), ("c", ["p"]), ("p", [])):
        history.completed(number=history.state.pending[0].id)
        assert (pending(history.state), waiting(history.state)) == ([served], left)


def test_a_forced_one_waits_behind_nobody_and_is_said_once() -> None:
    history = running()
    ask(history, "a")
    ask(history, "b")
    events = history.do(
        c.Trigger(request=e.Request(token="s", origin="task", kind="savepoint", folder=TARGET, nonce="9f3c"))
    )
    assert [type(one) for one in events] == [e.CheckpointTriggered]


def test_rule_3_periodic_ones_wait_until_deleting_has_caught_up() -> None:
    """A deletion that fails stays condemned, here: nobody else is kept from a checkpoint by it."""
    history = running(max_concurrent=1)
    for _ in range(4):
        history.completed()
    history.condemned(1, 2)
    ask(history, "p", origin="periodic")
    assert (pending(history.state), waiting(history.state)) == ([], ["p"])
    savepoint(history, "s")
    assert (pending(history.state), waiting(history.state)) == (["s"], ["p"])
    history.completed(number=5)
    history.do(c.Forget(ids=(1,)))
    assert pending(history.state) == ["p"]


def test_an_entry_takes_sixteen_from_the_queue_and_the_next_one_goes_on() -> None:
    history = running(max_concurrent=1)
    ask(history, "a")
    for n in range(20):
        history.write(waits(f"s{n}", kind="savepoint", folder=TARGET))
    history.completed(number=1)
    assert (len(pending(history.state)), len(waiting(history.state))) == (16, 4)
    history.do(c.Abort(id=2, reason="declined"))
    assert (len(pending(history.state)), len(waiting(history.state))) == (19, 0)


def test_a_full_queue_is_dropped_in_an_entry_that_fits() -> None:
    history = running()
    ask(history, "a")
    history.write(*(waits(f"{'long ' * 40}{n}") for n in range(requests.LONGEST_QUEUE)))
    history.ended("failed")
    assert (len(history.state.dropped), waiting(history.state)) == (1000, [])


def test_rule_5_a_periodic_one_inside_the_pause_is_refused_or_dropped() -> None:
    history = running(min_pause="5 s")
    refused = history.ask(c.Trigger(request=e.Request(token="p", origin="periodic"), pause_left_s=3.0))
    assert isinstance(refused, Refusal)
    assert isinstance(refused.error, errors.MinPause)
    ask(history, "a")
    ask(history, "p", origin="periodic")
    history.completed(number=1)
    assert (pending(history.state), waiting(history.state)) == ([], [])
    assert [one.why for one in history.state.dropped] == ["the pause between two checkpoints"]


@pytest.mark.parametrize(("left", "taken"), [(0.5, False), (0.0, True), (-0.5, True)])
def test_rule_5_the_pause_is_over_when_nothing_of_it_is_left(left: float, taken: bool) -> None:
    history = running(min_pause="5 s")
    decision = history.ask(c.Trigger(request=e.Request(token="p", origin="periodic"), pause_left_s=left))
    assert isinstance(decision, tuple) is taken


@pytest.mark.parametrize(("pause", "origin", "served"), [("500 ms", "periodic", []), ("5 s", "task", ["b"])])
def test_rule_5_the_pause_is_for_periodic_ones_and_however_short(pause: str, origin: str, served: list[str]) -> None:
    history = running(min_pause=pause)
    ask(history, "a")
    ask(history, "b", origin=origin)
    history.completed(number=1)
    assert pending(history.state) == served


def test_rule_6_a_users_ignores_the_pause() -> None:
    history = running(min_pause="5 s")
    ask(history, "a", pause_left_s=3.0)
    assert pending(history.state) == ["a"]


def test_a_periodic_one_without_a_pause_has_its_turn() -> None:
    history = running()
    ask(history, "a")
    ask(history, "p", origin="periodic")
    history.completed(number=1)
    assert pending(history.state) == ["p"]


# -- the end of what would serve them ----------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["ended", "replaced", "launched", "restored"])
def test_the_queue_goes_with_its_attempt(end: str) -> None:
    """The schedule runs while the job runs: what ends or replaces the attempt ends what waits."""
    history = running()
    ask(history, "a")
    ask(history, "b")
    before = history.state.n
    if end == "ended":
        history.ended("failed")
    elif end == "replaced":
        history.do(c.StartAttempt(token=history.state.launches[-1].spec.token, try_number=1, driver="another"))
    elif end == "launched":
        history.launched(try_number=2)
    else:
        token = e.Token(dag="ops", run="now", task="restore")
        history.do(c.Restore(token=token, base=None, by="ops", reason="by hand"))
    assert history.state.n == before + 1
    assert (pending(history.state), waiting(history.state)) == ([], [])
    assert [(one.token, one.why) for one in history.state.dropped] == [("b", "its attempt is over")]


def test_a_dropped_request_is_asked_anew_by_a_later_try_alone() -> None:
    history = running()
    ask(history, "a")
    ask(history, "b")
    history.ended("failed")
    history.started(try_number=2)
    again = history.ask(c.Trigger(request=e.Request(token="b", origin="task")))
    assert refusal(again, errors.RequestDropped).about["reason"] == "its attempt is over"
    ask(history, "b", try_number=2)
    assert pending(history.state) == ["b"]
    assert not history.state.dropped


def test_a_request_that_waits_is_known() -> None:
    history = running()
    ask(history, "a")
    ask(history, "b")
    assert history.ask(c.Trigger(request=e.Request(token="b", origin="task", try_number=2))) == DoneAlready(0)


def test_another_runs_driver_does_not_answer_for_this_run() -> None:
    history = running()
    history.ended("finished")
    history.started("day-2")
    refused = history.ask(c.Trigger(request=e.Request(token="a", origin="task"), run="day-1"))
    assert isinstance(refused, Refusal)
    assert isinstance(refused.error, errors.RunFinished)
    ask(history, "b", run="day-2")


# -- suspended ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["suspend_savepoint", "terminate_savepoint"])
def test_a_stop_savepoint_completes_and_suspends_in_one_entry(kind: str) -> None:
    history = running()
    ask(history, "stop", kind=kind, folder=TARGET, nonce="9f3c", owner="upgrade.stop")
    ask(history, "b")
    history.completed(number=1)
    assert history.state.suspended == f"{at(history.state.n)} (upgrade.stop, {TARGET}/savepoint-flights.delays-1-9f3c)"
    assert [one.why for one in history.state.dropped] == ["the job was suspended"]
    refused = history.ask(c.Trigger(request=e.Request(token="c", origin="task")))
    assert isinstance(refused, Refusal)
    assert isinstance(refused.error, errors.JobSuspended)


def test_a_job_that_was_suspended_and_has_ended_is_suspended() -> None:
    """Not merely not running: to start it is not what is to be done."""
    history = running()
    savepoint(history, "stop", kind="suspend_savepoint")
    history.completed(number=1)
    history.ended("suspended")
    refused = history.ask(c.Trigger(request=e.Request(token="c", origin="task")))
    assert isinstance(refused, Refusal)
    assert isinstance(refused.error, errors.JobSuspended)


def test_what_waits_goes_with_a_stop_though_another_is_pending() -> None:
    """One with a higher id is not subsumed, and takes the room."""
    history = running()
    savepoint(history, "stop", kind="suspend_savepoint")
    ask(history, "barrier", origin="barrier", epoch=1)
    ask(history, "b")
    history.completed(number=1)
    assert (pending(history.state), waiting(history.state)) == (["barrier"], [])


def test_an_aborted_stop_suspends_nothing() -> None:
    history = running()
    savepoint(history, "stop", kind="suspend_savepoint")
    history.do(c.Abort(id=1, reason="expired"))
    assert history.state.suspended is None
    ask(history, "a")
    assert pending(history.state) == ["a"]


# -- whatever comes ----------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["ask", "periodic", "savepoint", "complete", "abort"]), max_size=30), st.integers(1, 3))
def test_no_request_is_lost(steps: list[str], most: int) -> None:
    """Each is pending, waits, was dropped or has its outcome; no more wait for a barrier than may; nobody waits for room
    that there is."""
    history = running(max_concurrent=most)
    asked = set()
    for n, step in enumerate(steps):
        if step in ("complete", "abort"):
            if history.state.pending:
                number = history.state.pending[0].id
                if step == "complete":
                    history.completed(number=number)
                else:
                    history.do(c.Abort(id=number, reason="declined"))
            continue
        asked.add(f"{step} {n}")
        if step == "savepoint":
            savepoint(history, f"{step} {n}")
        else:
            ask(history, f"{step} {n}", origin="periodic" if step == "periodic" else "task")
        state = history.state
        known = {*state.requests, *waiting(state), *(one.token for one in state.dropped)}
        assert asked <= known
        assert len(requests.ungated(state)) <= most
        assert not state.queue or len(state.pending) >= most


# -- how many may be pending at all ------------------------------------------------------------------------------------


def test_all_that_is_pending_can_be_aborted_in_one_entry() -> None:
    """Savepoints and gated ones are triggered however many are pending; a launch, an end and a restore abort them all."""
    history = running()
    for number in range(requests.MOST_PENDING):
        if number % 2:
            savepoint(history, f"saves {number}")
        else:
            ask(history, f"gated {number}", gated=True)
    refused = refusal(history.ask(c.Trigger(request=e.Request(token="gated", gated=True))), errors.TooManyRequests)
    assert f"{requests.MOST_PENDING} requests wait already" in refused.message
    savepoint(history, "one more")
    assert waiting(history.state) == ["one more"]
    restore = c.Restore(token=e.Token(dag="", run="", task="back"), base=None, by="ops", reason="why " * 200)
    for command in (restore, launch(try_number=2), c.EndAttempt(epoch=1, how="failed")):
        events = history.ask(command)
        assert isinstance(events, tuple)
        assert len(events) > requests.MOST_PENDING
        assert events_size(events) < LARGEST_EVENTS
    history.do(c.Abort(id=1, reason="by hand"))
    assert pending(history.state)[-1] == "one more", "its turn came in that entry"
