"""Gated checkpoints: the driver acknowledges them, a finalize task completes them, and the job goes on meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from airflow_checkpoint_provider.checkpoint import CheckpointConfig, KeepAll
from airflow_checkpoint_provider.errors import CheckpointNotFound, NotPending, Queued
from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, RETAINED
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import Pointer
from airflow_checkpoint_provider.spark import CheckpointedJob, open_checkpoint
from airflow_checkpoint_provider.spark.checkpoints.gated import GatedCheckpoints
from airflow_checkpoint_provider.spark.state.registered import SnapshotContext
from tests.integration.runtime.conftest import Script
from tests.support.causes import cause_of
from tests.support.objects import Own
from tests.support.parts import parts
from tests.support.waiting import wait_until

CaptureFixture = pytest.CaptureFixture[str]


def stage(job: CheckpointedJob, uid: str, rows: int = 3) -> int:
    return job.stage(uid, job.spark.range(rows)).count()


def asked(script: Script, job: CheckpointedJob, timeout_s: float = 60.0) -> int:
    """A task asks for a gated checkpoint, and the driver's watch has seen it."""
    number = script.coordinator().trigger(Request(token="audit", timeout_s=timeout_s, gated=True, origin="task"))
    wait_until(
        lambda: number in {checkpoint.id for checkpoint in parts(job).attempt.journal.state.pending},
        say="the watch has not seen it",
    )
    return number


def pointer(script: Script, number: int) -> str:
    coordinator = script.coordinator()
    return str(Pointer(coordinator.store.uri, coordinator.keys.prefix, number))


@pytest.mark.slow  # test_gated_checkpoint_is_aborted_when_its_attempt_fails
def test_barrier_serves_a_gated_checkpoint_and_takes_its_own(script: Script, capsys: CaptureFixture) -> None:
    """Same file sets, no rows written twice; the job is protected whatever the audit says."""
    with script.attempt() as job:
        gated = asked(script, job)
        stage(job, "first")
        job.checkpoint()
        task = script.coordinator()
        assert f"chk-{gated} acknowledged. It is gated" in capsys.readouterr().out
        looked_at, sealed = task.contents(script.checkpoint(gated))
        own = task.read_seal(script.checkpoint(gated + 1))
        assert not sealed
        assert looked_at.states["first"].file_sets == own.states["first"].file_sets
        task.complete(gated, finalize=True)
    assert {checkpoint.id for checkpoint in script.coordinator().state.retained} >= {gated}


def test_gated_checkpoint_holds_the_states_of_its_barrier(script: Script) -> None:
    """Later barriers leave it alone: what is audited is what is sealed."""
    with script.attempt() as job:
        stage(job, "first")
        job.checkpoint()
        gated = asked(script, job)
        stage(job, "second")
        stage(job, "third")
        job.checkpoint()
        script.coordinator().complete(gated, finalize=True)
        sealed = script.coordinator()
        assert sorted(sealed.read_seal(script.checkpoint(gated)).states) == ["first", "second"]


class Source(Own):
    """One that is asked for its state while somebody asks for checkpoints: too late for this barrier."""

    def __init__(self, script: Script, job: CheckpointedJob, *late: tuple[str, bool]) -> None:
        super().__init__(says=1)
        self._script, self._job, self._late = script, job, late

    def snapshot_state(self, ctx: SnapshotContext) -> Any:
        for request, gated in self._late:
            number = self._script.coordinator().trigger(
                Request(token=request, timeout_s=60.0, gated=gated, origin="task")
            )
            wait_until(partial(self._sees, number), say="the watch has not seen it")
        self._late = ()
        return super().snapshot_state(ctx)

    def _sees(self, number: int) -> bool:
        return parts(self._job).attempt.journal.state.checkpoint(number) is not None


@pytest.mark.parametrize(
    ("at_once", "early", "late", "hold"),
    [
        pytest.param(2, (), (("plain", False), ("audit", True)), [1, 2, 2], id="after one that is late, too"),
        pytest.param(  # as the one above
            *(1, ("plain", "queued"), (("audit", True),), [1, 1, 1]),
            id="ahead of one that was queued in time",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_higher_id_never_holds_older_states(
    at_once: int, early: tuple[str, ...], late: tuple[tuple[str, bool], ...], hold: list[int], script: Script
) -> None:
    """Else a restore would go back after what objects were told is complete."""
    with script.attempt(checkpointing=CheckpointConfig(retention=KeepAll(), max_concurrent=at_once)) as job:
        source = Source(script, job, *late)
        job.register("source", source)
        for request in early:
            with suppress(Queued):
                script.coordinator().trigger(Request(token=request, timeout_s=60.0, origin="task"))
        stage(job, "first")
        parts(job).checkpointer.wait()
        source.says = 2
        stage(job, "second")
        parts(job).checkpointer.wait()
        task = script.coordinator()
        (gated,) = (checkpoint.id for checkpoint in task.state.pending if checkpoint.request.gated)
        task.complete(gated, finalize=True)
        seals = [task.read_seal(checkpoint) for checkpoint in task.state.retained]
        assert [seal.states["source"].value for seal in seals][: len(hold)] == hold


def test_gated_checkpoint_can_be_opened_before_it_is_sealed(script: Script) -> None:
    with script.attempt() as job:
        gated = asked(script, job)
        with pytest.raises(NotPending, match="not acknowledged yet"):
            open_checkpoint(pointer(script, gated), job.spark)
        stage(job, "first", rows=5)
        job.checkpoint()
        opened = open_checkpoint(pointer(script, gated), job.spark)
        assert (opened.sealed, opened["first"].count()) == (False, 5)
        script.coordinator().complete(gated, finalize=True)
        assert open_checkpoint(pointer(script, gated), job.spark).sealed
        again = script.coordinator().trigger(Request(token="audit", timeout_s=60.0, gated=True, origin="task"))
        assert again == gated, "one request is one checkpoint"


def test_end_of_the_job_waits_for_the_finalize_task(
    script: Script, capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is acknowledged at the end, because no barrier came before."""
    waiting, wait = threading.Event(), GatedCheckpoints.wait

    def wait_and_tell(self: GatedCheckpoints, interrupted: Callable[[], bool]) -> None:
        waiting.set()
        wait(self, interrupted)

    def finalize() -> None:
        assert waiting.wait(60)
        script.coordinator().complete(number, finalize=True)

    monkeypatch.setattr(GatedCheckpoints, "wait", wait_and_tell)

    with script.attempt() as job:
        stage(job, "first")
        job.checkpoint()
        number = asked(script, job)
        finalizer = threading.Thread(target=finalize)
        finalizer.start()
    finalizer.join(60)
    assert f"It waits for the finalize task of chk-{number}" in capsys.readouterr().out
    assert script.coordinator().state.runs[-1].outcome == "finished"
    assert script.checkpoint(number).status == RETAINED


@pytest.mark.slow  # test_end_of_the_job_waits_for_the_finalize_task
def test_request_is_served_while_the_job_waits_for_the_finalize_task(script: Script) -> None:
    def ask_again() -> None:
        task = script.coordinator()
        wait_until(lambda: not task.missing(script.checkpoint(number)), say="it is not acknowledged")
        with suppress(Queued):  # while the checkpoint of the end is pending
            task.trigger(Request(token="another task", origin="task"))
        wait_until(served, say="it is not served")
        task.complete(number, finalize=True)

    def served() -> bool:
        second = script.coordinator().state.requests.get("another task")
        return second is not None and script.checkpoint(second).status == RETAINED

    with script.attempt() as job:
        stage(job, "first")
        job.checkpoint()
        number = asked(script, job)
        asker = threading.Thread(target=ask_again)
        asker.start()
    asker.join(60)
    assert script.coordinator().state.runs[-1].outcome == "finished"
    assert script.checkpoint(number).status == RETAINED


@pytest.mark.slow  # tests/unit/spark/checkpoints/test_gated.py, with a clock
def test_end_of_the_job_waits_no_longer_than_the_timeout(script: Script, capsys: CaptureFixture) -> None:
    began = time.monotonic()
    with script.attempt() as job:
        number = asked(script, job, timeout_s=2.0)
        stage(job, "first")
    assert time.monotonic() - began < 30
    expired = script.checkpoint(number)
    assert (expired.status, expired.reason, cause_of(expired).phase) == (ABORTED, "expired", "finalize")
    assert f"ABORTED chk-{number} of job: expired, in phase finalize" in capsys.readouterr().out
    assert script.coordinator().state.runs[-1].outcome == "finished"


def test_job_goes_on_after_a_failed_audit(script: Script, capsys: CaptureFixture) -> None:
    with script.attempt() as job:
        number = asked(script, job)
        stage(job, "first")
        job.checkpoint()
        script.coordinator().abort(number, "audit failed", phase="gate", details="too few rows")
        wait_until(lambda: not parts(job).checkpointer.gated_checkpoints.deadlines, say="the watch has not seen it")
        stage(job, "second")
    assert f"ABORTED chk-{number} of job: audit failed, in phase gate" in capsys.readouterr().out
    assert script.coordinator().state.runs[-1].outcome == "finished"


def test_gated_checkpoint_is_aborted_when_its_attempt_fails(script: Script) -> None:
    """The retry goes on from the checkpoint that its barrier took besides."""
    with script.failing() as job:
        number = asked(script, job)
        stage(job, "first")
        job.checkpoint()
    assert script.checkpoint(number).status == ABORTED
    with pytest.raises(CheckpointNotFound, match="it was aborted"):
        open_checkpoint(pointer(script, number), script.spark)
    script.lose_beats()
    again = script.recomputes("first")
    with script.attempt() as job:
        stage(job, "first")
    assert not again()


@pytest.mark.slow  # tests/unit/spark/attempt/test_file_sets.py: file sets of a gated checkpoint stay
def test_acknowledged_gated_checkpoint_stays_complete_while_others_are_deleted(script: Script) -> None:
    """Its file sets are the attempt's own, which nobody deletes while it lives."""
    with script.attempt() as job:
        number = asked(script, job)
        for uid in ("first", "second", "third", "fourth"):
            stage(job, uid)
        job.checkpoint()
        script.coordinator().complete(number, finalize=True)
        assert open_checkpoint(pointer(script, number), job.spark)["first"].count() == 3


@pytest.mark.slow  # the one about an attempt that fails; tests/unit/spark/checkpoints/test_gated.py
def test_error_of_the_script_does_not_wait_for_the_finalize_task(script: Script) -> None:
    began = time.monotonic()
    with script.failing() as job:
        asked(script, job, timeout_s=600.0)
        stage(job, "first")
    assert time.monotonic() - began < 60
