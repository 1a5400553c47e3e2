"""The checkpoints of an attempt without a Spark session: writes, acknowledgements, retries and aborts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.restore import Restored
from airflow_checkpoint_provider.errors import Declined
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.state import ABORTED, PENDING, RETAINED, Checkpoint
from airflow_checkpoint_provider.spark import checkpoint_task
from airflow_checkpoint_provider.spark.attempt import Attempt
from airflow_checkpoint_provider.spark.checkpointer import Checkpointer
from airflow_checkpoint_provider.spark.copies import NewFileSets, SavepointTarget
from airflow_checkpoint_provider.spark.state.registered import Registered
from airflow_checkpoint_provider.spark.state.snapshot import Check, Place, Snapshot
from airflow_checkpoint_provider.spark.state.states import States
from airflow_checkpoint_provider.storage import MemoryStore, Store
from tests.support.acknowledgements import bystander, driver, value
from tests.support.faults import Call, Fault, FaultyStore, served
from tests.support.waiting import wait_until


@dataclass
class Recording:
    """A snapshot that records its calls. ``wait_for``: what it waits for, asking ``check`` meanwhile."""

    uid: str
    content: int = 0
    error: Exception | None = None
    wait_for: threading.Event | threading.Barrier | None = None
    places: list[Place | None] = field(default_factory=list)
    discarded: int = 0
    began: threading.Event = field(default_factory=threading.Event)

    def write(self, check: Check, place: Place | None = None) -> StateSnapshot:
        self.places.append(place)
        self.began.set()
        if isinstance(self.wait_for, threading.Barrier):
            self.wait_for.wait(10)
        while isinstance(self.wait_for, threading.Event) and not self.wait_for.wait(0.01):
            check()
        if self.error:
            raise self.error
        return value(self.uid, 0, self.content)

    def discard(self) -> None:
        self.discarded += 1


class Pinned(States):
    """States whose snapshots a test hands in."""

    given: tuple[Recording, ...] = ()

    def pin(self, barrier: str) -> tuple[Snapshot, ...]:
        return self.given


class Driver:
    """The checkpointer of an attempt, and what its journal says."""

    def __init__(self, store: Store, **checkpointing: Any) -> None:
        self.coordinator = driver(store)
        state = self.coordinator.state
        self.attempt = Attempt(self.coordinator, state.attempts[-1], state.runs[-1], Restored())
        self.states = Pinned("run")
        self.registered = Registered(self.states, None)
        config = CheckpointConfig(**checkpointing)
        self.checkpointer = Checkpointer(self.attempt, self.states, self.registered, "4.2.0", config)

    def pin(self, *snapshots: Recording) -> None:
        self.states.given = snapshots

    def task(self) -> Coordinator:
        """Return what a task uses: another reader of the same history."""
        coordinator = bystander(self.coordinator.store)
        coordinator.journal.catch_up()
        return coordinator

    def listed(self, number: int) -> Checkpoint:
        checkpoint = self.task().state.checkpoint(number)
        assert checkpoint
        return checkpoint

    def catch_up(self) -> None:
        """Read the journal, as the attempt's watch does once a second."""
        self.coordinator.journal.catch_up()


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
def running(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setattr(checkpoint_task, "FIRST_WAIT", 0.01)
    running = Driver(store)
    yield running
    store.plan = served
    running.checkpointer.close()


# -- the barrier's own checkpoint --------------------------------------------------------------------------------------


def test_barrier_completes_a_checkpoint_of_all_snapshots(running: Driver) -> None:
    running.pin(Recording("counts", 1), Recording("totals", 2))
    running.checkpointer.checkpoint("stage 'clean'", wait=True)
    (checkpoint,) = running.task().state.retained
    assert checkpoint.request.barrier == "stage 'clean'"
    states = running.task().read_seal(checkpoint).states
    assert {uid: state.value for uid, state in states.items()} == {"counts": 1, "totals": 2}


def test_snapshots_are_written_at_the_same_time(running: Driver) -> None:
    both = threading.Barrier(2)
    running.pin(Recording("counts", wait_for=both), Recording("totals", wait_for=both))
    running.checkpointer.checkpoint("here", wait=True)
    assert len(running.task().state.retained) == 1


def test_script_goes_on_while_snapshots_are_written(running: Driver) -> None:
    slow = Recording("counts", wait_for=threading.Event())
    running.pin(slow)
    running.checkpointer.checkpoint("here")
    assert slow.began.wait(10)
    assert running.task().state.retained == ()
    assert isinstance(slow.wait_for, threading.Event)
    slow.wait_for.set()
    running.checkpointer.wait()
    assert len(running.task().state.retained) == 1


def test_write_stops_when_its_checkpoint_is_aborted(running: Driver) -> None:
    slow = Recording("counts", wait_for=threading.Event())
    running.pin(slow)
    running.checkpointer.checkpoint("here")
    assert slow.began.wait(10)
    (pending,) = running.task().state.pending
    running.task().abort(pending.id, "changed my mind")
    running.catch_up()
    wait_until(lambda: len(slow.places) > 1, 10, lambda: "no next checkpoint is taken", every=0.01)
    assert isinstance(slow.wait_for, threading.Event)
    slow.wait_for.set()
    running.checkpointer.wait()
    assert [checkpoint.id for checkpoint in running.task().state.retained] == [pending.id + 1]


def test_failed_write_aborts_the_checkpoint_and_the_job_goes_on(running: Driver) -> None:
    running.pin(Recording("counts", error=ValueError("no more disk")))
    running.checkpointer.checkpoint("here")
    running.checkpointer.wait()
    aborted = running.task().state.with_status(ABORTED)
    assert {(checkpoint.reason, checkpoint.details) for checkpoint in aborted} == {
        ("declined", "ValueError: no more disk")
    }
    running.pin(Recording("counts"))
    running.checkpointer.checkpoint("there", wait=True)
    assert running.checkpointer.protection.failures == 0


def test_checkpoint_expires_when_a_write_takes_longer_than_its_timeout(store: FaultyStore) -> None:
    running = Driver(store, timeout="10 ms")
    running.pin(Recording("counts", wait_for=threading.Event()))
    running.checkpointer.checkpoint("here")
    running.checkpointer.wait()
    assert {checkpoint.reason for checkpoint in running.task().state.with_status(ABORTED)} == {"expired"}
    running.checkpointer.close()


# -- a store that fails ------------------------------------------------------------------------------------------------


def test_checkpoint_is_retried_until_the_store_answers(running: Driver, store: FaultyStore) -> None:
    refused = threading.Event()

    def refuse(call: Call) -> Fault:
        if call.kind == "create":
            refused.set()
            return Fault.DENIED
        return Fault.NONE

    snapshot = Recording("counts")
    running.pin(snapshot)
    store.plan = refuse
    running.checkpointer.checkpoint("here")
    assert refused.wait(10)
    wait_until(lambda: running.checkpointer.protection.failures, 10, lambda: "nothing failed", every=0.01)
    store.plan = served
    wait_until(lambda: running.coordinator.state.retained, 10, lambda: "never tried again", every=0.01)
    assert snapshot.places == [None], "it is written once"
    running.checkpointer.wait()
    assert running.checkpointer.protection.failures == 0


# -- what others ask for -----------------------------------------------------------------------------------------------


def test_requested_checkpoint_is_served_by_the_next_barrier(running: Driver) -> None:
    number = running.checkpointer.request("periodic")
    assert running.checkpointer.requested()
    running.pin(Recording("counts"))
    running.checkpointer.checkpoint("here", wait=True)
    assert running.listed(number).status == RETAINED
    assert not running.checkpointer.requested()
    assert len(running.task().state.checkpoints) == 1


def test_savepoint_writes_each_snapshot_at_its_target_and_discards_it_afterwards(running: Driver) -> None:
    number = running.task().trigger(
        Request(token="a person", timeout_s=60.0, origin="task", kind="savepoint", folder="memory://saved")
    )
    running.catch_up()
    snapshot = Recording("counts", 3)
    running.pin(snapshot)
    running.checkpointer.checkpoint("here", wait=True)
    running.checkpointer.savepoints.settle()
    assert running.listed(number).published
    assert [type(place) for place in snapshot.places] == [type(None), SavepointTarget]
    assert snapshot.discarded == 1


def test_full_checkpoint_writes_each_snapshot_to_new_file_sets(running: Driver) -> None:
    number = running.task().trigger(Request(token="a person", timeout_s=60.0, origin="task", kind="full_checkpoint"))
    running.catch_up()
    snapshot = Recording("counts", 3)
    running.pin(snapshot)
    running.checkpointer.checkpoint("here", wait=True)
    assert running.listed(number).status == RETAINED
    assert [type(place) for place in snapshot.places] == [type(None), NewFileSets]


def test_gated_checkpoint_is_acknowledged_and_left_to_its_finalize_task(running: Driver) -> None:
    number = running.task().trigger(Request(token="a task", timeout_s=60.0, origin="task", gated=True))
    running.catch_up()
    running.pin(Recording("counts"))
    running.checkpointer.checkpoint("here", wait=True)
    assert running.listed(number).status == PENDING
    assert running.task().missing(running.listed(number)) == ()
    assert [checkpoint.id for checkpoint in running.checkpointer.manual.waiting()] == [number]


# -- registered objects ------------------------------------------------------------------------------------------------


class Refusing:
    """A registered object without an answer."""

    def initialize_state(self, ctx: object) -> None:
        """Nothing to read."""

    def snapshot_state(self, ctx: object) -> object:
        raise ValueError("not now")


def test_object_that_fails_declines_every_checkpoint_that_waits_for_the_barrier(running: Driver) -> None:
    number = running.checkpointer.request("periodic")
    running.registered.add("own", Refusing())
    running.pin(Recording("counts"))
    with pytest.raises(Declined, match="not now"):
        running.checkpointer.checkpoint("here", wait=True)
    assert running.listed(number).reason == "declined"


class Listening:
    """A registered object that records its notifications. It returns from them when ``free`` is set."""

    def __init__(self, *, in_background: bool) -> None:
        self.notify_in_background = in_background
        self.free = threading.Event()
        self.completed: list[int] = []

    def initialize_state(self, ctx: object) -> None:
        """Nothing to read."""

    def snapshot_state(self, ctx: object) -> object:
        return None

    def notify_checkpoint_complete(self, number: int) -> None:
        assert self.free.wait(10)
        self.completed.append(number)


def gated_and_finalized(running: Driver) -> int:
    """Let a task ask for a checkpoint, a barrier acknowledge it, and the task finalize it. Return its id."""
    request = Request(token="a task", timeout_s=60.0, origin="task", gated=True, confirm_commits=True)
    number = running.task().trigger(request)
    running.catch_up()
    running.pin(Recording("counts"))
    running.checkpointer.checkpoint("here", wait=True)
    running.task().complete(number, finalize=True)
    running.catch_up()
    return number


def test_background_object_is_notified_between_two_barriers(running: Driver) -> None:
    listening = Listening(in_background=True)
    listening.free.set()
    running.registered.add("own", listening)
    number = gated_and_finalized(running)
    running.checkpointer.look()
    wait_until(lambda: number in listening.completed, 10, lambda: "not notified", every=0.01)


def test_other_objects_are_notified_at_the_next_barrier(running: Driver) -> None:
    listening = Listening(in_background=False)
    listening.free.set()
    running.registered.add("own", listening)
    number = gated_and_finalized(running)
    running.checkpointer.look()
    assert number not in listening.completed
    running.checkpointer.checkpoint("there")
    assert number in listening.completed


def test_commits_are_confirmed_when_the_last_object_was_notified(running: Driver) -> None:
    slow = Listening(in_background=True)
    running.registered.add("slow", slow)
    number = gated_and_finalized(running)
    running.checkpointer.look()
    running.checkpointer.look()
    assert not running.listed(number).commits_confirmed
    slow.free.set()
    wait_until(lambda: running.registered.notified(number), 10, lambda: "not notified", every=0.01)
    running.checkpointer.look()
    assert running.listed(number).commits_confirmed


def test_object_that_hangs_delays_no_other_object(running: Driver) -> None:
    hanging, listening = Listening(in_background=True), Listening(in_background=True)
    listening.free.set()
    running.registered.add("hanging", hanging)
    running.registered.add("listening", listening)
    number = gated_and_finalized(running)
    running.checkpointer.look()
    wait_until(lambda: number in listening.completed, 10, lambda: "not notified", every=0.01)
    assert hanging.completed == []
    hanging.free.set()


def test_commits_are_confirmed_at_once_without_registered_objects(running: Driver) -> None:
    number = gated_and_finalized(running)
    running.checkpointer.look()
    assert running.listed(number).commits_confirmed


# -- several threads ---------------------------------------------------------------------------------------------------


def test_barriers_of_several_threads_run_one_after_the_other(running: Driver) -> None:
    running.pin(Recording("counts"))
    threads = [
        threading.Thread(target=running.checkpointer.checkpoint, args=(f"barrier {number}",)) for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    running.checkpointer.wait()
    barriers = {checkpoint.request.barrier for checkpoint in running.task().state.checkpoints}
    assert barriers == {f"barrier {number}" for number in range(8)}
