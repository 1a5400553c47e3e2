"""Requests for checkpoints: the queue and its decider, rule by rule as Flink has them. Runs anywhere."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.coordinator.entry import LARGEST_EVENTS, events_size
from airflow_checkpoint_provider.policies.retention import KeepAll
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol import requests, updates
from airflow_checkpoint_provider.protocol.checkpoint_records import QueuedRequest
from airflow_checkpoint_provider.protocol.commands import DoneAlready, Refusal
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.kinds import BARRIER
from airflow_checkpoint_provider.protocol.state import State
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
    return [entry.request.token for entry in requests.in_order(state.queue)]


def pending(state: State) -> list[str]:
    return [checkpoint.request.token for checkpoint in state.pending]


def queued(token: str, *, n: int = 0, **other: Any) -> QueuedRequest:
    """Return a queued request; a table may give ``n``, the order of the requests."""
    request = e.Request(token=token, timeout_s=1.0, **{"origin": "task", **other})
    return QueuedRequest(request=request, epoch=1)


def waits(token: str, **other: Any) -> e.RequestQueued:
    return e.RequestQueued(request=queued(token, **other).request, epoch=1)


# -- what is triggered at once -----------------------------------------------------------------------------------------


def test_request_is_triggered_at_once_if_nothing_is_pending() -> None:
    history = running()
    ask(history, "a", name="before the change", owner="dag.task")
    (checkpoint,) = history.state.pending
    assert (checkpoint.request.token, checkpoint.request.name, checkpoint.request.owner, checkpoint.queued_at) == (
        "a",
        "before the change",
        "dag.task",
        "",
    )
    assert not history.state.queue


def test_rule_4_second_request_waits() -> None:
    """As many checkpoints are pending as the job allows."""
    history = running()
    ask(history, "a")
    ask(history, "b")
    assert (pending(history.state), waiting(history.state)) == (["a"], ["b"])


def test_max_concurrent_checkpoints_are_pending_at_once() -> None:
    history = running(max_concurrent=2)
    for token in "abc":
        ask(history, token)
    assert (pending(history.state), waiting(history.state)) == (["a", "b"], ["c"])


def test_rule_7_savepoint_is_triggered_at_once() -> None:
    """A savepoint does not wait for others; later requests wait for it."""
    history = running()
    ask(history, "a")
    savepoint(history, "s")
    ask(history, "b")
    assert (pending(history.state), waiting(history.state)) == (["a", "s"], ["b"])
    history.completed(number=1)
    assert (pending(history.state), waiting(history.state)) == (["s"], ["b"])


def test_savepoint_gets_its_own_target_below_the_folder() -> None:
    history = running()
    savepoint(history, "s")
    assert history.state.pending[0].target == f"{TARGET}/savepoint-flights.delays-1-9f3c"


def test_checkpoint_gets_no_target() -> None:
    history = running()
    ask(history, "a", folder=TARGET, nonce="9f3c")
    assert history.state.pending[0].target is None


ASKED: dict[str, Any] = {
    "timeout_s": 7.5, "barrier": "after 'joined'", "name": "before the change", "pinned": True, "owner": "dag.task", "origin": "person",
}  # fmt: skip


@pytest.mark.parametrize("waits", [False, True])
def test_triggered_checkpoint_keeps_all_fields_of_its_request(waits: bool) -> None:
    history = running()
    if waits:
        ask(history, "a")
    ask(history, "b", **ASKED)
    if waits:
        history.completed(number=1)
    (checkpoint,) = history.state.pending
    assert checkpoint.request == e.Request(token="b", **{"origin": "task", **ASKED})
    assert bool(checkpoint.queued_at) is waits


def test_gated_checkpoint_delays_no_other() -> None:
    history = running()
    ask(history, "g", gated=True)
    ask(history, "a")
    assert pending(history.state) == ["g", "a"]


def test_barrier_request_is_refused_while_another_checkpoint_is_pending() -> None:
    """A barrier cannot wait in the queue: it takes its checkpoint now or never."""
    history = running()
    ask(history, "a")
    refused = history.ask(c.Trigger(request=e.Request(token="barrier"), epoch=1))
    assert isinstance(refused, Refusal)
    assert isinstance(refused.error, errors.Busy)
    savepoints = running()
    savepoint(savepoints, "s")
    ask(savepoints, "barrier", origin="barrier", epoch=1)
    assert pending(savepoints.state) == ["s", "barrier"]


def test_refused_barrier_names_the_oldest_pending_checkpoint() -> None:
    history = running(max_concurrent=2)
    ask(history, "a")
    ask(history, "b")
    busy = refusal(history.ask(c.Trigger(request=e.Request(token="barrier"), epoch=1)), errors.Busy)
    assert "chk-1 is pending" in busy.message


def test_earlier_try_gets_the_aborted_checkpoint_of_the_later_try() -> None:
    """The answer is the aborted checkpoint; only a try after both requests a new one."""
    history = running()
    ask(history, "a", try_number=2)
    history.do(c.Abort(id=1, reason="expired"))
    for number in (1, 2):
        assert history.ask(c.Trigger(request=e.Request(token="a", origin="task", try_number=number))) == DoneAlready(1)
    ask(history, "a", try_number=3)
    assert pending(history.state) == ["a"]


# -- when nothing runs -------------------------------------------------------------------------------------------------


def test_request_without_a_running_job_is_refused() -> None:
    nothing = refusal(History().ask(c.Trigger(request=e.Request(token="a", origin="task"))), errors.NotRunning)
    assert nothing.message.startswith("this job: no driver is running")
    history = running()
    history.ended("failed")
    ended = refusal(history.ask(c.Trigger(request=e.Request(token="a", origin="task"))), errors.NotRunning)
    assert ended.message.startswith("flights.delays: no driver is running")


def test_request_for_a_finished_run_is_refused() -> None:
    history = running()
    history.ended()
    found = refusal(
        history.ask(c.Trigger(request=e.Request(token="a", origin="task"), run="day-1")), errors.RunFinished
    )
    assert found.about["run"] == "day-1"


def test_request_in_run_scope_means_the_newest_run() -> None:
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
def test_rule_1_queue_is_ordered_by_kind_origin_and_age(first: dict[str, Any], second: dict[str, Any]) -> None:
    older, newer = queued("first", **first), queued("second", **second)
    queues = [(older, newer)] if "n" in first else [(older, newer), (newer, older)]
    for queue in queues:
        assert [entry.request.token for entry in requests.in_order(queue)] == ["first", "second"]


# -- admission ---------------------------------------------------------------------------------------------------------


def full(monkeypatch: pytest.MonkeyPatch, *origins: str) -> History:
    monkeypatch.setattr(requests, "LONGEST_QUEUE", len(origins))
    history = running()
    ask(history, "pending")
    for n, origin in enumerate(origins):
        ask(history, f"{origin} {n}", origin=origin)
    return history


def test_queue_holds_a_thousand_requests() -> None:
    assert requests.LONGEST_QUEUE == 1000


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
def test_rule_2_full_queue_of_users_refuses_requests(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """No queued request of a user is dropped for another user, not even for a request with priority."""
    history = full(monkeypatch, "task", "task")
    refusal(
        history.ask(c.Trigger(request=e.Request(token="one more", origin="task", kind=kind, folder=TARGET))),
        errors.TooManyRequests,
    )


def test_rule_2_user_request_replaces_a_periodic_one_in_a_full_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    history = full(monkeypatch, "task", "periodic")
    ask(history, "one more")
    assert waiting(history.state) == ["task 0", "one more"]
    assert [(drop.token, drop.reason) for drop in history.state.dropped_requests] == [
        ("periodic 1", "too many requests")
    ]


def test_rule_2_periodic_request_is_refused_by_a_full_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    history = full(monkeypatch, "task", "periodic")
    refused = history.ask(c.Trigger(request=e.Request(token="one more", origin="periodic")))
    assert isinstance(refused, Refusal)
    assert isinstance(refused.error, errors.TooManyRequests)


# -- asked again -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["completed", "aborted"])
def test_rule_8_outcome_triggers_the_next_request_in_the_same_entry(outcome: str) -> None:
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


def test_requests_are_triggered_in_the_order_of_the_queue() -> None:
    history = running()
    ask(history, "a")
    for token, origin in (("p", "periodic"), ("b", "task"), ("c", "task")):
        ask(history, token, origin=origin)
    for served, still_waiting in (("b", ["c", "p"]), ("c", ["p"]), ("p", [])):
        history.completed(number=history.state.pending[0].id)
        assert (pending(history.state), waiting(history.state)) == ([served], still_waiting)


def test_savepoint_beside_a_queue_is_written_as_one_event() -> None:
    history = running()
    ask(history, "a")
    ask(history, "b")
    events = history.do(
        c.Trigger(request=e.Request(token="s", origin="task", kind="savepoint", folder=TARGET, nonce="9f3c"))
    )
    assert [type(event) for event in events] == [e.CheckpointTriggered]


@pytest.mark.parametrize("origin", ["periodic", "task"])
def test_rule_3_condemned_checkpoints_keep_no_request_waiting(origin: str) -> None:
    """A checkpoint whose deletion fails stays condemned, perhaps for ever."""
    history = running(max_concurrent=1)
    for _ in range(4):
        history.completed()
    history.condemned(1, 2)
    ask(history, "p", origin=origin)
    assert (pending(history.state), waiting(history.state)) == (["p"], [])


def test_entry_triggers_at_most_sixteen_queued_requests() -> None:
    history = running(max_concurrent=1)
    ask(history, "a")
    for n in range(20):
        history.write(waits(f"s{n}", kind="savepoint", folder=TARGET))
    history.completed(number=1)
    assert (len(pending(history.state)), len(waiting(history.state))) == (16, 4)
    history.do(c.Abort(id=2, reason="declined"))
    assert (len(pending(history.state)), len(waiting(history.state))) == (19, 0)


def test_token_of_a_pending_checkpoint_is_forgotten_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its task may ask again until the checkpoint has its outcome, however many others are completed meanwhile."""
    monkeypatch.setattr(updates, "KEPT_TOKENS", 4)
    history = running(retention=KeepAll())
    waits_at_its_gate = history.triggered("a task's", gated=True, origin="task")
    history.completed(number=history.triggered("a person's", origin="cli"))
    for number in range(6):
        history.completed(number=history.triggered(f"barrier {number}", origin=BARRIER))
    assert history.state.requests == {"a task's": waits_at_its_gate, "a person's": 2, "barrier 4": 7, "barrier 5": 8}


def test_full_queue_is_dropped_in_one_entry() -> None:
    history = running()
    ask(history, "a")
    history.write(*(waits(f"{'long ' * 40}{n}") for n in range(requests.LONGEST_QUEUE)))
    history.ended("failed")
    assert (len(history.state.dropped_requests), waiting(history.state)) == (1000, [])


def test_rule_5_periodic_request_inside_the_pause_is_refused_or_dropped() -> None:
    history = running(min_pause="5 s")
    refused = history.ask(c.Trigger(request=e.Request(token="p", origin="periodic"), pause_left_s=3.0))
    assert isinstance(refused, Refusal)
    assert isinstance(refused.error, errors.MinPause)
    ask(history, "a")
    ask(history, "p", origin="periodic")
    history.completed(number=1)
    assert (pending(history.state), waiting(history.state)) == ([], [])
    assert [drop.reason for drop in history.state.dropped_requests] == ["the pause between two checkpoints"]


@pytest.mark.parametrize(("left", "taken"), [(0.5, False), (0.0, True), (-0.5, True)])
def test_rule_5_periodic_request_is_triggered_when_the_pause_is_over(left: float, taken: bool) -> None:
    history = running(min_pause="5 s")
    decision = history.ask(c.Trigger(request=e.Request(token="p", origin="periodic"), pause_left_s=left))
    assert isinstance(decision, tuple) is taken


@pytest.mark.parametrize(("pause", "origin", "served"), [("500 ms", "periodic", []), ("5 s", "task", ["b"])])
def test_rule_5_queued_periodic_request_is_dropped_and_a_user_request_served(
    pause: str, origin: str, served: list[str]
) -> None:
    history = running(min_pause=pause)
    ask(history, "a")
    ask(history, "b", origin=origin)
    history.completed(number=1)
    assert pending(history.state) == served


def test_rule_5_savepoint_ignores_the_pause_in_the_queue_too() -> None:
    history = running(min_pause="5 s")
    history.write(waits("forced", kind="savepoint", folder=TARGET, nonce="9f3c", origin="periodic"))
    history.triggered()
    assert "forced" in pending(history.state)
    ask(history, "another", kind="savepoint", folder=TARGET, nonce="9f3d", origin="periodic", pause_left_s=3.0)
    assert "another" in pending(history.state)


def test_rule_6_user_request_ignores_the_pause() -> None:
    history = running(min_pause="5 s")
    ask(history, "a", pause_left_s=3.0)
    assert pending(history.state) == ["a"]


def test_queued_periodic_request_is_triggered_without_a_pause() -> None:
    history = running()
    ask(history, "a")
    ask(history, "p", origin="periodic")
    history.completed(number=1)
    assert pending(history.state) == ["p"]


# -- the end of the attempt --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["ended", "replaced", "launched", "restored"])
def test_queue_is_dropped_with_its_attempt(end: str) -> None:
    """The schedule runs while the job runs: the end of the attempt drops its queue."""
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
    assert [(drop.token, drop.reason) for drop in history.state.dropped_requests] == [("b", "its attempt is over")]


def told_to_stop(history: History) -> None:
    history.do(c.RequestStop(launch=history.state.launches[-1].number, try_number=1, by="ann", reason="no more"))


@pytest.mark.parametrize("epoch", [None, 1], ids=["by a task", "by the driver itself, after its barrier"])
def test_driver_that_was_told_to_stop_gets_no_more_checkpoints(epoch: int | None) -> None:
    history = running()
    told_to_stop(history)
    if epoch:
        ask(history, "here", origin="barrier", epoch=1)
    refused = history.ask(c.Trigger(request=e.Request(token="a", origin="task"), epoch=epoch))
    assert isinstance(refused, Refusal)
    assert isinstance(refused.error, errors.NotRunning)
    assert "its driver was told to stop (ann: no more) and takes no more checkpoints" in refused.error.message


def test_driver_that_was_told_to_stop_takes_the_checkpoint_of_its_barrier() -> None:
    history = running()
    told_to_stop(history)
    ask(history, "here", origin="barrier", epoch=1)
    assert pending(history.state) == ["here"]


def test_queue_is_dropped_when_the_driver_is_told_to_stop() -> None:
    history = running()
    ask(history, "a")
    ask(history, "b")
    told_to_stop(history)
    assert (pending(history.state), waiting(history.state)) == (["a"], [])
    assert [drop.reason for drop in history.state.dropped_requests] == ["its driver was told to stop"]


@pytest.mark.parametrize("origin", ["barrier", "periodic"])
def test_driver_does_not_push_out_the_requests_of_people(origin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "KEPT_TOKENS", 4)
    monkeypatch.setattr(updates, "KEPT_RECORDS", 2)
    history = running()
    ask(history, "a person")
    for number in range(9):
        history.do(c.Abort(id=history.state.pending[0].id, reason="expired"))
        ask(history, f"own {number}", origin=origin, epoch=1)
    assert history.state.requests == {"a person": 1, "own 6": 8, "own 7": 9, "own 8": 10}
    assert history.ask(c.Trigger(request=e.Request(token="own 7", origin=origin), epoch=1)) == DoneAlready(9)


def test_dropped_request_is_triggered_only_by_a_later_try() -> None:
    history = running()
    ask(history, "a")
    ask(history, "b")
    history.ended("failed")
    history.started(try_number=2)
    again = history.ask(c.Trigger(request=e.Request(token="b", origin="task")))
    assert refusal(again, errors.RequestWasDropped).about["reason"] == "its attempt is over"
    ask(history, "b", try_number=2)
    assert pending(history.state) == ["b"]
    assert not history.state.dropped_requests


def test_queued_request_is_known_to_a_later_try() -> None:
    history = running()
    ask(history, "a")
    ask(history, "b")
    assert history.ask(c.Trigger(request=e.Request(token="b", origin="task", try_number=2))) == DoneAlready(0)


def test_request_for_a_finished_run_is_refused_beside_a_running_run() -> None:
    history = running()
    history.ended("finished")
    history.started("day-2")
    refused = history.ask(c.Trigger(request=e.Request(token="a", origin="task"), run="day-1"))
    assert isinstance(refused, Refusal)
    assert isinstance(refused.error, errors.RunFinished)
    ask(history, "b", run="day-2")


# -- suspended ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["suspend_savepoint", "terminate_savepoint"])
def test_stop_savepoint_completes_and_suspends_in_one_entry(kind: str) -> None:
    history = running()
    ask(history, "stop", kind=kind, folder=TARGET, nonce="9f3c", owner="upgrade.stop")
    ask(history, "b")
    history.completed(number=1)
    assert history.state.suspended == f"{at(history.state.n)} (upgrade.stop, {TARGET}/savepoint-flights.delays-1-9f3c)"
    assert [drop.reason for drop in history.state.dropped_requests] == ["the job was suspended"]
    refused = history.ask(c.Trigger(request=e.Request(token="c", origin="task")))
    assert isinstance(refused, Refusal)
    assert isinstance(refused.error, errors.JobSuspended)


def test_request_for_an_ended_suspended_job_reports_the_suspension() -> None:
    """*Not running* would advise to start the job, but it must be restored."""
    history = running()
    savepoint(history, "stop", kind="suspend_savepoint")
    history.completed(number=1)
    history.ended("suspended")
    refused = history.ask(c.Trigger(request=e.Request(token="c", origin="task")))
    assert isinstance(refused, Refusal)
    assert isinstance(refused.error, errors.JobSuspended)


def test_stop_drops_the_queue_though_a_checkpoint_is_pending() -> None:
    """A checkpoint with a higher id is not subsumed and occupies the only place."""
    history = running()
    savepoint(history, "stop", kind="suspend_savepoint")
    ask(history, "barrier", origin="barrier", epoch=1)
    ask(history, "b")
    history.completed(number=1)
    assert (pending(history.state), waiting(history.state)) == (["barrier"], [])


def test_aborted_stop_suspends_nothing() -> None:
    history = running()
    savepoint(history, "stop", kind="suspend_savepoint")
    history.do(c.Abort(id=1, reason="expired"))
    assert history.state.suspended is None
    ask(history, "a")
    assert pending(history.state) == ["a"]


# -- any sequence ------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["ask", "periodic", "savepoint", "complete", "abort"]), max_size=30), st.integers(1, 3))
def test_every_request_is_pending_queued_dropped_or_settled(steps: list[str], most: int) -> None:
    """Each request is pending, queued, dropped or settled; never more than ``max_concurrent`` are pending for a barrier; no
    request waits while a place is free."""
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
        known = {*state.requests, *waiting(state), *(drop.token for drop in state.dropped_requests)}
        assert asked <= known
        assert len(requests.ungated(state)) <= most
        assert not state.queue or len(state.pending) >= most


# -- the bound of pending checkpoints ----------------------------------------------------------------------------------


def test_all_pending_checkpoints_fit_into_one_aborting_entry() -> None:
    """Savepoints and gated checkpoints are always triggered; a launch, an end and a restore abort them all in one entry."""
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
    for command in (restore, launch(try_number=2), c.EndAttempt(epoch=1, outcome="failed")):
        events = history.ask(command)
        assert isinstance(events, tuple)
        assert len(events) > requests.MOST_PENDING
        assert events_size(events) < LARGEST_EVENTS
    history.do(c.Abort(id=1, reason="by hand"))
    assert pending(history.state)[-1] == "one more", "the entry of the abort triggers it"
