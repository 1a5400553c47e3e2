"""Gated checkpoints that a driver has acknowledged: finalized, expired, and awaited at the end of the job. Needs no Spark."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from airflow_checkpoint_provider.errors import StoreDenied
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, PENDING, RETAINED
from airflow_checkpoint_provider.spark.checkpoints.gated import ABORT_TIME, GatedCheckpoints
from tests.support.causes import cause_of
from tests.support.faults import Fault, FaultyStore, Time, served
from tests.unit.spark.driver import Driver, Recording


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(now=1000.0)


@pytest.fixture
def manual(running: Driver, clock: SimpleNamespace) -> GatedCheckpoints:
    return GatedCheckpoints(running.attempt, lambda: clock.now)


def acknowledged(running: Driver, manual: GatedCheckpoints, timeout_s: float = 60.0) -> int:
    """Let a barrier acknowledge a gated checkpoint. Return its id."""
    number = running.asked(gated=True, timeout_s=timeout_s)
    running.pin(Recording("counts"))
    running.checkpointer.checkpoint("here", wait=True)
    manual.acknowledged(running.listed(number))
    return number


def test_timeout_begins_with_the_acknowledgement(
    running: Driver, manual: GatedCheckpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    number = acknowledged(running, manual)
    assert manual.deadlines == {number: 1060.0}
    assert [checkpoint.id for checkpoint in manual.waiting()] == [number]
    assert f"chk-{number} acknowledged. It is gated" in capsys.readouterr().out


def test_checkpoint_that_is_not_acknowledged_is_not_awaited(running: Driver, manual: GatedCheckpoints) -> None:
    number = running.asked(gated=True)
    assert [checkpoint.id for checkpoint in running.attempt.journal.state.pending] == [number]
    assert manual.waiting() == ()


def test_checkpoint_that_nobody_finalizes_expires_after_its_timeout(
    running: Driver, manual: GatedCheckpoints, clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    number = acknowledged(running, manual)
    clock.now += 60
    manual.on_watch()
    assert running.listed(number).status == PENDING
    clock.now += 0.01
    manual.on_watch()
    expired = running.listed(number)
    assert (expired.status, expired.reason, cause_of(expired).phase) == (ABORTED, "expired", "finalize")
    assert cause_of(expired).details == "nobody finalized it within 60 s after it was acknowledged"
    assert (manual.waiting(), manual.deadlines) == ((), {})
    manual.on_watch()
    assert capsys.readouterr().out.count(f"ABORTED chk-{number}") == 1


def test_outcome_of_a_finalized_checkpoint_is_logged_once(
    running: Driver, manual: GatedCheckpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    number = acknowledged(running, manual)
    manual.on_watch()
    assert manual.deadlines
    running.task().complete(number, finalize=True)
    running.catch_up()
    capsys.readouterr()
    manual.on_watch()
    manual.on_watch()
    assert capsys.readouterr().out.count(f"chk-{number} completed at here") == 1
    assert manual.deadlines == {}


def test_checkpoint_that_the_journal_no_longer_lists_is_not_awaited(
    manual: GatedCheckpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    manual.deadlines[99] = 0.0
    manual.on_watch()
    assert manual.deadlines == {}
    assert capsys.readouterr().out == ""


def test_expired_checkpoint_is_aborted_when_the_store_answers_again(
    running: Driver, manual: GatedCheckpoints, clock: SimpleNamespace, store: FaultyStore
) -> None:
    number = acknowledged(running, manual)
    clock.now += 61
    store.plan = lambda call: Fault.DENIED
    manual.on_watch()
    assert manual.deadlines
    store.plan = served
    manual.on_watch()
    assert running.listed(number).reason == "expired"


def test_expired_checkpoint_is_left_to_an_attempt_that_ends(
    running: Driver, manual: GatedCheckpoints, clock: SimpleNamespace, store: FaultyStore
) -> None:
    number = acknowledged(running, manual)
    clock.now += 61
    store.plan = lambda call: Fault.DENIED
    with pytest.raises(StoreDenied):
        running.attempt.end.write("finished", 0)
    store.plan = served
    manual.on_watch()
    assert running.listed(number).status == PENDING
    assert manual.deadlines


def test_wait_returns_at_once_when_no_checkpoint_waits(
    manual: GatedCheckpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    manual.wait(lambda: False)
    assert capsys.readouterr().out == ""


def test_wait_ends_when_the_finalize_task_has_completed_the_checkpoint(
    running: Driver, manual: GatedCheckpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    number = acknowledged(running, manual)
    waiting = threading.Thread(target=manual.wait, args=(lambda: False,))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    running.task().complete(number, finalize=True)
    running.catch_up()
    waiting.join(10)
    assert not waiting.is_alive()
    out = capsys.readouterr().out
    assert f"It waits for the finalize task of chk-{number}, up to 1 min" in out
    assert f"chk-{number} completed" in out, "the watch may look only after the job has ended"


def test_wait_ends_when_it_is_interrupted(running: Driver, manual: GatedCheckpoints) -> None:
    acknowledged(running, manual)
    manual.wait(lambda: True)
    assert manual.waiting()


def test_wait_ends_some_seconds_after_the_last_timeout(
    running: Driver, manual: GatedCheckpoints, clock: SimpleNamespace
) -> None:
    acknowledged(running, manual, timeout_s=500.0)
    acknowledged(running, manual, timeout_s=60.0)
    asked = 0

    def interrupted() -> bool:
        nonlocal asked
        asked += 1
        clock.now = 1500 + ABORT_TIME - (0.1 if asked == 1 else 0)
        return False

    manual.wait(interrupted)
    assert asked == 2
    assert not manual.waiting(), "what the watch has not aborted is aborted now"


def test_gated_checkpoint_is_acknowledged_at_the_barrier_that_completes_an_earlier_one(running: Driver) -> None:
    awaited, gated = running.asked(), running.asked(gated=True)
    running.pin(Recording("counts"))
    running.checkpointer.checkpoint("here", wait=True)
    assert running.listed(awaited).status == RETAINED
    assert running.task().missing(running.listed(gated)) == ()


def test_watch_of_the_attempt_lets_gated_checkpoints_expire(store: FaultyStore) -> None:
    time = Time()
    running = Driver(store, clock=time.monotonic)
    number = running.asked(gated=True, timeout_s=60.0)
    running.pin(Recording("counts"))
    running.checkpointer.checkpoint("here", wait=True)
    time.sleep(61)
    running.checkpointer.on_watch()
    assert running.listed(number).reason == "expired"
    running.checkpointer.close()
