"""Stops with a savepoint without a Spark session: how the job is suspended, and how its queries are drained first."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from airflow_checkpoint_provider.coordinator import savepoint_target
from airflow_checkpoint_provider.errors import CommitStateUnknown, Declined, StoreDenied, StoreUnavailable
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, RETAINED
from airflow_checkpoint_provider.protocol.events import Point, Request
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.spark import SnapshotContext
from airflow_checkpoint_provider.spark.checkpoints.copies import TooLate
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.causes import cause_of
from tests.support.faults import FaultyStore, served
from tests.support.objects import Calls, Hook, Refusing
from tests.unit.spark.driver import Copied, Driver, Left, Recording, Silence, ask, barrier

# -- stopping ----------------------------------------------------------------------------------------------------------


def test_stop_suspends_the_job_and_ends_the_driver(running: Driver, target: MemoryStore) -> None:
    number = ask(running, target, "suspend_savepoint")
    running.pin(Recording("counts"))
    with pytest.raises(Left, match=r"STOPPED flights\.delays.*taken at stage 'clean'") as left:
        running.checkpointer.checkpoint("stage 'clean'")
    assert left.value.code == ExitCode.OVER
    state = running.task().state
    assert (running.listed(number).status, running.listed(number).published) == (RETAINED, True)
    assert state.suspended
    assert [attempt.outcome for attempt in state.attempts] == ["suspended"]


def test_objects_are_notified_of_the_savepoint_of_a_stop_and_closed(running: Driver, target: MemoryStore) -> None:
    calls: Calls = []
    at_barriers, background = Hook(calls, name="own"), Hook(calls, name="background")
    background.notify_in_background = True
    running.registered.add("own", at_barriers)
    running.registered.add("background", background)
    number = ask(running, target, "suspend_savepoint")
    running.pin(Recording("counts"))
    with pytest.raises(Left):
        running.checkpointer.checkpoint("here")
    for name in ("own", "background"):
        told = [call for call in calls if call[1] == name and call[0] in ("complete", "close")]
        assert told == [("complete", name, number), ("close", name)]


def test_objects_are_notified_of_the_savepoint_of_a_stop_although_an_earlier_outcome_was_unknown(
    impatient: Driver, target: MemoryStore, store: FaultyStore
) -> None:
    class Answering(Hook):
        def snapshot_state(self, ctx: SnapshotContext) -> object:
            if ctx.checkpoint_id is None:  # the savepoint's turn
                store.plan = served
            return super().snapshot_state(ctx)

    own = Answering(name="own")
    impatient.registered.add("own", own)
    impatient.checkpointer.request("periodic")
    number = ask(impatient, target, "suspend_savepoint")
    impatient.pin(Recording("counts"))
    store.plan = Silence()
    with pytest.raises(Left):
        impatient.checkpointer.checkpoint("here")
    assert impatient.listed(number).status == RETAINED
    assert ("complete", "own", number) in own.calls


def test_barrier_of_a_stop_takes_no_checkpoint_of_its_own(running: Driver, target: MemoryStore) -> None:
    number = ask(running, target, "suspend_savepoint")
    running.pin(Recording("counts"))
    with pytest.raises(Left):
        running.checkpointer.checkpoint("here")
    state = running.task().state
    assert [checkpoint.id for checkpoint in state.checkpoints] == [number]
    assert state.restore_point() == Point(id=number)


def test_task_that_waits_for_a_checkpoint_gets_it_before_the_stop(running: Driver, target: MemoryStore) -> None:
    awaited = running.asked()
    number = ask(running, target, "suspend_savepoint")
    running.pin(Recording("counts"))
    with pytest.raises(Left):
        running.checkpointer.checkpoint("here")
    state = running.task().state
    assert [(checkpoint.id, checkpoint.status) for checkpoint in state.checkpoints] == [
        (awaited, RETAINED),
        (number, RETAINED),
    ]


def test_target_that_hangs_delays_no_barrier(
    running: Driver, target: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A completed savepoint is published at its target, which may be a directory that does not answer."""
    free, began = threading.Event(), threading.Event()
    publish = savepoint_target.put_metadata

    def hang(*arguments: Any) -> None:
        began.set()
        assert free.wait(30)
        publish(*arguments)

    monkeypatch.setattr(savepoint_target, "put_metadata", hang)
    number = ask(running, target)
    running.pin(Recording("counts"))
    running.checkpointer.checkpoint("here", wait=True)
    assert began.wait(10)
    running.checkpointer.checkpoint("next", wait=True)
    assert len(running.task().state.retained) == 3
    assert not running.listed(number).published
    free.set()
    running.checkpointer.savepoints.wait_begun()
    assert running.listed(number).published


def test_latest_is_the_savepoint_of_a_stop_though_a_checkpoint_with_a_higher_id_was_completed(
    running: Driver, target: MemoryStore
) -> None:
    """The barrier was reached before the driver read the request, so it took a checkpoint of its own."""
    request = Request(token="stop", kind="suspend_savepoint", folder=target.uri, timeout_s=60.0, origin="task")
    number = running.task().trigger(request)
    barrier(running, Recording("counts"))
    running.catch_up()
    with pytest.raises(Left):
        running.checkpointer.checkpoint("next")
    state = running.task().state
    assert [checkpoint.id for checkpoint in state.retained] == [number, number + 1]
    assert state.restore_point() == Point(id=number)


def test_barrier_takes_its_own_checkpoint_when_the_savepoint_of_a_stop_is_aborted(
    running: Driver, target: MemoryStore
) -> None:
    number = ask(running, target, "suspend_savepoint")
    barrier(running, Copied("counts", error=StoreDenied("the target is read-only")))
    state = running.task().state
    assert [(checkpoint.id, checkpoint.status) for checkpoint in state.checkpoints] == [
        (number, ABORTED),
        (number + 1, RETAINED),
    ]


def test_object_that_fails_declines_the_savepoint_of_a_stop_and_the_job_goes_on(
    running: Driver, target: MemoryStore
) -> None:
    number = ask(running, target, "suspend_savepoint")
    running.registered.add("own", Refusing())
    running.pin(Recording("counts"))
    running.checkpointer.checkpoint("here")
    running.checkpointer.wait()
    assert (running.listed(number).status, running.listed(number).reason) == (ABORTED, "declined")
    assert len(running.task().state.checkpoints) == 1, "one barrier fails once"


def test_objects_stay_open_when_the_savepoint_of_a_stop_is_aborted(running: Driver, target: MemoryStore) -> None:
    calls: Calls = []
    running.registered.add("own", Hook(calls, name="own"))
    number = ask(running, target, "suspend_savepoint")
    barrier(running, Copied("counts", error=StoreDenied("the target is read-only")))
    running.checkpointer.wait()
    assert ("aborted", "own", number) in [call[:3] for call in calls]
    assert ("close", "own") not in calls


def test_stop_is_taken_before_the_next_stage(running: Driver, target: MemoryStore) -> None:
    running.pin(Recording("counts"))
    running.checkpointer.stop_if_asked("before stage 'clean'")
    assert running.task().state.checkpoints == ()
    number = ask(running, target, "suspend_savepoint")
    with pytest.raises(Left):
        running.checkpointer.stop_if_asked("before stage 'clean'")
    assert running.listed(number).status == RETAINED


def test_job_goes_on_when_the_savepoint_of_a_stop_is_aborted(
    running: Driver, target: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    number = ask(running, target, "suspend_savepoint")
    barrier(running, Copied("counts", error=StoreDenied("the target is read-only")))
    assert running.listed(number).status == ABORTED
    assert running.task().state.suspended is None
    assert "flights.delays was not stopped" in capsys.readouterr().out


def test_stop_without_an_outcome_says_nothing(
    running: Driver, target: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    number = ask(running, target, "suspend_savepoint")
    running.checkpointer.savepoints.stop(running.listed(number), "here")
    assert capsys.readouterr().out == ""


def test_stop_is_tried_until_its_outcome_is_known(
    impatient: Driver, target: MemoryStore, store: FaultyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    number = ask(impatient, target, "suspend_savepoint")
    silence = Silence(calls=20)
    snapshot = Copied("counts", on_copy=lambda: setattr(store, "plan", silence))
    impatient.pin(snapshot)
    with pytest.raises(Left):
        impatient.checkpointer.checkpoint("here")
    assert silence.left == 0
    assert impatient.listed(number).status == RETAINED
    assert len(snapshot.places) == 1, "it is copied once"
    assert "The next barrier reads the outcome again" in capsys.readouterr().out


@pytest.mark.slow  # test_drained_queries_stand_still_while_the_outcome_of_the_stop_is_unknown
def test_stop_whose_outcome_stays_unknown_raises(impatient: Driver, target: MemoryStore, store: FaultyStore) -> None:
    ask(impatient, target, "suspend_savepoint", timeout_s=2)
    impatient.pin(Copied("counts", on_copy=lambda: setattr(store, "plan", Silence())))
    with pytest.raises(CommitStateUnknown, match="did not answer whether the job was stopped"):
        impatient.checkpointer.checkpoint("here")


# -- draining ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["suspend_savepoint", "terminate_savepoint"])
def test_queries_are_drained_before_the_savepoint_if_the_stop_says_so(
    running: Driver, target: MemoryStore, kind: str
) -> None:
    number = ask(running, target, kind)
    running.pin(Copied("counts", on_copy=lambda: running.streams.calls.append("copy")))
    with pytest.raises(Left):
        running.checkpointer.checkpoint("here")
    drained = ["drain"] if kind == "terminate_savepoint" else []
    assert running.streams.calls[:-1] == [*drained, "pause", "copy"]  # in this test the process goes on
    assert running.listed(number).status == RETAINED


@pytest.mark.parametrize(
    ("error", "reason", "details"),
    [
        (Declined("query 'rows' failed"), "declined", "query 'rows' failed"),
        (StoreUnavailable("no answer"), "store failed", "no answer"),
        (TooLate("query 'rows' was not drained"), "expired", "within 60 s, query 'rows' was not drained."),
    ],
)
def test_job_goes_on_when_its_queries_cannot_be_drained(
    running: Driver,
    target: MemoryStore,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    reason: str,
    details: str,
) -> None:
    running.streams.error = error
    number = ask(running, target, "terminate_savepoint")
    snapshot = Recording("counts")
    barrier(running, snapshot)
    aborted = running.listed(number)
    assert (aborted.status, aborted.reason, cause_of(aborted).details[: len(details)]) == (ABORTED, reason, details)
    assert running.streams.calls == ["drain", "resume"]
    assert snapshot.places == [None], "the barrier's own checkpoint"
    assert running.task().state.suspended is None
    assert "flights.delays was not stopped" in capsys.readouterr().out


def test_drain_ends_when_its_time_is_over(running: Driver, target: MemoryStore) -> None:
    running.streams.endless = True
    number = ask(running, target, "terminate_savepoint", timeout_s=0.05)
    barrier(running, Recording("counts"))
    assert (running.listed(number).status, running.listed(number).reason) == (ABORTED, "expired")


def test_drain_ends_when_its_savepoint_is_aborted(running: Driver, target: MemoryStore) -> None:
    running.streams.endless = True
    number = ask(running, target, "terminate_savepoint")

    def abort() -> None:
        assert running.streams.began.wait(10)
        running.task().abort(number, "changed my mind")
        running.catch_up()

    aborting = threading.Thread(target=abort)
    aborting.start()
    barrier(running, Recording("counts"))
    aborting.join()
    assert running.listed(number).reason == "changed my mind"
    assert running.streams.calls == ["drain", "resume"]


def test_drained_queries_stand_still_while_the_outcome_of_the_stop_is_unknown(
    impatient: Driver, target: MemoryStore, store: FaultyStore
) -> None:
    ask(impatient, target, "terminate_savepoint", timeout_s=1)
    impatient.pin(Copied("counts", on_copy=lambda: setattr(store, "plan", Silence())))
    with pytest.raises(CommitStateUnknown, match="did not answer whether the job was stopped"):
        impatient.checkpointer.checkpoint("here")
    assert impatient.streams.calls == ["drain", "pause"]


def test_drained_queries_go_on_when_the_stop_of_unknown_outcome_was_aborted(
    impatient: Driver, target: MemoryStore, store: FaultyStore
) -> None:
    number = ask(impatient, target, "terminate_savepoint", timeout_s=1)
    impatient.pin(Copied("counts", on_copy=lambda: setattr(store, "plan", Silence())))
    with pytest.raises(CommitStateUnknown):
        impatient.checkpointer.checkpoint("here")
    store.plan = served
    impatient.task().abort(number, "changed my mind")
    impatient.catch_up()
    impatient.streams.calls.clear()
    barrier(impatient, Recording("counts"))
    assert impatient.streams.calls == ["resume"]
