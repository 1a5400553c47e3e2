"""Deletions beside the checkpoints: a store that hangs, the end of the job, a successor. Runs anywhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from airflow_checkpoint_provider.coordinator.journal import age_clock
from airflow_checkpoint_provider.policies.retention import KeepLatest, KeepWithin
from airflow_checkpoint_provider.protocol.checkpoint_records import CONDEMNED, FORGOTTEN, RETAINED
from airflow_checkpoint_provider.protocol.keys import file_set_path
from airflow_checkpoint_provider.spark.attempt import ending, journal_writer
from airflow_checkpoint_provider.spark.checkpoints import checkpointer
from airflow_checkpoint_provider.spark.checkpoints.checkpointer import Turn
from airflow_checkpoint_provider.spark.checkpoints.deletions import Deletions
from tests.support.faults import Call, Fault, FaultyStore, served
from tests.support.histories import BEGIN
from tests.unit.spark.driver import Driver, Recording


class Hanging:
    """The plan of a store that does not answer deletions until ``free`` is set."""

    def __init__(self) -> None:
        self.asked, self.free = threading.Event(), threading.Event()

    def __call__(self, call: Call) -> Fault:
        if call.kind == "delete":
            self.asked.set()
            assert self.free.wait(60)
        return Fault.NONE


@pytest.fixture
def hanging(store: FaultyStore) -> Iterator[Hanging]:
    store.plan = hanging = Hanging()
    yield hanging
    hanging.free.set()


@pytest.fixture
def keeper(store: FaultyStore) -> Iterator[Driver]:
    """A driver that keeps one checkpoint."""
    keeper = Driver(store, retention=KeepLatest(1))
    keeper.pin(Recording("counts"))
    yield keeper
    store.plan = served
    keeper.checkpointer.close()


def statuses(driver: Driver) -> list[str]:
    return [checkpoint.status for checkpoint in driver.task().state.checkpoints]


def test_clock_that_is_set_forward_in_mid_run_deletes_nothing(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_by = timedelta(0)
    monkeypatch.setattr(journal_writer, "age_now", age_clock(lambda: BEGIN + set_by))
    keeper = Driver(store, retention=KeepLatest(1) | KeepWithin(days=7))
    keeper.pin(Recording("counts"))
    keeper.checkpointer.checkpoint("first", wait=True)
    set_by = timedelta(days=8)
    for name in ("second", "third"):
        keeper.checkpointer.checkpoint(name, wait=True)
    keeper.settle_deletions()
    assert statuses(keeper) == [RETAINED] * 3
    keeper.checkpointer.close()


def test_deletion_that_hangs_delays_no_barrier(keeper: Driver, hanging: Hanging) -> None:
    for name in ("first", "second", "third"):
        keeper.checkpointer.checkpoint(name, wait=True)
    assert hanging.asked.wait(60)
    assert statuses(keeper) == [CONDEMNED, CONDEMNED, RETAINED]
    hanging.free.set()
    keeper.settle_deletions()
    assert statuses(keeper) == [FORGOTTEN, FORGOTTEN, RETAINED]


def test_timer_waits_while_deletion_does_not_keep_up(keeper: Driver, hanging: Hanging) -> None:
    def turn() -> Turn:
        return keeper.checkpointer.periodic_checkpoint("queries")

    assert [turn() for _ in range(4)] == [Turn.TAKEN, Turn.TAKEN, Turn.TAKEN, Turn.WAITS]
    assert statuses(keeper) == [CONDEMNED, CONDEMNED, RETAINED]
    assert keeper.checkpointer.checkpoint("stage 'a'", wait=True), "a barrier does not wait"
    hanging.free.set()
    keeper.settle_deletions()
    assert turn() is Turn.TAKEN
    assert not keeper.checkpointer.protection.failures


@pytest.mark.parametrize("closing", [False, True])
def test_denied_deletion_counts_as_a_failure_until_the_job_ends(
    store: FaultyStore, closing: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = list[str]()
    monkeypatch.setattr(ending, "leave", lambda code, line: ended.append(line))
    strict = Driver(store, tolerable_failures=0)
    if closing:
        strict.checkpointer._context.closing.set()
    strict.checkpointer.delete_later(denied(store))
    strict.settle_deletions()
    assert len(ended) == (0 if closing else 1)
    assert closing or "1 checkpoint failed in a row, but tolerable_failures is 0. Last failure: Old" in ended[0]
    assert "Old checkpoints could not be deleted. The next checkpoint tries again: denied" in capsys.readouterr().out
    strict.checkpointer.close()


def denied(store: FaultyStore) -> Callable[[], None]:
    """Let the store deny deletions. Return one."""
    store.plan = lambda call: Fault.DENIED if call.kind == "delete" else Fault.NONE
    return lambda: store.delete(["older location"])


@pytest.mark.parametrize("released", [False, True])
def test_every_kind_of_deletion_counts(keeper: Driver, store: FaultyStore, released: bool) -> None:
    """Also that of files which no checkpoint holds."""
    deletion = denied(store)
    if released:
        for _ in range(3):
            keeper.stage("clean")
    else:
        keeper.checkpointer.delete_later(deletion)
    keeper.settle_deletions()
    assert keeper.checkpointer.protection.failures == 1


def test_removal_of_orphans_that_hangs_delays_no_barrier(keeper: Driver, hanging: Hanging, store: FaultyStore) -> None:
    store.create(f"{keeper.coordinator.keys.file_set(file_set_path('clean', 1, 'a'))}/part-0", b"rows")
    second = Driver(store, try_number=2)
    second.pin(Recording("counts"))
    second.checkpointer.remove_garbage()
    assert hanging.asked.wait(60)
    second.checkpointer.checkpoint("first", wait=True)
    assert statuses(second) == [RETAINED]
    hanging.free.set()
    second.checkpointer.close()
    assert not [*store.folders(f"{keeper.coordinator.keys.prefix}/state/clean")]


def test_deletion_that_waits_is_not_submitted_again() -> None:
    deletions, begun, free, calls = Deletions(print), threading.Event(), threading.Event(), list[str]()

    def hangs() -> None:
        begun.set()
        assert free.wait(60)

    def waits() -> None:
        calls.append("waits")

    deletions.submit(hangs)
    assert begun.wait(60)
    for _ in range(1_000):
        deletions.submit(waits)
    free.set()
    deletions.close(60)
    assert calls == ["waits"]


def test_error_of_a_deletion_ends_neither_the_job_nor_later_deletions(capsys: pytest.CaptureFixture[str]) -> None:
    deletions, deleted = Deletions(print), threading.Event()

    def fails() -> None:
        raise ValueError("unforeseen")

    deletions.submit(fails)
    deletions.submit(deleted.set)
    deletions.close(60)
    assert deleted.is_set()
    assert "ValueError: unforeseen" in capsys.readouterr().err


def test_finished_driver_is_not_ended_by_a_deletion_that_returns_later(
    keeper: Driver, hanging: Hanging, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its entry *forgotten* would be refused, because the attempt is over. The next process that expires forgets."""
    monkeypatch.setattr(checkpointer, "LAST_DELETION_TIMEOUT", 0.01)
    for name in ("first", "second"):
        keeper.checkpointer.checkpoint(name, wait=True)
    assert hanging.asked.wait(60)
    keeper.checkpointer.close()
    assert "A deletion has not returned within 0.01 s" in capsys.readouterr().out
    keeper.attempt.end.write("finished", 0)
    hanging.free.set()
    assert keeper.checkpointer._deletions._thread.close(60)
    assert capsys.readouterr() == ("", "")
    assert statuses(keeper) == [CONDEMNED, RETAINED]


def test_replaced_driver_deletes_nothing_more(keeper: Driver, hanging: Hanging, store: FaultyStore) -> None:
    """Its deletion hangs in the first of two checkpoints while another attempt starts."""
    store.plan = lambda call: Fault.DENIED if call.kind == "delete" else Fault.NONE
    for name in ("first", "second", "third"):
        keeper.checkpointer.checkpoint(name, wait=True)
    keeper.settle_deletions()
    assert statuses(keeper) == [CONDEMNED, CONDEMNED, RETAINED]
    store.plan = hanging
    keeper.checkpointer._deletions.submit(keeper.attempt.writer.delete_condemned)
    assert hanging.asked.wait(60)
    Driver(store, try_number=2).checkpointer.close()
    keeper.catch_up()
    hanging.free.set()
    keeper.settle_deletions()
    store.plan = served
    folders = {*store.folders(keeper.coordinator.keys.prefix)}
    assert "chk-1" not in folders
    assert "chk-2" in folders
    assert statuses(keeper) == [CONDEMNED, CONDEMNED, RETAINED]
