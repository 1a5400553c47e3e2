"""The checkpoint of one barrier: aborted by others, too large, or late. Runs anywhere."""

from __future__ import annotations

import threading

import pytest

from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, PENDING, RETAINED
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.spark import SnapshotContext
from airflow_checkpoint_provider.spark.state.snapshot import Check, FileSetFolder
from airflow_checkpoint_provider.storage import base
from tests.support.acknowledgements import bystander
from tests.support.faults import Call, Fault, FaultyStore, Time
from tests.support.objects import Own
from tests.unit.spark.driver import Driver, Recording


class Aborting:
    """The plan of a store in which another process aborts each of the first ``count`` checkpoints while it is sealed."""

    def __init__(self, store: FaultyStore, count: int) -> None:
        self._store, self._left = store.inner, count

    def __call__(self, call: Call) -> Fault:
        if self._left and call.kind == "create" and call.key.endswith("_metadata"):
            self._left -= 1
            others = bystander(self._store)
            (pending,) = others.state.pending
            others.abort(pending.id, "changed my mind")
        return Fault.NONE


def test_checkpoint_that_is_aborted_while_it_is_sealed_gives_way_to_the_next(
    running: Driver, store: FaultyStore
) -> None:
    store.plan = Aborting(store, 1)
    running.pin(Recording("counts"))
    assert running.checkpointer.checkpoint("here", wait=True)
    assert [checkpoint.status for checkpoint in running.task().state.checkpoints] == [ABORTED, RETAINED]


def test_barrier_gives_up_when_three_checkpoints_in_a_row_are_aborted_by_others(
    running: Driver, store: FaultyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.plan = Aborting(store, 3)
    running.checkpointer._context.awaited.set()  # the script waits, so the barrier tries no more
    running.pin(Recording("counts"))
    running.checkpointer.checkpoint("here", wait=True)
    assert [checkpoint.status for checkpoint in running.task().state.checkpoints] == [ABORTED] * 3
    assert running.checkpointer.protection.failures == 1
    assert running.checkpointer._context.unknown is None
    assert "three checkpoints in a row were aborted by other processes" in capsys.readouterr().out


def test_checkpoint_that_is_too_large_is_not_tried_again(running: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "LARGEST", 5000)
    running.pin(*(Recording(f"state-{number:04d}") for number in range(50)))
    running.checkpointer.checkpoint("here")
    running.checkpointer.wait()
    (aborted,) = running.task().state.checkpoints
    assert (aborted.status, aborted.reason) == (ABORTED, "too large")
    assert running.checkpointer.protection.failures == 1


def test_checkpoint_that_is_written_in_time_is_not_aborted_by_the_watch(running: Driver) -> None:
    free = threading.Event()
    slow = Recording("counts", wait_for=free)
    running.pin(slow)
    running.checkpointer.checkpoint("here")
    assert slow.began.wait(10)
    running.checkpointer.on_watch()
    assert running.listed(1).status == PENDING
    free.set()
    running.checkpointer.wait()
    assert running.listed(1).status == RETAINED


class SlowObject(Own):
    """A registered object that is asked for 6 seconds."""

    def __init__(self, time: Time) -> None:
        super().__init__(says=1)
        self._time = time

    def snapshot_state(self, ctx: SnapshotContext) -> object:
        self._time.sleep(6.0)
        return super().snapshot_state(ctx)


class SlowSnapshot(Recording):
    """A snapshot that is written for 6 seconds, and asks at the end whether that was in time."""

    def __init__(self, time: Time) -> None:
        super().__init__("counts")
        self._time = time

    def write(self, check: Check, place: FileSetFolder | None = None) -> StateSnapshot:
        self._time.sleep(6.0)
        check()
        return super().write(check, place)


def test_timeout_begins_before_registered_objects_are_asked(store: FaultyStore) -> None:
    time = Time()
    slow = Driver(store, clock=time.monotonic, timeout="10 s")
    slow.registered.add("own", SlowObject(time))
    slow.pin(SlowSnapshot(time))
    slow.checkpointer.checkpoint("here", wait=True)
    assert slow.listed(1).reason == "expired"
    slow.checkpointer.close()
