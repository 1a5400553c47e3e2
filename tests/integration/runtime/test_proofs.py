"""The rows of a stage are proved beside the script, and before a checkpoint holds them."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.attempt.settings import Settings
from airflow_checkpoint_provider.spark.checkpoints import copies
from airflow_checkpoint_provider.spark.state import snapshot
from airflow_checkpoint_provider.spark.state.registered import InitializationContext, SnapshotContext
from airflow_checkpoint_provider.storage import LocalStore
from tests.integration.runtime.conftest import Script
from tests.support.faults import Call, Fault, FaultyStore
from tests.support.parts import parts
from tests.support.runs import Home
from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    "again", [False, pytest.param(True, marks=pytest.mark.slow)]
)  # without a checkpoint nothing is reused
def test_stage_whose_rows_were_lost_ends_the_attempt_while_the_next_stage_runs(tmp_path: Path, again: bool) -> None:
    home = Home(tmp_path / "home", "lost_rows.py")
    (home.folder / "lose").touch()
    ended = home.run()
    assert ended.code == 1, ended.log
    assert "the rows of stage 'first' could not be proved: 100 rows were written" in ended.log
    state = home.coordinator().state
    assert [(attempt.outcome, attempt.exit_code) for attempt in state.attempts] == [("failed", 1)]
    assert [checkpoint.id for checkpoint in state.retained] == []
    if not again:
        return

    (home.folder / "lose").unlink()
    ended = home.run()
    assert ended.code == 0, ended.log
    assert ended.result == {"total": 4950}
    assert ended.computed == ["first", "second"], "nothing of the lost rows was reused"


class Held:
    """Holds the reads of footers until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.waiting = threading.Event()

    def __call__(self, call: Call) -> Fault:
        if call.kind == "read" and "/part-" in call.key:
            self.waiting.set()
            self.released.wait(60)
        return Fault.NONE


def test_script_goes_on_while_the_rows_of_its_stage_are_proved(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()
    monkeypatch.setattr(Settings, "open_store", lambda _: FaultyStore(LocalStore(script.root), held))
    with script.attempt() as job, ExitStack() as stack:
        stack.callback(held.released.set)
        first = job.stage("first", job.spark.range(0, 100, 1, 2))
        assert held.waiting.wait(60), "the proof has begun"
        assert first.count() == 100, "the rows can be read"
        wait_until(lambda: script.coordinator().state.pending, say="nothing was triggered")
        reader = script.coordinator()
        assert reader.missing(reader.state.pending[0]), "nothing is acknowledged before it is proved"
        held.released.set()
        wait_until(lambda: script.coordinator().state.retained, say=lambda: str(script.coordinator().state.checkpoints))
    reader = script.coordinator()
    seal, _ = reader.contents(reader.state.retained[-1])
    assert [file.rows for file in seal.states["first"].file_sets[0].files] == [50, 50]


def test_rows_are_proved_to_the_end_although_the_script_fails_meanwhile(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hours of work are in them, and a bucket with many files takes its time."""
    held, still_wanted = Held(), copies.still_wanted

    def asked(attempt: Attempt, number: int, closing: threading.Event, *more: Any) -> None:
        if closing.is_set():
            held.released.set()
        still_wanted(attempt, number, closing, *more)

    monkeypatch.setattr(copies, "still_wanted", asked)
    monkeypatch.setattr(snapshot, "CHECK_EVERY", 0.01)
    monkeypatch.setattr(Settings, "open_store", lambda _: FaultyStore(LocalStore(script.root), held))
    with script.failing() as job:
        job.stage("first", job.spark.range(3))
        assert held.waiting.wait(60)
    again = script.recomputes("first")
    with script.attempt() as job:
        job.stage("first", job.spark.range(3))
    assert not again()


def test_stage_is_proved_when_a_later_checkpoint_finds_the_store_again(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = threading.Event()

    def plan(call: Call) -> Fault:
        lost = away.is_set() and call.kind == "read" and "/part-" in call.key
        return Fault.NOT_SENT if lost else Fault.NONE

    monkeypatch.setattr(Settings, "open_store", lambda _: FaultyStore(LocalStore(script.root), plan))
    with script.attempt() as job:
        away.set()
        job.stage("first", job.spark.range(0, 100, 1, 2))
        wait_until(lambda: parts(job).checkpointer.protection.failures, say="no checkpoint failed")
        assert parts(job).attempt.journal.state.retained == ()
        away.clear()
        job.checkpoint()
        assert [file.rows for file in parts(job).states.snapshots["first"].file_sets[0].files] == [50, 50]


class Declining:
    """An object that never gives its state."""

    def initialize_state(self, context: InitializationContext) -> None:
        """Begin."""

    def snapshot_state(self, context: SnapshotContext) -> None:
        raise RuntimeError("not now")


def test_stage_is_proved_although_its_barrier_is_declined(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    footers: list[str] = []

    def plan(call: Call) -> Fault:
        if call.kind == "read" and "/part-" in call.key:
            footers.append(call.key)
        return Fault.NONE

    monkeypatch.setattr(Settings, "open_store", lambda _: FaultyStore(LocalStore(script.root), plan))
    with script.failing() as job:
        job.register("declining", Declining())
        job.stage("first", job.spark.range(0, 100, 1, 2))
        wait_until(lambda: len(footers) == 2, say=lambda: str(footers))
    assert script.coordinator().state.retained == ()


def test_rows_of_a_stage_are_proved_once_though_their_first_checkpoint_fails(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    denied = threading.Event()
    footers: list[str] = []

    def plan(call: Call) -> Fault:
        if call.kind == "read" and "/part-" in call.key:
            footers.append(call.key)
        return Fault.DENIED if denied.is_set() and "/acks/" in call.key else Fault.NONE

    monkeypatch.setattr(Settings, "open_store", lambda _: FaultyStore(LocalStore(script.root), plan))
    with script.failing() as job:
        denied.set()
        job.stage("first", job.spark.range(0, 100, 1, 2))
        wait_until(lambda: parts(job).checkpointer.protection.failures, say="no checkpoint failed")
        denied.clear()
        job.stage("second", job.spark.range(0, 100, 1, 1))
    assert len(footers) == len(set(footers)) == 3
    with script.attempt() as job:
        assert job.stage("first", job.spark.range(0, 100, 1, 2)).count() == 100
        assert [file.rows for file in parts(job).states.snapshots["first"].file_sets[0].files] == [50, 50]
