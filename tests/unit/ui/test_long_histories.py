"""The page of a history with many checkpoints and launches: its work grows with them, and no faster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from airflow_checkpoint_provider.coordinator.histories import FoundHistory
from airflow_checkpoint_provider.coordinator.restore import Candidate
from airflow_checkpoint_provider.hooks.references import HistoryReference
from airflow_checkpoint_provider.policies.retention import KeepAll
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import MemoryStore
from airflow_checkpoint_provider.text.restore_story import retold
from airflow_checkpoint_provider.ui.polling import HistoryReading
from airflow_checkpoint_provider.ui.views import job as views
from airflow_checkpoint_provider.ui.views.job import ATTEMPTS, JobPage, job_page
from tests.support.acting import Job

LAUNCHES, EACH = ATTEMPTS + 5, 40


@pytest.fixture(scope="module")
def job() -> Job:
    """Return a job that was launched again and again. Each time it completed one checkpoint."""
    job = Job(MemoryStore())
    for number in range(1, LAUNCHES + 1):
        job.start(number, retention=KeepAll())
        job.take()
        job.end("failed")
    return job


@pytest.fixture(scope="module")
def state(job: Job) -> State:
    """Return its state as if each launch had completed many checkpoints, which are all retained."""
    one = job.state.checkpoints[0]
    many = [replace(one, id=n + 1, epochs=(1 + n // EACH,)) for n in range(EACH * LAUNCHES)]
    attempts = [
        replace(attempt, restore_point=attempt.restore_point and replace(attempt.restore_point, id=EACH * n))
        for n, attempt in enumerate(job.state.attempts)
    ]
    return replace(job.state, checkpoints=tuple(many), attempts=tuple(attempts))


def page(job: Job, state: State) -> JobPage:
    reading = HistoryReading(FoundHistory(job.keys, state), job.store.uri)
    return job_page(HistoryReference("checkpoint_default", job.keys.prefix), reading, "2026-11-29T00:00:00.000Z")


def test_page_shows_few_of_many(job: Job, state: State) -> None:
    shown = page(job, state)
    assert (len(shown.attempts), shown.attempts_left_out) == (ATTEMPTS, LAUNCHES - ATTEMPTS)
    newest = shown.attempts[0]
    chosen = EACH * (LAUNCHES - 1)
    assert [row.name for row in newest.candidates] == [
        *(f"chk-{chosen - older}" for older in range(4)),
        f"and {chosen - 4} older",
    ]
    assert [row.verdict for row in newest.candidates] == ["chosen", *["older"] * 4]


def test_page_tells_the_stories_of_the_attempts_that_it_shows(
    job: Job, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[Any]()

    def counted(*of: Any) -> list[str]:
        told.append(of)
        return retold(*of)

    monkeypatch.setattr(views, "retold", counted)
    page(job, state)
    assert len(told) == ATTEMPTS


@pytest.mark.parametrize("record", [Checkpoint, Candidate])
def test_page_compares_no_checkpoint_with_each_other(
    job: Job, state: State, monkeypatch: pytest.MonkeyPatch, record: type
) -> None:
    compared, equals = list[Any](), cast(Any, record).__eq__

    def counted(left: Any, right: Any) -> bool:
        compared.append(left)
        return bool(equals(left, right))

    monkeypatch.setattr(record, "__eq__", counted)
    page(job, state)
    assert len(compared) <= len(state.checkpoints)
