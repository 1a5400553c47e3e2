"""What the thread of the timer does about queries that fail, and about its own errors. Runs anywhere."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, cast

import pytest

from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.spark.attempt import ending
from airflow_checkpoint_provider.spark.queries import timer as module
from airflow_checkpoint_provider.spark.queries.timer import CheckpointTimer
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.faults import FaultyStore
from tests.support.objects import Refusing
from tests.support.waiting import wait_until
from tests.unit.spark.driver import Copied, Driver, Recording, Silence, ask


class PlayedQueries:
    """Queries that run and whose failures a test plays. ``looks``: how often the timer has asked for them."""

    def __init__(self) -> None:
        self.started, self.looks = True, 0
        self.errors: list[tuple[str, Exception]] = []
        self.broken: Exception | None = None
        self.on_look: Callable[[], object] = lambda: None
        self.given_up: list[Callable[[], object]] = []

    def failed(self) -> list[tuple[str, Exception]]:
        self.looks += 1
        self.on_look()
        if self.broken:
            raise self.broken
        return self.errors

    def settle(self) -> Iterator[Callable[[], object]]:
        while self.given_up:
            yield self.given_up.pop()

    def any_runs(self) -> bool:
        return True

    def others_wait(self) -> bool:
        return False

    def script_held(self) -> AbstractContextManager[bool]:
        return contextlib.nullcontext(True)


class Timed:
    """The timer of a driver. ``ended``: with which exit codes and last lines it has ended the process."""

    def __init__(self, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ended: list[tuple[int, str]] = []
        self.queries = PlayedQueries()
        config = CheckpointConfig(interval="1 h")
        queries = cast(Any, self.queries)
        self.timer = CheckpointTimer(driver.attempt, queries, driver.checkpointer, config)
        monkeypatch.setattr(module, "PAUSE", 0.01)
        monkeypatch.setattr(module, "HANDLING", 0.05)
        monkeypatch.setattr(ending, "leave", lambda code, line: self.ended.append((code, line)))

    def await_looks(self) -> None:
        enough = self.queries.looks + 3
        wait_until(lambda: self.queries.looks >= enough, say="the timer does not go on", every=0.01)

    def await_end(self) -> str:
        """Return the last line of the process. The thread waits for its end, which does not come."""
        wait_until(lambda: self.ended, say="the process does not end", every=0.01)
        ((code, line),) = self.ended
        assert code == ExitCode.FAILED
        return line


@pytest.fixture
def timed(running: Driver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Timed]:
    timed = Timed(running, monkeypatch)
    yield timed
    if not timed.ended:
        timed.timer.end()


def test_timer_is_started_once(timed: Timed) -> None:
    timed.timer.start()
    timed.timer.start()
    timed.await_looks()


def test_timer_begins_with_the_first_query(timed: Timed) -> None:
    timed.queries.started = False
    timed.timer.start()
    assert timed.queries.looks == 0
    timed.queries.started = True
    timed.await_looks()


def test_query_that_failed_ends_the_attempt_if_the_script_takes_no_notice(
    timed: Timed, capsys: pytest.CaptureFixture[str]
) -> None:
    timed.queries.errors = [("rows", ValueError("no more disk"))]
    timed.timer.start()
    why = "query 'rows' failed, and the script continued for 0.05 s. Call its handled() to continue without it"
    assert why in timed.await_end()
    assert "ValueError: no more disk" in capsys.readouterr().err


def test_script_has_time_to_deal_with_a_query_that_failed(timed: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANDLING", 60.0)
    timed.queries.errors = [("rows", ValueError("no more disk"))]
    timed.timer.start()
    timed.await_looks()
    assert not timed.ended


def test_locations_that_queries_give_up_are_deleted(timed: Timed) -> None:
    deleted = threading.Event()
    timed.queries.given_up = [deleted.set]
    timed.timer.start()
    assert deleted.wait(60)


def test_thread_that_fails_ends_the_attempt(timed: Timed, capsys: pytest.CaptureFixture[str]) -> None:
    """Without it, nobody would serve a stop."""
    timed.queries.broken = RuntimeError("no such query")
    timed.timer.start()
    assert "its queries can take no more checkpoints: no such query" in timed.await_end()
    assert "RuntimeError: no such query" in capsys.readouterr().err


def test_thread_that_fails_while_the_attempt_ends_says_nothing(
    timed: Timed, capsys: pytest.CaptureFixture[str]
) -> None:
    timed.queries.on_look = timed.timer._ending.set
    timed.queries.broken = RuntimeError("no such query")
    timed.timer.start()
    timed.timer._thread.join(60)
    assert not timed.timer._thread.is_alive()
    assert (timed.ended, capsys.readouterr().err) == ([], "")


def test_checkpoint_that_an_object_declines_is_taken_later(
    timed: Timed, running: Driver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "AFTER_FAILURE", 3600.0)
    running.registered.add("own", Refusing())
    running.pin(Recording("counts"))
    running.asked()
    timed.timer.start()
    wait_until(lambda: timed.timer._served, say="nothing failed", every=0.01)
    assert timed.timer._served > time.monotonic() + 60
    assert "A checkpoint of the queries failed. The next one tries again: 'own'" in capsys.readouterr().out
    timed.await_looks()


def test_stop_whose_outcome_stays_unknown_ends_the_attempt(
    timed: Timed, running: Driver, target: MemoryStore, store: FaultyStore
) -> None:
    """The job may be suspended: no other checkpoint is taken."""
    running.coordinator.journal.patience = 0.05
    ask(running, target, "suspend_savepoint", timeout_s=0.3)
    running.pin(Copied("counts", on_copy=lambda: setattr(store, "plan", Silence())))
    timed.timer.start()
    assert "its queries can take no more checkpoints: the store did not answer whether the job was stopped" in (
        timed.await_end()
    )
