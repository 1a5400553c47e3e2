"""The thread that reads the journal once a second: what ends the process, and what does not. Runs anywhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest

from airflow_checkpoint_provider.coordinator.liveness import read_beat
from airflow_checkpoint_provider.errors import CheckpointError, Damaged
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark.attempt import watch
from airflow_checkpoint_provider.spark.attempt.watch import AttemptWatch
from tests.support.faults import Call, Fault, FaultyStore, served
from tests.support.waiting import wait_until
from tests.unit.spark.driver import Driver, Left


class Watched(AttemptWatch):
    """The watch of a driver. ``left``: how it has ended the process."""

    def __init__(self, driver: Driver, *observers: Callable[[], object]) -> None:
        super().__init__(driver.attempt, self._stop, (*observers, self._look))
        self.left, self.looks = list[Left](), 0

    def _watch(self) -> None:
        try:
            super()._watch()
        except Left as left:
            self.left.append(left)

    def _stop(self, reason: str) -> NoReturn:
        raise Left(ExitCode.OVER, f"stopped: {reason}")

    def _look(self) -> None:
        self.looks += 1

    def await_end(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()

    def await_looks(self, more: int = 2) -> None:
        enough = self.looks + more
        wait_until(lambda: self.looks >= enough, say="the watch does not go on", every=0.01)


Watch = Callable[..., Watched]


@pytest.fixture
def watch_driver(running: Driver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Return what starts the watch of the driver."""
    monkeypatch.setattr(watch, "POLL", 0.01)
    started: list[Watched] = []

    def start(*observers: Callable[[], object]) -> Watched:
        started.append(Watched(running, *observers))
        started[0].start()
        return started[0]

    yield start
    running.attempt.leaving.begun.set()
    running.attempt.heart.stop()
    for watched in started:
        watched.await_end()


def test_watch_reads_what_others_ask_for(running: Driver, watch_driver: Watch) -> None:
    watched = watch_driver()
    number = running.task().trigger(Request(token="a task", timeout_s=60.0, origin="task"))
    wait_until(lambda: running.coordinator.state.checkpoint(number), say="not read", every=0.01)
    assert not watched.left


def test_heartbeat_begins_with_the_watch(running: Driver, watch_driver: Watch) -> None:
    watch_driver()
    attempt = running.attempt
    assert read_beat(attempt.store, attempt.keys.attempt_beat(attempt.epoch))


def test_observer_that_fails_keeps_neither_the_watch_nor_other_observers(
    running: Driver, watch_driver: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ValueError("no such query")

    watched = watch_driver(fail)
    watched.await_looks()
    assert not watched.left
    assert "ValueError: no such query" in capsys.readouterr().err


def test_watch_goes_on_when_the_store_answers_again(running: Driver, watch_driver: Watch, store: FaultyStore) -> None:
    silent = threading.Event()

    def silence(call: Call) -> Fault:
        silent.set()
        return Fault.NOT_SENT

    store.plan = silence
    watched = watch_driver()
    assert silent.wait(60)
    store.plan = served
    watched.await_looks()
    assert not watched.left


def test_replaced_attempt_ends_the_process(running: Driver, watch_driver: Watch, store: FaultyStore) -> None:
    watched = watch_driver()
    Driver(store, try_number=2).checkpointer.close()
    watched.await_end()
    assert [left.code for left in watched.left] == [ExitCode.OVER]


def test_stop_of_the_launch_is_handed_on_with_its_reason(running: Driver, watch_driver: Watch) -> None:
    task, launch = running.task(), running.attempt.record.launch
    watched = watch_driver()
    watched.await_looks()
    assert not watched.left
    task.journal.append(c.RequestStop(launch=launch, try_number=1, by="etl.totals", reason="the task was killed"))
    watched.await_end()
    assert [left.line for left in watched.left] == ["stopped: etl.totals: the task was killed"]


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (Damaged("entry 3 is no JSON"), ExitCode.REFUSED, "entry 3 is no JSON  [CKP621]"),
        (CheckpointError("entry 3 is odd"), ExitCode.FAILED, "entry 3 is odd  [CKP900]"),
        (RuntimeError("can't start new thread"), ExitCode.FAILED, "the journal could not be watched"),
    ],
    ids=["permanent", "retryable", "unforeseen"],
)
def test_journal_that_cannot_be_watched_ends_the_process(
    running: Driver,
    watch_driver: Watch,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
    line: str,
) -> None:
    def fail() -> NoReturn:
        raise error

    monkeypatch.setattr(running.attempt.writer, "poll", fail)
    watched = watch_driver()
    watched.await_end()
    assert [(left.code, left.line) for left in watched.left] == [(code, line)]
    assert ("can't start new thread" in capsys.readouterr().err) == isinstance(error, RuntimeError)


def test_watch_that_reads_the_last_entry_of_its_own_attempt_ends_in_silence(
    running: Driver, watch_driver: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = running.attempt.writer
    poll = writer.poll

    def poll_late() -> State:
        running.attempt.end.write("finished", 0)
        return poll()

    monkeypatch.setattr(writer, "poll", poll_late)
    watched = watch_driver()
    watched.await_end()
    assert (watched.left, watched.looks) == ([], 0)
