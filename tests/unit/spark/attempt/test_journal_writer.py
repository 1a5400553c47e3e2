"""What the driver's writer does when the journal does not answer, or another attempt has replaced its own. Runs anywhere."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.protocol.kinds import ACKNOWLEDGE, SEAL
from tests.support.causes import cause_of
from tests.support.faults import Call, Fault, FaultyStore
from tests.unit.spark.driver import Driver, Left


def silent_journal(call: Call) -> Fault:
    return Fault.NOT_SENT if "/journal/" in call.key else Fault.NONE


@pytest.fixture
def replaced(running: Driver, store: FaultyStore) -> Driver:
    """Return a driver that has not read that another attempt has replaced its own."""
    Driver(store, try_number=2).checkpointer.close()
    return running


def test_write_of_a_replaced_attempt_ends_the_process(replaced: Driver) -> None:
    with pytest.raises(Left) as left:
        replaced.checkpointer.request("periodic")
    assert left.value.code == ExitCode.OVER


def test_replaced_attempt_ends_before_a_side_effect(replaced: Driver) -> None:
    with pytest.raises(Left) as left:
        replaced.attempt.writer.check_not_fenced()
    assert left.value.code == ExitCode.OVER


def test_poll_returns_the_entries_of_others(running: Driver) -> None:
    number = running.asked()
    assert running.attempt.writer.poll().checkpoint(number)


def test_side_effect_follows_although_the_journal_does_not_answer(
    impatient: Driver, store: FaultyStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.plan = silent_journal
    impatient.attempt.writer.check_not_fenced()
    assert "nobody knows whether this attempt was replaced. The job continues" in capsys.readouterr().out


@pytest.mark.parametrize(("phase", "missing"), [(ACKNOWLEDGE, ("",)), (SEAL, ())])
def test_application_is_missing_from_a_checkpoint_that_is_aborted_before_it_has_acknowledged(
    running: Driver, phase: str, missing: tuple[str, ...]
) -> None:
    aborted = running.attempt.writer.abort(running.asked(), "changed my mind", phase=phase)
    assert cause_of(aborted).missing == missing


def waits(call: Callable[[], object]) -> bool:
    """Return whether ``call`` waits for the end of the process, which does not come."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(0.2)
    return thread.is_alive()


def test_thread_begins_nothing_while_another_one_ends_the_process(running: Driver) -> None:
    running.attempt.leaving.by_another_thread.set()
    assert waits(running.attempt.writer.check_not_fenced)


def test_exit_code_of_the_thread_that_ends_the_process_counts_in_a_replaced_attempt(replaced: Driver) -> None:
    replaced.attempt.leaving.by_another_thread.set()
    replaced.attempt.journal.catch_up()
    assert waits(replaced.attempt.leaving.if_over)
