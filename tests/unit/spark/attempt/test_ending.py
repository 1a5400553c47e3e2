"""The last entry of an attempt when the store fails, and what the driver's last lines say then. Runs anywhere."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from airflow_checkpoint_provider.errors import AttemptEnding
from airflow_checkpoint_provider.protocol.handover import ExitCode
from tests.support.faults import Call, Fault, FaultyStore
from tests.unit.spark.driver import Driver, Left, Silence


def ends(driver: Driver) -> list[tuple[str | None, int | None]]:
    return [(attempt.outcome, attempt.exit_code) for attempt in driver.task().state.attempts]


def denied(call: Call) -> Fault:
    return Fault.DENIED if "/journal/" in call.key else Fault.NONE


def last_line(call: Callable[[], object]) -> str:
    """Return the last line that is printed when ``call`` ends the process."""
    with pytest.raises(Left) as left:
        call()
    return left.value.line


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.DROPPED], ids=["written", "not written"])
def test_last_entry_is_written_once_although_its_answer_is_lost(
    running: Driver, store: FaultyStore, fault: Fault
) -> None:
    running.coordinator.journal.patience = 0.0  # one try, and one look whether it was stored
    silence = Silence(2)

    def lose(call: Call) -> Fault:
        given = silence(call)
        return fault if given is Fault.DROPPED else given

    store.plan = lose
    running.attempt.end.write("finished", 0)
    assert silence.left == 0
    assert ends(running) == [("finished", 0)]


def test_heart_stops_before_the_last_entry(running: Driver) -> None:
    running.attempt.heart.start()
    running.attempt.end.write("finished", 0)
    assert "checkpoint-heart" not in [thread.name for thread in threading.enumerate()]


def test_nothing_is_begun_after_the_last_entry(running: Driver) -> None:
    """No other attempt has replaced this one, so its process ends with the exit code of its script."""
    running.attempt.end.write("failed", 1)
    with pytest.raises(AttemptEnding):
        running.attempt.writer.check_not_fenced()


def test_last_entry_of_a_replaced_attempt_ends_the_process(running: Driver, store: FaultyStore) -> None:
    Driver(store, try_number=2).checkpointer.close()
    with pytest.raises(Left) as left:
        running.attempt.end.write("failed", 1)
    assert left.value.code == ExitCode.OVER


def test_nothing_is_written_while_another_thread_ends_the_process(running: Driver) -> None:
    running.attempt.leaving.by_another_thread.set()
    second = threading.Thread(target=running.attempt.end.write, args=("finished", 0), daemon=True)
    second.start()
    second.join(0.2)
    assert second.is_alive()
    assert ends(running) == [(None, None)]


def test_stop_with_a_savepoint_ends_although_the_last_entry_is_refused(running: Driver, store: FaultyStore) -> None:
    store.plan = denied
    line = last_line(lambda: running.attempt.end.suspended(lambda problem: f"suspended, but {problem}"))
    assert line.startswith("suspended, but ")
    assert "denied" in line


def test_stop_with_a_savepoint_has_no_problem_when_the_last_entry_is_written(running: Driver) -> None:
    assert last_line(lambda: running.attempt.end.suspended(lambda problem: f"suspended{problem}")) == "suspended"
    assert ends(running) == [("suspended", ExitCode.OVER)]


def test_driver_that_fails_says_that_its_last_entry_is_not_written(
    running: Driver, store: FaultyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.plan = denied
    running.attempt.end.failed(1)
    said = capsys.readouterr().out
    assert "the end of attempt 1 could not be written (" in said
    assert "The next attempt writes it." in said


def test_end_from_another_thread_has_no_checkpoint_to_save(running: Driver) -> None:
    line = last_line(lambda: running.attempt.end.now("failed", 1, "its queries can take no more checkpoints"))
    assert line == "attempt 1 of flights.delays ends: its queries can take no more checkpoints"
    assert ends(running) == [("failed", 1)]


def test_last_entry_that_is_written_is_not_missed_beside_a_checkpoint_that_is_not(running: Driver) -> None:
    end = running.attempt.end
    line = last_line(lambda: end.in_order("failed", 143, "SIGTERM", lambda _: False, 20.0))
    assert "the driver could not write the checkpoint of its newest rows." in line
    assert ends(running) == [("failed", 143)]


def test_last_entry_that_is_refused_is_named(
    running: Driver, store: FaultyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.plan = denied
    line = last_line(lambda: running.attempt.end.now("failed", 1, "its queries can take no more checkpoints"))
    assert "the driver could not write its last entry." in line
    assert "denied" in capsys.readouterr().out
