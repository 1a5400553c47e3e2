"""A driver that is terminated: rows that are proved are saved first, within a limit. Runs anywhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, PENDING, RETAINED
from airflow_checkpoint_provider.spark.attempt import ending
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.faults import Call, Fault, FaultyStore, Time
from tests.support.waiting import wait_until
from tests.unit.spark.driver import Copied, Driver, Left, Recording, ask

LIMIT = 0.4
BOUND = 20.0  # seconds, of a busy machine; a call of the store that hangs takes 60


class Hanging:
    """The plan of a store that answers no call for which ``matches`` is true, until ``free`` is set."""

    def __init__(self, matches: Callable[[Call], bool]) -> None:
        self._matches = matches
        self.asked, self.free = threading.Event(), threading.Event()

    def __call__(self, call: Call) -> Fault:
        if self._matches(call):
            self.asked.set()
            assert self.free.wait(60)
        return Fault.NONE


@pytest.fixture
def driver(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Return a driver that is not closed: its threads wait for the end of the process, which does not come."""
    monkeypatch.setattr(ending, "LAST_ENTRY", LIMIT / 2)
    return Driver(store)


def terminated(driver: Driver, limit: float = LIMIT) -> Left:
    """Return how the driver ends on SIGTERM, for which it has ``limit`` seconds."""
    began = time.monotonic()
    with pytest.raises(Left) as left:
        driver.attempt.end.in_order("failed", 143, "SIGTERM", driver.checkpointer.save_rows, limit)
    assert time.monotonic() < began + BOUND
    assert left.value.code == 143
    assert left.value.line.splitlines()[0] == "attempt 1 of flights.delays ends: SIGTERM"
    return left.value


def beside(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def begun(driver: Driver, *snapshots: Recording) -> None:
    """Reach a barrier, and wait until its checkpoint is being written."""
    driver.pin(*snapshots)
    driver.checkpointer.checkpoint("stage 'a'")
    assert snapshots[0].began.wait(10)


def taken(driver: Driver) -> bool:
    """Return whether the checkpoint of the barrier has its outcome. Savepoints are taken afterwards."""
    in_flight = driver.checkpointer._in_flight
    return in_flight is not None and in_flight.done()


def outcomes(driver: Driver) -> list[tuple[str, str]]:
    return [(checkpoint.status, checkpoint.reason) for checkpoint in driver.task().state.checkpoints]


def ends(driver: Driver) -> list[tuple[str | None, int | None]]:
    return [(attempt.outcome, attempt.exit_code) for attempt in driver.task().state.attempts]


class Late(Recording):
    """A proof that is complete a little after the signal. It does not ask whether it is wanted."""

    def __init__(self, driver: Driver) -> None:
        super().__init__("counts")
        self._begun = driver.attempt.leaving.begun

    def write(self, *arguments: Any) -> Any:
        self.began.set()
        assert self._begun.wait(10)
        return super().write(*arguments)


def test_checkpoint_in_flight_is_completed(driver: Driver) -> None:
    begun(driver, Late(driver))
    assert "\n" not in terminated(driver, BOUND).line
    assert outcomes(driver) == [(RETAINED, "")]
    assert ends(driver) == [("failed", 143)]


def test_stage_whose_barrier_is_not_reached_yet_is_saved(driver: Driver) -> None:
    driver.pin(Recording("counts"))
    ahead = threading.Event()

    def script() -> None:
        with driver.checkpointer.barrier_ahead():
            ahead.set()
            assert driver.attempt.leaving.begun.wait(10)
            driver.checkpointer.checkpoint("stage 'a'")

    beside(script)
    assert ahead.wait(10)
    assert "\n" not in terminated(driver, BOUND).line
    assert outcomes(driver) == [(RETAINED, "")]
    assert ends(driver) == [("failed", 143)]


def test_state_that_is_not_written_is_given_up_once(driver: Driver, capsys: pytest.CaptureFixture[str]) -> None:
    """As a query's: none of its files counts, and nothing takes its place."""
    begun(driver, Recording("query", wait_for=threading.Event()))
    terminated(driver, BOUND)
    assert outcomes(driver) == [(ABORTED, "attempt ended")]
    assert ends(driver) == [("failed", 143)]
    said = capsys.readouterr().out
    assert said.count("ABORTED chk-1") == 1
    assert "its attempt ended before its states were written" in said


def test_savepoint_is_not_copied_any_further(
    driver: Driver, target: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    number = ask(driver, target)
    copied = Copied("counts", wait_for=threading.Event())
    driver.pin(copied)
    driver.checkpointer.checkpoint("stage 'a'")
    assert copied.began.wait(10)
    wait_until(lambda: taken(driver), say="not taken", every=0.05)
    terminated(driver, BOUND)
    listed = driver.listed(number)
    assert (listed.status, listed.reason) == (ABORTED, "attempt failed")
    assert capsys.readouterr().out.count(f"ABORTED chk-{number}") == 1


def test_copy_of_a_savepoint_ends_before_the_last_entry(driver: Driver, target: MemoryStore) -> None:
    number = ask(driver, target)
    copied = Copied("counts", wait_for=threading.Event())
    driver.pin(copied)
    driver.checkpointer.checkpoint("stage 'a'")
    assert copied.began.wait(10)
    assert driver.checkpointer.save_rows(BOUND)
    wait_until(lambda: not driver.checkpointer.savepoints.taken, say="it is still copied", every=0.05)
    assert driver.listed(number).status == PENDING


def test_full_checkpoint_gives_way_to_a_plain_one(driver: Driver) -> None:
    number = driver.asked("full_checkpoint")
    copied = Copied("counts", wait_for=threading.Event())
    driver.pin(copied)
    driver.checkpointer.checkpoint("stage 'a'")
    assert copied.began.wait(10)
    terminated(driver, BOUND)
    assert outcomes(driver) == [(ABORTED, "attempt ended"), (RETAINED, "")]
    assert number == 1


def test_driver_whose_rows_are_saved_ends_at_once(store: FaultyStore) -> None:
    driver = Driver(store, clock=Time().monotonic)  # no limit is ever reached
    saved = beside(lambda: driver.checkpointer.save_rows(LIMIT))
    saved.join(BOUND)
    assert not saved.is_alive()


# -- a store that does not answer ----------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[Call], bool]] = {
    "the trigger": lambda call: call.kind == "create" and "/journal/" in call.key,
    "the acknowledgement": lambda call: call.kind == "create" and "/ack" in call.key,
    "the seal": lambda call: call.kind == "create" and call.key.endswith("_metadata"),
}


@pytest.mark.parametrize("name", CALLS)
def test_store_that_does_not_answer_holds_no_driver(driver: Driver, store: FaultyStore, name: str) -> None:
    store.plan = hanging = Hanging(CALLS[name])
    driver.pin(Recording("counts"))
    driver.checkpointer.checkpoint("stage 'a'")
    assert hanging.asked.wait(10)
    line = terminated(driver).line
    assert "could not write the checkpoint of its newest rows and its last entry" in line
    assert "[CKP213]" in line
    assert not driver.task().state.retained
    hanging.free.set()
    wait_until(lambda: taken(driver), say="it has not returned", every=0.05)


def test_last_entry_that_is_not_answered_holds_no_driver(driver: Driver, store: FaultyStore) -> None:
    store.plan = hanging = Hanging(CALLS["the trigger"])
    assert "the driver could not write its last entry." in terminated(driver).line
    hanging.free.set()


# -- others --------------------------------------------------------------------------------------------------------------


def test_attempt_that_was_replaced_seals_nothing(driver: Driver, store: FaultyStore) -> None:
    late = Late(driver)
    begun(driver, late)
    number = driver.task().state.pending[0].id
    assert driver.listed(number).status == PENDING
    Driver(store, 2)  # another attempt
    line = terminated(driver).line
    assert "[CKP213]" in line
    assert driver.listed(number).status == ABORTED
    assert ends(driver)[0] == (None, None)


def test_first_end_is_the_only_one(driver: Driver) -> None:
    """A proof that fails, a query that fails and the script's own end come too late."""
    begun(driver, Recording("counts", error=RuntimeError("no JVM")))
    terminated(driver)
    others = [
        beside(lambda: driver.attempt.end.now("failed", 1, "the rows could not be proved")),
        beside(lambda: driver.attempt.end.write("finished", 0)),
        beside(lambda: driver.attempt.end.failed(1)),
        beside(driver.attempt.writer.check_not_fenced),
    ]
    others[0].join(0.5)
    assert all(other.is_alive() for other in others)
    assert ends(driver) == [("failed", 143)]


def test_signal_after_the_run_has_finished_changes_nothing(driver: Driver, capsys: pytest.CaptureFixture[str]) -> None:
    driver.attempt.end.write("finished", 0)
    assert "\n" not in terminated(driver).line
    assert ends(driver) == [("finished", 0)]
    assert not capsys.readouterr().out


@pytest.mark.parametrize(("mode", "seconds"), [("cluster", 10.0), ("client", 3.0), (None, 3.0)])
def test_limit_follows_the_deploy_mode(mode: str | None, seconds: float) -> None:
    assert ending.timeout_in(mode) == seconds
