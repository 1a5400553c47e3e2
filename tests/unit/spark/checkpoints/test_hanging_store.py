"""A store of which one call does not return: the script goes on, and what returns late counts for nothing. Runs anywhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, PENDING, RETAINED
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.spark.state.snapshot import Check, FileSetFolder
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.acknowledgements import value
from tests.support.causes import cause_of
from tests.support.faults import Call, Fault, FaultyStore, served
from tests.support.waiting import wait_until
from tests.unit.spark.driver import Driver, Left, Recording, ask

TIMEOUT = 0.3
BOUND = 20.0  # seconds, of a busy machine; a call that is waited for takes 60


class Hanging:
    """The plan of a store that does not answer the first call for which ``matches`` is true, until ``free`` is set."""

    def __init__(self, matches: Callable[[Call], bool]) -> None:
        self._matches = matches
        self.asked, self.free = threading.Event(), threading.Event()

    def __call__(self, call: Call) -> Fault:
        if not self.asked.is_set() and self._matches(call):
            self.asked.set()
            assert self.free.wait(60)
        return Fault.NONE


@pytest.fixture
def driver(store: FaultyStore) -> Iterator[Driver]:
    driver = Driver(store, timeout=f"{TIMEOUT} s")
    driver.states.claimed_queries.add("a")  # so that a checkpoint of the timer tells whether it was taken
    driver.pin(Recording("counts"))
    yield driver
    store.plan = served
    driver.checkpointer.close()


CALLS = {
    "the trigger": lambda call: call.kind == "create" and "/journal/" in call.key,
    "the acknowledgement": lambda call: call.kind == "create" and "/ack" in call.key,
    "the seal": lambda call: call.kind == "create" and call.key.endswith("_metadata"),
    "the seal, read back": lambda call: call.kind == "read" and call.key.endswith("_metadata"),
}


def timed(call: Callable[[], Any]) -> Any:
    """Return what ``call`` returns. It must not wait for the store."""
    began = time.monotonic()
    answer = call()
    assert time.monotonic() < began + BOUND
    return answer


@pytest.mark.parametrize("name", CALLS)
def test_script_goes_on_without_a_checkpoint_whose_call_does_not_return(
    driver: Driver, store: FaultyStore, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store.plan = hanging = Hanging(CALLS[name])
    driver.checkpointer.checkpoint("stage 'a'")
    assert hanging.asked.wait(10)
    assert timed(lambda: driver.checkpointer.checkpoint("stage 'b'"))
    assert not timed(lambda: driver.checkpointer.checkpoint("checkpoint()", wait=True))
    said = capsys.readouterr().out
    assert "NOT PROTECTED: the checkpoint at the barrier before: the storage has not answered in time" in said
    assert driver.checkpointer.protection.failures == 3
    hanging.free.set()
    wait_until(driver.checkpointer.wait, say="it has not returned", every=0.05)
    assert driver.checkpointer.checkpoint("stage 'c'", wait=True)
    assert not driver.checkpointer.protection.failures
    assert driver.task().state.retained[-1].request.barrier == "stage 'c'"


def test_script_waits_for_a_call_that_may_return_within_the_timeout(running: Driver, store: FaultyStore) -> None:
    """Although the journal's own patience is over."""
    running.coordinator.journal.patience = 0.05
    store.plan = hanging = Hanging(CALLS["the trigger"])
    running.pin(Recording("counts"))
    script = threading.Thread(target=running.checkpointer.checkpoint, args=("here",), kwargs={"wait": True})
    script.start()
    assert hanging.asked.wait(10)
    script.join(0.5)
    assert script.is_alive()
    hanging.free.set()
    script.join(BOUND)
    assert running.listed(1).status == RETAINED
    assert not running.checkpointer.protection.failures


def test_late_acknowledgement_counts_for_nothing(driver: Driver, store: FaultyStore) -> None:
    store.plan = hanging = Hanging(CALLS["the acknowledgement"])
    driver.checkpointer.checkpoint("stage 'a'")
    assert hanging.asked.wait(10)
    driver.checkpointer.checkpoint("stage 'b'")
    hanging.free.set()
    wait_until(driver.checkpointer.wait, say="it has not returned", every=0.05)
    listed = driver.listed(1)
    assert (listed.status, listed.reason) == (ABORTED, "expired")
    assert cause_of(listed).details == "the storage has not answered in time"


class Stuck(Recording):
    """A snapshot whose write, or copy, does not return and asks nothing meanwhile."""

    def __init__(self, *, copied: bool = False) -> None:
        super().__init__("counts")
        self.copied, self.free = copied, threading.Event()

    def write(self, check: Check, place: FileSetFolder | None = None) -> StateSnapshot:
        if self.copied == (place is not None) and not self.free.is_set():
            self.began.set()
            assert self.free.wait(60)
        return value("counts", 0, 1)


def watched(driver: Driver, number: int) -> None:
    """Let the attempt's watch look until a checkpoint is aborted."""

    def aborted() -> bool:
        driver.checkpointer.on_watch()
        return driver.listed(number).status == ABORTED

    wait_until(aborted, say="the watch aborts nothing", every=0.05)


def acknowledged(driver: Driver, number: int) -> bool:
    return bool(driver.coordinator.store.read(driver.coordinator.keys.acknowledgement(number, "")))


@pytest.mark.parametrize("gated", [False, True])
def test_watch_aborts_a_checkpoint_whose_state_is_not_written_in_time(
    driver: Driver, gated: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """No barrier has to come: the journal answers."""
    number = driver.asked(gated=gated, timeout_s=TIMEOUT)
    stuck = Stuck()
    driver.pin(stuck)
    driver.checkpointer.checkpoint("stage 'a'")
    assert stuck.began.wait(10)
    driver.pin(Recording("counts"))
    watched(driver, number)
    assert "NOT PROTECTED" in capsys.readouterr().out
    timed(lambda: driver.checkpointer.checkpoint("stage 'b'"))
    stuck.free.set()
    wait_until(driver.checkpointer.wait, say="it has not returned", every=0.05)
    assert driver.listed(number).status == ABORTED
    assert not acknowledged(driver, number)
    assert driver.checkpointer.checkpoint("stage 'c'", wait=True)


@pytest.mark.parametrize("kind", ["savepoint", "suspend_savepoint"])
def test_copy_that_does_not_return_stops_neither_the_job_nor_the_script(
    driver: Driver, target: MemoryStore, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    number = ask(driver, target, kind, TIMEOUT)
    stuck = Stuck(copied=True)
    driver.pin(stuck)
    barrier = threading.Thread(target=driver.checkpointer.checkpoint, args=("stage 'a'",), kwargs={"wait": True})
    barrier.start()
    assert stuck.began.wait(10)
    driver.pin(Recording("counts"))
    watched(driver, number)
    barrier.join(BOUND)
    assert not barrier.is_alive()
    assert "the storage of its target has not answered within 0.3 s" in capsys.readouterr().out
    another = ask(driver, target)
    assert timed(lambda: driver.checkpointer.checkpoint("stage 'b'", wait=True))
    timed(driver.checkpointer.savepoints.wait_begun)
    assert cause_of(driver.listed(another)).details == "the copy of an earlier savepoint has not returned"
    stuck.free.set()
    timed(driver.checkpointer.savepoints.wait_begun)
    wait_until(lambda: not driver.checkpointer.savepoints.taken, say="it has not returned", every=0.05)
    assert not acknowledged(driver, number)
    third = ask(driver, target)
    driver.checkpointer.checkpoint("stage 'c'", wait=True)
    driver.checkpointer.savepoints.wait_begun()
    assert driver.listed(third).status == RETAINED


def test_stop_does_not_wait_for_a_target_that_does_not_publish_its_savepoint(
    driver: Driver, target: MemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, free = threading.Event(), threading.Event()

    def hangs() -> None:
        asked.set()
        assert free.wait(60)

    monkeypatch.setattr(driver.attempt.writer, "publish_savepoints", hangs)
    ask(driver, target, "suspend_savepoint", 1.5)  # a busy machine needs more than TIMEOUT to copy
    ended = list[Left]()

    def stop() -> None:
        try:
            driver.checkpointer.checkpoint("stage 'a'", wait=True)
        except Left as left:
            ended.append(left)

    barrier = threading.Thread(target=stop)
    barrier.start()
    assert asked.wait(10)

    def left() -> bool:
        driver.checkpointer.on_watch()
        return bool(ended)

    wait_until(left, BOUND, say="the driver does not end", every=0.05)
    assert "could not be published yet" in capsys.readouterr().out
    free.set()
    barrier.join(BOUND)


def test_end_of_the_job_does_not_wait_for_a_copy_that_does_not_return(driver: Driver, target: MemoryStore) -> None:
    number = ask(driver, target, timeout_s=TIMEOUT)
    stuck = Stuck(copied=True)
    driver.pin(stuck)
    driver.checkpointer.checkpoint("stage 'a'", wait=True)
    assert stuck.began.wait(10)
    assert driver.listed(number).status == PENDING
    watched(driver, number)
    timed(driver.checkpointer.close)
    assert not stuck.free.is_set()
    stuck.free.set()
