"""A request for a checkpoint, from the first entry to each of its outcomes (docs/inside/attempts.md). Runs anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_checkpoint_provider import errors
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.liveness import VARIABLE, Beats, Process
from airflow_checkpoint_provider.coordinator.outcomes import (
    Aborted,
    Acknowledged,
    Awaited,
    Committing,
    Completed,
    DriverLost,
    Dropped,
    Ended,
    Ending,
    InQueue,
    NotEnded,
    Outcome,
    Pending,
    RequestRefused,
    Unconfirmed,
    Unreadable,
)
from airflow_checkpoint_provider.coordinator.request import CheckpointRequest
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.kinds import LOST
from airflow_checkpoint_provider.protocol.state import KEPT_RECORDS
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.acting import Job
from tests.support.beats import CLOCKS_OFF, ELSEWHERE, beating, put_beat
from tests.support.causes import cause_of
from tests.support.faults import Call, Fault, FaultyStore, served
from tests.support.saved import memory

EVERY = 0.01
GONE = replace(Process.this(), start_ticks="another one's")


pytestmark = pytest.mark.usefixtures("fast_beats")


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
def job(store: FaultyStore) -> Job:
    """Return a job that runs on this host."""
    job = Job(store.inner)
    job.start()
    job.beat()
    return job


def connect(store: FaultyStore, job: Job) -> Callable[[], Coordinator]:
    return lambda: Coordinator(Journal(store, job.keys, By("task", "etl.asks", "here"), patience=0.05))


def asked(
    store: FaultyStore, job: Job, token: str = "asked", awaited: Awaited = Awaited.COMPLETED, **wishes: Any
) -> CheckpointRequest:
    def specify(coordinator: Coordinator) -> Request:
        return Request(token=token, origin="task", **wishes)

    return CheckpointRequest(connect(store, job), specify, token, awaited)


def stopping(store: FaultyStore, job: Job, **wishes: Any) -> CheckpointRequest:
    """Return a request for a stop whose savepoint is completed."""
    request = asked(store, job, awaited=Awaited.ENDED, kind="suspend_savepoint", folder=memory().uri, **wishes)
    assert isinstance(request.submit(), Pending)
    job.complete(1)
    return request


def silent(call: Call) -> Fault:
    return Fault.NOT_SENT


# -- submit ----------------------------------------------------------------------------------------------------------------


def test_request_that_is_triggered_at_once_is_pending(store: FaultyStore, job: Job) -> None:
    request = asked(store, job)
    outcome = request.submit()
    assert isinstance(outcome, Pending)
    assert (request.number, outcome.checkpoint, outcome.over) == (1, job.checkpoint(1), False)
    assert str(request.pointer) == f"{job.store.uri}/{job.keys.checkpoint(1)}"


def test_second_request_with_the_same_token_triggers_nothing(store: FaultyStore, job: Job) -> None:
    asked(store, job).submit()
    again = asked(store, job)
    assert isinstance(again.submit(), Pending)
    assert (again.number, len(job.state.checkpoints)) == (1, 1)


@pytest.mark.parametrize("lost", [Fault.LOST, Fault.DROPPED])
def test_request_with_a_lost_answer_is_repeated_once(
    store: FaultyStore, job: Job, lost: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hurt(call: Call) -> Fault:
        return lost if call.kind == "create" else Fault.NOT_SENT if store.requests["create"] else Fault.NONE

    plans, trigger = iter([hurt, served]), Coordinator.trigger

    def triggered(*args: Any, **options: Any) -> int:
        store.plan = next(plans)
        return trigger(*args, **options)

    monkeypatch.setattr(Coordinator, "trigger", triggered)
    request = CheckpointRequest(connect(store, job), lambda _: Request(token="asked", origin="task"), "asked")
    assert isinstance(request.submit(), Pending)
    assert next(plans, None) is None
    assert [checkpoint.id for checkpoint in job.state.checkpoints] == [1]


def test_queued_request_reports_its_place_until_it_is_triggered(store: FaultyStore, job: Job) -> None:
    job.coordinator.trigger(Request(token="first", origin="task"))
    ahead, request = asked(store, job, "ahead"), asked(store, job)
    assert ahead.submit() == InQueue(1, 1)
    assert request.submit() == request.poll() == InQueue(2, 2)
    job.complete(1)
    assert request.poll() == InQueue(1, 1)
    job.complete(2)
    assert isinstance(request.poll(), Pending)
    assert request.number == 3


def test_queued_request_ends_when_its_driver_is_lost(store: FaultyStore, job: Job) -> None:
    """The pending checkpoint before it belongs to a command that nobody runs any more."""
    job.coordinator.trigger(Request(token="first", origin="task"))
    request = asked(store, job)
    assert isinstance(request.submit(), InQueue)
    job.beat(GONE)
    outcome = request.wait(time.monotonic() + 60, EVERY)
    assert isinstance(outcome, Aborted)
    assert [(checkpoint.id, checkpoint.reason) for checkpoint in job.state.checkpoints] == [(1, LOST), (2, LOST)]


def test_queued_request_is_dropped_when_the_attempt_ends(store: FaultyStore, job: Job) -> None:
    job.coordinator.trigger(Request(token="first", origin="task"))
    request = asked(store, job)
    request.submit()
    job.end("failed")
    dropped = Dropped("its attempt is over")
    assert request.poll() == asked(store, job).submit() == dropped
    assert dropped.over


def test_dropped_request_reports_its_own_reason(store: FaultyStore, job: Job) -> None:
    job.coordinator.trigger(Request(token="first", origin="task"))
    ended = asked(store, job, "ended")
    ended.submit()
    job.end("failed")
    job.start(try_number=2)
    job.coordinator.trigger(Request(token="second", origin="task"))
    suspended = asked(store, job, "suspended")
    suspended.submit()
    stop = Request(token="stop", origin="task", kind="suspend_savepoint", folder=memory().uri)
    job.complete(job.coordinator.trigger(stop))
    assert ended.poll() == Dropped("its attempt is over")
    assert suspended.poll() == Dropped("the job was suspended")


def test_request_is_refused_if_nothing_runs(store: FaultyStore) -> None:
    job = Job(store.inner)
    job.start()
    job.end("failed")
    outcome = asked(store, job).submit()
    assert isinstance(outcome, RequestRefused)
    assert isinstance(outcome.error, errors.NotRunning)
    assert outcome.over


def test_submit_raises_if_the_store_does_not_answer(store: FaultyStore, job: Job) -> None:
    store.plan = silent
    with pytest.raises(errors.StoreUnavailable):
        asked(store, job).submit()
    assert job.state.checkpoints == ()


# -- the outcome -----------------------------------------------------------------------------------------------------------


def test_deleted_checkpoint_is_reported_as_completed(store: FaultyStore, job: Job) -> None:
    request = asked(store, job)
    request.submit()
    job.complete(1)
    assert request.poll() == Completed(job.checkpoint(1))
    for number in (2, 3, 4):
        job.coordinator.trigger(Request(token=f"barrier {number}", timeout_s=600.0))
        job.complete(number)
    assert request.poll() == Completed(job.checkpoint(1))


def test_aborted_checkpoint_is_reported_with_its_details(store: FaultyStore, job: Job) -> None:
    request = asked(store, job)
    request.submit()
    job.abort(1, "declined", "the disk is full")
    outcome = request.poll()
    assert isinstance(outcome, Aborted)
    assert (outcome.checkpoint.reason, cause_of(outcome.checkpoint).details, outcome.over) == (
        "declined",
        "the disk is full",
        True,
    )


def test_acknowledged_checkpoint_ends_a_wait_for_acknowledged(store: FaultyStore, job: Job) -> None:
    request = asked(store, job)
    request.submit()
    written = CheckpointRequest.of(connect(store, job), 1, awaited=Awaited.ACKNOWLEDGED)
    assert isinstance(written.poll(), Pending)
    job.acknowledge(1)
    assert written.poll() == Acknowledged(job.checkpoint(1))
    assert isinstance(request.poll(), Pending)
    job.coordinator.complete(1)
    assert written.poll() == Completed(job.checkpoint(1))


def test_wait_calls_on_look_until_the_outcome(store: FaultyStore, job: Job) -> None:
    request, looks = asked(store, job), list[Outcome]()
    request.submit()

    def look(outcome: Outcome) -> None:
        looks.append(outcome)
        if len(looks) == 3:
            job.complete(1)

    assert request.wait(None, EVERY, on_outcome=look) == Completed(job.checkpoint(1))
    assert len(looks) == 3
    assert all(isinstance(outcome, Pending) for outcome in looks)


def test_wait_returns_the_last_outcome_at_its_deadline(store: FaultyStore, job: Job) -> None:
    request = asked(store, job)
    request.submit()
    assert isinstance(request.wait(time.monotonic() + 0.05, EVERY), Pending)
    assert job.state.pending, "a deadline aborts nothing"


def test_poll_costs_one_request_and_one_more_for_acknowledgements(
    store: FaultyStore, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "10")
    asked(store, job).submit()
    for awaited, cost in ((Awaited.COMPLETED, 1), (Awaited.ACKNOWLEDGED, 2)):
        request = CheckpointRequest.of(connect(store, job), 1, awaited=awaited)
        request.poll()
        before = store.requests.total()
        for _ in range(12):
            request.poll()
        assert store.requests.total() - before == 12 * cost


# -- a store that does not answer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.NOT_SENT, Fault.DENIED])
def test_failed_poll_is_unreadable_and_the_next_one_succeeds(store: FaultyStore, job: Job, fault: Fault) -> None:
    request = asked(store, job)
    request.submit()
    store.plan = lambda call: fault
    outcome = request.poll()
    assert isinstance(outcome, Unreadable)
    assert not outcome.over
    store.plan = lambda call: Fault.NONE
    assert isinstance(request.poll(), Pending)


def test_wait_returns_the_first_error_at_its_deadline(store: FaultyStore, job: Job) -> None:
    request = asked(store, job)
    request.submit()
    faults = iter([Fault.NOT_SENT])
    store.plan = lambda call: next(faults, Fault.DENIED)
    outcome = request.wait(time.monotonic() + 0.1, EVERY)
    assert isinstance(outcome, Unreadable)
    assert isinstance(outcome.error, errors.StoreUnavailable)


def test_permanent_error_of_the_store_raises(store: FaultyStore, job: Job) -> None:
    request = asked(store, job)
    request.submit()
    store.plan = lambda call: Fault.MISCONFIGURED
    with pytest.raises(errors.StoreMisconfigured):
        request.poll()


def test_connection_is_made_again_after_a_denial(store: FaultyStore, job: Job) -> None:
    stores = iter([FaultyStore(store.inner, lambda call: Fault.DENIED), store])
    job.coordinator.trigger(Request(token="asked", origin="task"))

    def connect_anew() -> Coordinator:
        return connect(next(stores), job)()

    request = CheckpointRequest.of(connect_anew, 1)
    assert isinstance(request.poll(), Unreadable)
    assert isinstance(request.poll(), Pending)


# -- a driver that is lost ---------------------------------------------------------------------------------------------------


UNHEARD, ENDED = "nothing was heard of attempt 1 for 0.3 s", "the process of attempt 1 has ended"


@pytest.mark.parametrize(
    ("process", "details"),
    [
        pytest.param(None, UNHEARD, id="never beat"),
        pytest.param(ELSEWHERE, UNHEARD, id="elsewhere"),
        pytest.param(GONE, ENDED, id="process gone"),
    ],
)
def test_checkpoint_of_a_lost_driver_is_aborted(store: FaultyStore, process: Process | None, details: str) -> None:
    job = Job(store.inner)
    job.start()
    if process:
        job.beat(process)
    request = asked(store, job)
    request.submit()
    outcome = request.wait(time.monotonic() + 20, EVERY)
    assert isinstance(outcome, Aborted)
    found = job.checkpoint(1)
    assert (found.reason, cause_of(found).missing, cause_of(found).details) == (LOST, ("",), details)
    assert job.state.running(), "the attempt itself is not judged: it may be asleep"


def test_acknowledged_checkpoint_of_a_lost_driver_is_completed(store: FaultyStore, job: Job) -> None:
    job.beat(GONE)
    request = asked(store, job)
    request.submit()
    job.acknowledge(1)
    assert request.wait(time.monotonic() + 20, EVERY) == Completed(job.checkpoint(1))


def test_acknowledged_gated_checkpoint_stays_pending_without_its_driver(store: FaultyStore, job: Job) -> None:
    job.beat(GONE)
    request = asked(store, job, gated=True)
    request.submit()
    job.acknowledge(1)
    assert request.wait(time.monotonic() + 0.5, EVERY) == Pending(job.checkpoint(1), None)
    assert request.resolve(suspected=True) == Pending(job.checkpoint(1), None)


def test_gated_checkpoint_without_acknowledgements_is_aborted_with_its_driver(store: FaultyStore, job: Job) -> None:
    job.beat(GONE)
    request = asked(store, job, gated=True)
    request.submit()
    assert isinstance(request.resolve(), Aborted)


def test_acknowledged_checkpoint_that_a_lost_driver_aborted_last_is_aborted(store: FaultyStore, job: Job) -> None:
    asked(store, job).submit()
    job.acknowledge(1)
    job.beat(GONE)
    store.plan = at_the_first_beat(lambda: job.abort(1))
    assert CheckpointRequest.of(connect(store, job), 1).resolve() == Aborted(job.checkpoint(1))


def test_poll_changes_nothing_when_the_driver_is_lost(store: FaultyStore, job: Job) -> None:
    job.beat(GONE)
    request = asked(store, job)
    request.submit()
    before = job.state
    assert request.poll() == DriverLost(job.checkpoint(1))
    assert job.state == before


def test_suspected_driver_is_watched_before_the_abort(store: FaultyStore, job: Job) -> None:
    request = asked(store, job)
    request.submit()
    assert isinstance(request.resolve(suspected=True), Pending)
    job.beat(ELSEWHERE)
    began = time.monotonic()
    assert isinstance(CheckpointRequest.of(connect(store, job), 1).resolve(suspected=True), Aborted)
    assert time.monotonic() - began >= Beats.configured().still, "one silence that is shorter ends no checkpoint"


@CLOCKS_OFF
def test_wait_goes_on_while_the_driver_beats_whatever_its_clock(store: FaultyStore, job: Job, off: timedelta) -> None:
    key = job.keys.attempt_beat(1)
    request = asked(store, job)
    with beating(store.inner, key, off):
        request.submit()
        assert isinstance(request.wait(time.monotonic() + 0.6, EVERY), Pending)
    assert isinstance(request.wait(time.monotonic() + 20, EVERY), Aborted)


def test_failed_polls_do_not_count_as_silence_of_the_driver(store: FaultyStore, job: Job) -> None:
    put_beat(store.inner, job.keys.attempt_beat(1))
    request = asked(store, job)
    request.submit()
    store.plan = silent
    assert isinstance(request.wait(time.monotonic() + 0.5, EVERY), Unreadable)
    store.plan = lambda call: Fault.NONE
    assert isinstance(request.resolve(), Pending)


# -- commits -----------------------------------------------------------------------------------------------------------------


def awaiting_commits(store: FaultyStore, job: Job) -> CheckpointRequest:
    """Return a request that waits for confirmed commits, of a completed checkpoint."""
    request = asked(store, job, awaited=Awaited.COMMITTED, confirm_commits=True)
    assert isinstance(request.submit(), Pending)
    job.acknowledge(1)
    job.coordinator.complete(1)
    return CheckpointRequest.of(connect(store, job), 1, awaited=Awaited.COMMITTED)


def at_the_first_beat(step: Callable[[], object]) -> Callable[[Call], Fault]:
    """Return the plan of a store in which ``step`` happens before the first heartbeat is read."""
    steps = iter([step])

    def plan(call: Call) -> Fault:
        if "/heartbeat/" in call.key:
            next(steps, lambda: None)()
        return Fault.NONE

    return plan


def test_request_for_commits_is_completed_when_they_are_confirmed(store: FaultyStore, job: Job) -> None:
    request = awaiting_commits(store, job)
    outcome = request.poll()
    assert outcome == Committing(job.checkpoint(1))
    assert not outcome.over
    job.coordinator.confirm_commits(1)
    assert request.poll() == Completed(job.checkpoint(1))


def test_commits_stay_unconfirmed_if_the_attempt_ends(store: FaultyStore, job: Job) -> None:
    request = awaiting_commits(store, job)
    job.end("failed")
    outcome = request.poll()
    assert outcome == Unconfirmed(job.checkpoint(1), "attempt 1, which took it, has ended")
    assert outcome.over


def test_commits_stay_unconfirmed_if_the_driver_is_lost(store: FaultyStore, job: Job) -> None:
    request = awaiting_commits(store, job)
    job.beat(GONE)
    assert request.poll() == Unconfirmed(job.checkpoint(1), "the driver of attempt 1 was lost")


def test_commits_that_a_lost_driver_confirmed_last_are_completed(store: FaultyStore, job: Job) -> None:
    request = awaiting_commits(store, job)
    job.beat(GONE)
    store.plan = at_the_first_beat(lambda: job.coordinator.confirm_commits(1))
    assert request.poll() == Completed(job.checkpoint(1))


# -- a stop ------------------------------------------------------------------------------------------------------------------


def test_stop_ends_when_its_attempt_has_ended(store: FaultyStore, job: Job) -> None:
    request = stopping(store, job)
    assert request.poll() == Ending(job.checkpoint(1))
    assert not job.checkpoint(1).published, "a poll changes nothing"
    job.end("suspended")
    assert request.wait(time.monotonic() + 20, EVERY) == Ended(job.checkpoint(1), "suspended")
    assert job.checkpoint(1).published


def test_wait_for_published_publishes_the_savepoint(store: FaultyStore, job: Job) -> None:
    request = asked(store, job, awaited=Awaited.PUBLISHED, kind="savepoint", folder=memory().uri)
    request.submit()
    job.complete(1)
    assert request.poll() == Completed(job.checkpoint(1))
    outcome = request.resolve()
    assert isinstance(outcome, Completed)
    assert outcome.checkpoint.published
    assert outcome == request.poll()


def test_stop_is_not_ended_after_the_timeout_if_the_attempt_goes_on(store: FaultyStore, job: Job) -> None:
    request = stopping(store, job, timeout_s=0.2)
    outcome = request.wait(time.monotonic() + 20, EVERY)
    assert outcome == NotEnded(job.checkpoint(1), "its driver has not ended within 0.2 s")


def test_stop_is_not_ended_if_its_driver_is_lost(store: FaultyStore, job: Job) -> None:
    request = stopping(store, job)
    job.beat(GONE)
    outcome = request.wait(time.monotonic() + 20, EVERY)
    assert outcome == NotEnded(job.checkpoint(1), "its driver was lost before it had ended")


def test_stop_of_a_lost_driver_has_ended_if_its_last_entry_says_so(store: FaultyStore, job: Job) -> None:
    stopping(store, job)
    request = CheckpointRequest.of(connect(store, job), 1, awaited=Awaited.ENDED)
    job.beat(GONE)
    store.plan = at_the_first_beat(lambda: job.end("suspended"))
    assert request.poll() == Ended(job.checkpoint(1), "suspended")


def test_stop_waits_on_while_the_store_fails(store: FaultyStore, job: Job) -> None:
    """The job is already suspended, so an error would be wrong."""
    request = stopping(store, job)
    store.plan = silent
    looks = list[Outcome]()

    def look(outcome: Outcome) -> None:
        looks.append(outcome)
        store.plan = lambda call: Fault.NONE
        job.end("suspended")

    assert isinstance(request.wait(time.monotonic() + 20, EVERY, on_outcome=look), Ended)
    assert [type(outcome) for outcome in looks] == [Unreadable]


# -- abort -------------------------------------------------------------------------------------------------------------------


def test_abort_aborts_a_pending_checkpoint(store: FaultyStore, job: Job) -> None:
    request = asked(store, job)
    request.submit()
    outcome = request.abort("nobody waits", "by a test")
    assert outcome == Aborted(job.checkpoint(1))
    found = job.checkpoint(1)
    assert (found.reason, cause_of(found).details, cause_of(found).phase, cause_of(found).missing) == (
        "nobody waits",
        "by a test",
        "acknowledge",
        ("",),
    )
    assert request.abort("again") == outcome


def test_abort_of_a_completed_checkpoint_returns_completed(store: FaultyStore, job: Job) -> None:
    request = asked(store, job)
    request.submit()
    job.complete(1)
    assert request.abort("nobody waits") == Completed(job.checkpoint(1))


# -- a checkpoint by its id ----------------------------------------------------------------------------------------------------


def test_unknown_checkpoint_or_history_is_not_found(store: FaultyStore, job: Job) -> None:
    with pytest.raises(errors.CheckpointNotFound, match="never heard of it") as raised:
        CheckpointRequest.of(connect(store, job), 7).poll()
    assert raised.value.about["over"] is False
    with pytest.raises(errors.CheckpointNotFound, match="no such history"):
        CheckpointRequest.of(connect(store, Job(store.inner, "another")), 7).find()


def test_find_connects_again_after_a_denial(store: FaultyStore, job: Job) -> None:
    stores = iter([FaultyStore(store.inner, lambda call: Fault.DENIED), store])
    job.coordinator.trigger(Request(token="asked", origin="task"))

    def connect_anew() -> Coordinator:
        return connect(next(stores), job)()

    request = CheckpointRequest.of(connect_anew, 1)
    with pytest.raises(errors.StoreDenied):
        request.find()
    assert request.find() == job.checkpoint(1)


def test_forgotten_checkpoint_is_over(store: FaultyStore, job: Job) -> None:
    for number in range(1, KEPT_RECORDS + 2):
        job.coordinator.trigger(Request(token=f"barrier {number}", timeout_s=600.0))
        job.abort(number)
    with pytest.raises(errors.CheckpointNotFound, match="the journal has forgotten it") as raised:
        CheckpointRequest.of(connect(store, job), 1).poll()
    assert raised.value.about["over"] is True


def test_savepoint_in_another_folder_is_refused(store: FaultyStore, job: Job) -> None:
    request = stopping(store, job)
    folder = job.checkpoint(1).target
    assert request.find() == CheckpointRequest.of(connect(store, job), 1, folder=folder).find()
    with pytest.raises(errors.CheckpointNotFound, match="is another one"):
        CheckpointRequest.of(connect(store, job), 1, folder=f"{folder}-other").poll()
