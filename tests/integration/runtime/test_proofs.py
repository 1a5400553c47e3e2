"""The rows of a stage are proved beside the script, and before a checkpoint holds them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_checkpoint_provider.spark.settings import Settings
from airflow_checkpoint_provider.storage import LocalStore
from tests.integration.runtime.conftest import Script
from tests.support.faults import Call, Fault, FaultyStore
from tests.support.runs import Home
from tests.support.waiting import wait_until


def test_stage_whose_rows_were_lost_ends_the_attempt_while_the_next_stage_runs(tmp_path: Path) -> None:
    home = Home(tmp_path / "home", "lost_rows.py")
    (home.folder / "lose").touch()
    ended = home.run()
    assert ended.code == 1, ended.log
    assert "the rows of stage 'first' could not be proved: 100 rows were written" in ended.log
    state = home.coordinator().state
    assert [(attempt.outcome, attempt.exit_code) for attempt in state.attempts] == [("failed", 1)]
    assert [checkpoint.id for checkpoint in state.retained] == []

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
            assert self.released.wait(60)
        return Fault.NONE


@contextmanager
def stores(monkeypatch: pytest.MonkeyPatch, script: Script, held: Held) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(Settings, "open_store", lambda _: FaultyStore(LocalStore(script.root), held))
        yield


def test_script_goes_on_while_the_rows_of_its_stage_are_proved(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()
    with stores(monkeypatch, script, held), script.attempt() as job:
        first = job.stage("first", job.spark.range(0, 100, 1, 2))
        assert held.waiting.wait(60), "the proof has begun"
        assert first.count() == 100, "the rows can be read"
        listed = script.coordinator().state
        assert [checkpoint.id for checkpoint in listed.pending] == [1]
        assert script.coordinator().missing(listed.pending[0]), "nothing is acknowledged before it is proved"
        held.released.set()
        wait_until(lambda: script.coordinator().state.retained, 60, lambda: str(script.coordinator().state.checkpoints))
    reader = script.coordinator()
    seal, _ = reader.contents(reader.state.retained[-1])
    assert [file.rows for file in seal.states["first"].file_sets[0].files] == [50, 50]


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
        wait_until(lambda: job._checkpointer.protection.failures, 60, lambda: "no checkpoint failed")
        denied.clear()
        job.stage("second", job.spark.range(0, 100, 1, 1))
    assert len(footers) == len(set(footers)) == 3
    with script.attempt() as job:
        assert job.stage("first", job.spark.range(0, 100, 1, 2)).count() == 100
        assert [file.rows for file in job._states.snapshots["first"].file_sets[0].files] == [50, 50]
