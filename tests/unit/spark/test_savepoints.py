"""Savepoints of a running job without a Spark session: what a barrier serves, stops, failures and lost answers."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from airflow_checkpoint_provider.coordinator import savepoint_target
from airflow_checkpoint_provider.coordinator.savepoint import target_of
from airflow_checkpoint_provider.errors import CommitStateUnknown, Declined, StoreDenied, StoreUnavailable
from airflow_checkpoint_provider.protocol.events import CheckpointCompleted, Point, Request
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.protocol.kinds import PERIODIC, STORE_FAILED
from airflow_checkpoint_provider.protocol.state import ABORTED, PENDING, RETAINED
from airflow_checkpoint_provider.spark import savepoints
from airflow_checkpoint_provider.spark.copies import TooLate
from airflow_checkpoint_provider.spark.state.snapshot import BarrierSnapshots, Check
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.acknowledgements import acknowledgement
from tests.support.faults import Fault, FaultyStore, served
from tests.support.saved import memory
from tests.support.waiting import wait_until
from tests.unit.spark.driver import Copied, Driver, Left, Recording, Silence
from tests.unit.spark.test_checkpointer_objects import Refusing
from tests.unit.spark.test_registered import Calls, Hook


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(savepoints, "RETRY_PAUSE", 0.01)


@pytest.fixture
def target() -> MemoryStore:
    return memory()


def ask(running: Driver, target: MemoryStore, kind: str = "savepoint", timeout_s: float = 60.0) -> int:
    return running.asked(kind, folder=target.uri, timeout_s=timeout_s)


def barrier(running: Driver, *snapshots: Recording, name: str = "here") -> None:
    """Reach a barrier, and wait for its checkpoint and its savepoints."""
    running.pin(*snapshots)
    running.checkpointer.checkpoint(name, wait=True)
    running.checkpointer.savepoints.settle()


def leave_file(running: Driver, target: MemoryStore, number: int) -> None:
    """Write a file at the target of a savepoint, as an interrupted copy leaves it."""
    target.create(f"{target_of(running.listed(number)).name}/part-0", b"rows")


# -- what a barrier serves ---------------------------------------------------------------------------------------------


def test_savepoint_that_is_being_copied_is_not_taken_again_by_the_next_barrier(
    running: Driver, target: MemoryStore
) -> None:
    number = ask(running, target)
    free = threading.Event()
    slow = Copied("counts", wait_for=free)
    running.pin(slow)
    running.checkpointer.checkpoint("here", wait=True)
    assert slow.began.wait(10)
    running.checkpointer.checkpoint("there", wait=True)
    assert running.listed(number).status == PENDING
    free.set()
    running.checkpointer.savepoints.settle()
    assert running.listed(number).published
    assert len(slow.places) == 1
    assert running.checkpointer.savepoints.taken == set()


def test_timer_waits_until_a_savepoint_is_copied(running: Driver, target: MemoryStore) -> None:
    """It waits once, however often it is due."""
    ask(running, target)
    free = threading.Event()
    slow = Copied("counts", wait_for=free)
    running.pin(slow)
    running.checkpointer.checkpoint("here", wait=True)
    assert slow.began.wait(10)
    for _ in range(2):
        assert running.checkpointer.periodic_checkpoint("queries", of_script=True)
    assert [queued.request.origin for queued in running.task().state.queue] == [PERIODIC]
    free.set()
    running.checkpointer.savepoints.settle()
    assert running.checkpointer.requested()
    running.checkpointer.checkpoint("queries", wait=True)
    assert [checkpoint.request.origin for checkpoint in running.task().state.retained] == ["task", "barrier", PERIODIC]


def test_driver_copies_no_savepoint_to_a_place_outside_of_the_savepoint_roots(
    running: Driver, store: FaultyStore, target: MemoryStore, capfd: pytest.CaptureFixture[str]
) -> None:
    """The request in the journal may be older than the limit, or planted."""
    number = ask(running, target)
    store.inner.savepoint_roots = (store.uri,)  # type: ignore[misc]  # a store of this package has the attribute
    barrier(running, Recording("counts"))
    aborted = running.listed(number)
    assert (aborted.status, aborted.reason) == (ABORTED, STORE_FAILED)
    assert "is no place for savepoints: the connection allows" in capfd.readouterr().out
    assert not target.objects


def test_savepoint_that_was_asked_for_after_the_barrier_waits_for_the_next_barrier(
    running: Driver, target: MemoryStore
) -> None:
    free = threading.Event()
    slow = Recording("counts", wait_for=free)
    running.pin(slow)
    running.checkpointer.checkpoint("here")
    assert slow.began.wait(10)
    number = ask(running, target)
    free.set()
    running.checkpointer.wait()
    running.checkpointer.savepoints.settle()
    assert running.listed(number).status == PENDING
    barrier(running, Recording("counts"))
    assert running.listed(number).status == RETAINED


def test_savepoints_are_taken_in_the_order_of_their_ids_and_a_stop_last(running: Driver, target: MemoryStore) -> None:
    stop = ask(running, target, "suspend_savepoint")
    first, second = ask(running, target), ask(running, target)
    running.pin(Recording("counts"))
    with pytest.raises(Left):
        running.checkpointer.checkpoint("here")
    entries = map(running.coordinator.journal.entry, range(running.coordinator.state.n + 1))
    events = [event for entry in entries if entry for event in entry.events]
    completed = [event.id for event in events if isinstance(event, CheckpointCompleted)]
    assert [number for number in completed if number in {stop, first, second}] == [first, second, stop]


def test_stop_is_not_taken_where_the_script_does_not_wait(running: Driver, target: MemoryStore) -> None:
    number = ask(running, target, "suspend_savepoint")
    snapshot = Recording("counts")
    pinned = BarrierSnapshots((snapshot,), running.checkpointer._writers)
    serving = running.checkpointer.savepoints
    serving.serve(frozenset({running.listed(number).request.token}), pinned, stop=False)
    serving.settle()
    assert (running.listed(number).status, snapshot.places, snapshot.discarded) == (PENDING, [], 1)


def test_savepoint_inside_of_another_savepoint_is_declined(
    running: Driver, target: MemoryStore, tmp_path: Path
) -> None:
    """A request may reach the driver from a version that does not look, or the other savepoint may be newer than the request."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "_metadata").write_bytes(b"{}")
    number = running.asked("savepoint", folder=f"file://{tmp_path}/other/mine", timeout_s=60.0)
    barrier(running, Recording("counts"))
    listed = running.listed(number)
    assert (listed.status, listed.reason) == (ABORTED, "declined")
    assert f"lies inside of the savepoint file://{tmp_path}/other" in listed.details
    assert not (tmp_path / "other" / "mine").exists()


def test_savepoint_that_was_aborted_meanwhile_is_not_copied(running: Driver, target: MemoryStore) -> None:
    number = ask(running, target)
    token = running.listed(number).request.token
    snapshot = Recording("counts")
    running.task().abort(number, "changed my mind")
    serving = running.checkpointer.savepoints
    serving.serve(frozenset({token}), BarrierSnapshots((snapshot,), running.checkpointer._writers), stop=False)
    serving.settle()
    assert (snapshot.places, snapshot.discarded) == ([], 1)


def test_completed_savepoint_is_logged(
    running: Driver, target: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    number = ask(running, target)
    barrier(running, Recording("counts"))
    assert f"chk-{number} " in capsys.readouterr().out


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

    def hang(*arguments: Any) -> savepoint_target.Published:
        began.set()
        assert free.wait(30)
        return publish(*arguments)

    monkeypatch.setattr(savepoint_target, "put_metadata", hang)
    number = ask(running, target)
    running.pin(Recording("counts"))
    running.checkpointer.checkpoint("here", wait=True)
    assert began.wait(10)
    running.checkpointer.checkpoint("next", wait=True)
    assert len(running.task().state.retained) == 3
    assert not running.listed(number).published
    free.set()
    running.checkpointer.savepoints.settle()
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


def test_stop_whose_outcome_stays_unknown_raises(impatient: Driver, target: MemoryStore, store: FaultyStore) -> None:
    ask(impatient, target, "suspend_savepoint", timeout_s=0.3)
    impatient.pin(Copied("counts", on_copy=lambda: setattr(store, "plan", Silence())))
    with pytest.raises(CommitStateUnknown, match="did not answer whether the job was stopped"):
        impatient.checkpointer.checkpoint("here")


# -- draining ----------------------------------------------------------------------------------------------------------


class Queries:
    """Queries whose data ends as the test says: it raises an error, or never ends."""

    def __init__(self, running: Driver, error: Exception | None = None, endless: bool = False) -> None:
        self.calls: list[str] = []
        self.began = threading.Event()
        self._error, self._endless = error, endless
        checkpointer = running.checkpointer
        checkpointer.drain_queries = self._drain
        checkpointer.pause_queries = lambda check: self.calls.append("pause")
        checkpointer.resume_queries = lambda: self.calls.append("resume")

    def _drain(self, check: Check) -> None:
        self.calls.append("drain")
        self.began.set()
        while self._endless:
            check()
        if self._error:
            raise self._error


@pytest.mark.parametrize("kind", ["suspend_savepoint", "terminate_savepoint"])
def test_queries_are_drained_before_the_savepoint_if_the_stop_says_so(
    running: Driver, target: MemoryStore, kind: str
) -> None:
    queries = Queries(running)
    number = ask(running, target, kind)
    running.pin(Copied("counts", on_copy=lambda: queries.calls.append("copy")))
    with pytest.raises(Left):
        running.checkpointer.checkpoint("here")
    drained = ["drain"] if kind == "terminate_savepoint" else []
    assert queries.calls[:-1] == [*drained, "pause", "copy"]  # in this test the process goes on
    assert running.listed(number).status == RETAINED


@pytest.mark.parametrize(
    ("error", "reason", "details"),
    [
        (Declined("query 'rows' failed"), "declined", "query 'rows' failed"),
        (StoreUnavailable("no answer"), "store failed", "no answer"),
        (TooLate("query 'rows' was not drained"), "expired", "query 'rows' was not drained within 60 s."),
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
    queries = Queries(running, error)
    number = ask(running, target, "terminate_savepoint")
    snapshot = Recording("counts")
    barrier(running, snapshot)
    aborted = running.listed(number)
    assert (aborted.status, aborted.reason, aborted.details[: len(details)]) == (ABORTED, reason, details)
    assert queries.calls == ["drain", "resume"]
    assert snapshot.places == [None], "the barrier's own checkpoint"
    assert running.task().state.suspended is None
    assert "flights.delays was not stopped" in capsys.readouterr().out


def test_drain_ends_when_its_time_is_over(running: Driver, target: MemoryStore) -> None:
    Queries(running, endless=True)
    number = ask(running, target, "terminate_savepoint", timeout_s=0.05)
    barrier(running, Recording("counts"))
    assert (running.listed(number).status, running.listed(number).reason) == (ABORTED, "expired")


def test_drain_ends_when_its_savepoint_is_aborted(running: Driver, target: MemoryStore) -> None:
    queries = Queries(running, endless=True)
    number = ask(running, target, "terminate_savepoint")

    def abort() -> None:
        assert queries.began.wait(10)
        running.task().abort(number, "changed my mind")
        running.catch_up()

    aborting = threading.Thread(target=abort)
    aborting.start()
    barrier(running, Recording("counts"))
    aborting.join()
    assert running.listed(number).reason == "changed my mind"
    assert queries.calls == ["drain", "resume"]


def test_drained_queries_stand_still_while_the_outcome_of_the_stop_is_unknown(
    impatient: Driver, target: MemoryStore, store: FaultyStore
) -> None:
    queries = Queries(impatient)
    ask(impatient, target, "terminate_savepoint", timeout_s=0.3)
    impatient.pin(Copied("counts", on_copy=lambda: setattr(store, "plan", Silence())))
    with pytest.raises(CommitStateUnknown, match="did not answer whether the job was stopped"):
        impatient.checkpointer.checkpoint("here")
    assert queries.calls == ["drain", "pause"]


# -- savepoints that fail ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "reason", "words", "unexpected"),
    [
        (StoreUnavailable("no answer"), "store failed", "no answer", False),
        (ValueError("no more disk"), "declined", "ValueError: no more disk", True),
    ],
)
def test_savepoint_that_cannot_be_copied_is_aborted_and_its_files_are_deleted(
    running: Driver,
    target: MemoryStore,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    reason: str,
    words: str,
    unexpected: bool,
) -> None:
    number = ask(running, target)
    leave_file(running, target, number)
    barrier(running, Copied("counts", error=error))
    aborted = running.listed(number)
    assert (aborted.status, aborted.reason, aborted.details) == (ABORTED, reason, words)
    assert target.objects == {}
    printed = capsys.readouterr()
    assert f"ABORTED chk-{number}" in printed.out
    assert ("Traceback" in printed.err) is unexpected
    assert running.checkpointer.savepoints.taken == set()
    assert len(running.task().state.retained) == 1, "the barrier's own checkpoint"


def test_barriers_without_savepoints_leave_nothing_in_the_driver(running: Driver) -> None:
    for _ in range(50):
        running.checkpointer.checkpoint("here", wait=True)
    wait_until(
        lambda: all(begun.done() for begun in running.checkpointer.savepoints._begun), 10, lambda: "not discarded"
    )
    running.checkpointer.checkpoint("here", wait=True)
    assert len(running.checkpointer.savepoints._begun) == 1


def test_savepoint_expires_when_its_copy_takes_longer_than_its_timeout(
    running: Driver, target: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    number = ask(running, target, timeout_s=0.05)
    barrier(running, Copied("counts", wait_for=threading.Event()))
    aborted = running.listed(number)
    assert (aborted.reason, aborted.details) == (
        "expired",
        "it was not copied within 0.05 s. Give it a longer timeout",
    )
    assert "Traceback" not in capsys.readouterr().err


def half_copied(running: Driver, target: MemoryStore) -> int:
    """Ask for a savepoint, and return its id while its copy waits."""
    number = ask(running, target)
    leave_file(running, target, number)
    slow = Copied("counts", wait_for=threading.Event())
    running.pin(slow)
    running.checkpointer.checkpoint("here", wait=True)
    assert slow.began.wait(10)
    return number


def test_copy_stops_when_its_savepoint_is_aborted(
    running: Driver, target: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    number = half_copied(running, target)
    running.task().abort(number, "changed my mind")
    running.catch_up()
    running.checkpointer.savepoints.settle()
    assert target.objects == {}
    assert f"ABORTED chk-{number} of flights.delays: changed my mind" in capsys.readouterr().out


def test_copy_stops_when_the_attempt_ends(
    running: Driver, target: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    number = half_copied(running, target)
    running.checkpointer.close()
    assert running.listed(number).status == PENDING, "the end of the attempt aborts it"
    assert len(target.objects) == 1
    assert "ABORTED" not in capsys.readouterr().out


def test_savepoint_whose_outcome_is_unknown_is_completed_by_the_next_barrier(
    impatient: Driver, target: MemoryStore, store: FaultyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    number = ask(impatient, target)
    snapshot = Copied("counts", on_copy=lambda: setattr(store, "plan", Silence()))
    barrier(impatient, snapshot)
    assert "The next barrier reads the outcome again" in capsys.readouterr().out
    store.plan = served
    assert impatient.listed(number).status == PENDING
    barrier(impatient, Recording("counts"), name="there")
    assert impatient.listed(number).published
    assert len(snapshot.places) == 1, "it was acknowledged already"


def test_savepoint_that_cannot_be_published_is_published_later(
    running: Driver, target: MemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def deny(key: str, body: bytes) -> None:
        raise StoreDenied(f"{key}: denied")

    number = ask(running, target)
    with monkeypatch.context() as denied:
        denied.setattr(target, "create", deny)
        barrier(running, Recording("counts"))
        assert (running.listed(number).status, running.listed(number).published) == (RETAINED, False)
    assert "could not be published yet" in capsys.readouterr().out
    running.checkpointer.savepoints.publish()
    wait_until(lambda: running.listed(number).published, 10, lambda: "not published", every=0.01)


# -- the end of the driver ---------------------------------------------------------------------------------------------


def acknowledged(running: Driver, target: MemoryStore, kind: str = "savepoint") -> int:
    """Acknowledge a savepoint that nobody has completed yet. Return its id."""
    number = ask(running, target, kind)
    running.coordinator.acknowledge(acknowledgement(number))
    return number


def test_acknowledged_savepoint_is_completed_before_the_end_is_recorded(running: Driver, target: MemoryStore) -> None:
    number, other = acknowledged(running, target), ask(running, target)
    running.attempt.end("failed", 1)
    assert (running.listed(number).status, running.listed(other).status) == (RETAINED, ABORTED)
    assert running.task().state.attempts[-1].outcome == "failed"


def test_acknowledged_savepoint_is_completed_by_a_driver_that_is_terminated(
    running: Driver, target: MemoryStore
) -> None:
    number = acknowledged(running, target)
    with pytest.raises(Left):
        running.attempt.end_now("failed", 143, "SIGTERM")
    assert running.listed(number).status == RETAINED


def test_acknowledged_gated_checkpoint_is_aborted_by_the_end(running: Driver) -> None:
    number = running.asked(gated=True)
    running.coordinator.acknowledge(acknowledgement(number))
    running.attempt.end("finished", 0)
    assert running.listed(number).status == ABORTED


def test_end_is_recorded_though_the_seal_cannot_be_written(
    running: Driver, target: MemoryStore, store: FaultyStore
) -> None:
    number = acknowledged(running, target)
    seal = running.coordinator.keys.seal(number)
    store.plan = lambda call: Fault.DENIED if call.key == seal else Fault.NONE
    running.attempt.end("failed", 1)
    assert running.listed(number).status == ABORTED
