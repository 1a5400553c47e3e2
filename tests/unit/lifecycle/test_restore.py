"""A task fixes where the next attempt starts: once, verified, and whatever ran is over."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_checkpoint_provider.checkpoint import restoring
from airflow_checkpoint_provider.checkpoint.coordinator import Coordinator
from airflow_checkpoint_provider.checkpoint.errors import NotSupportedYet
from airflow_checkpoint_provider.checkpoint.events import Point
from airflow_checkpoint_provider.checkpoint.retention import KeepAll
from airflow_checkpoint_provider.checkpoint.state import State
from airflow_checkpoint_provider.operators import RestoreOperator
from airflow_checkpoint_provider.storage import Store
from tests.support.acting import RUN, Job
from tests.unit.lifecycle.stage import OTHER, run, trigger


@pytest.fixture
def job(store: Store) -> Job:
    """It runs, and has completed two checkpoints, which are kept."""
    job = Job(store)
    job.start(retention=KeepAll())
    for request in ("one", "two"):
        job.complete(job.coordinator.trigger(request))
    return job


def restore(where: Any, **options: Any) -> RestoreOperator:
    with DAG(OTHER, schedule=None):
        return RestoreOperator(task_id="restore", job="orders", restore=where, **options)


def test_the_next_attempt_starts_there_and_what_ran_is_over(job: Job) -> None:
    assert run(restore("chk-1")) == {"job": "orders", "scope": "", "branch": 1, "next_start": "chk-1"}
    assert job.state.over(1)
    assert job.state.branch.reason == f"task {OTHER}.restore of run {RUN}"
    job.start(try_number=2)
    assert str(job.state.attempts[-1].restore_point) == "chk-1"


@pytest.mark.parametrize(("where", "start"), [("latest", "chk-2"), ("run-start", None), ("none", None), (1, "chk-1")])
def test_where_it_can_go(job: Job, where: Any, start: str | None) -> None:
    assert run(restore(where))["next_start"] == start


def test_the_output_of_a_trigger(job: Job) -> None:
    asked = run(trigger())
    job.complete(asked["id"])
    assert run(restore(asked))["next_start"] == "chk-3"


def test_a_retry_is_the_same_restore_whatever_happened_since(job: Job) -> None:
    run(restore("chk-1"))
    job.start(try_number=2, retention=KeepAll())
    job.complete(job.coordinator.trigger("three"))
    before = job.state
    assert run(restore("chk-1"), try_number=2)["next_start"] == "chk-3"
    assert job.state == before


def test_a_clear_restores_anew(job: Job) -> None:
    run(restore("chk-1"))
    assert run(restore("chk-1"), try_number=2, max_tries=1)["branch"] == 2


def test_a_damaged_one_is_refused_and_what_runs_goes_on(job: Job) -> None:
    job.store.delete([job.keys.seal(1)])
    with pytest.raises(AirflowFailException, match="chk-1 cannot be restored"):
        run(restore("chk-1"))
    assert not job.state.over(1)


@pytest.mark.parametrize("where", ["chk-9", "yesterday"])
def test_what_is_not_there_is_refused_without_retry(job: Job, where: str) -> None:
    with pytest.raises(AirflowFailException):
        run(restore(where))
    assert job.state.branch.number == 0


def test_a_job_without_history(store: Store) -> None:
    with pytest.raises(AirflowFailException, match="there is no history"):
        run(restore("latest"))


@pytest.mark.parametrize("option", [{"claim_mode": "claim"}, {"rewind_sink": True}, {"rename": {"a": "b"}}])
def test_what_this_version_does_not_have(option: dict[str, Any]) -> None:
    with pytest.raises(NotSupportedYet):
        restore("latest", **option)


def test_the_newest_is_the_newest_when_the_entry_is_written(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job completes another one while the first is verified: that is gone back to, and nothing is abandoned unseen."""
    verify = restoring.examine
    verified: list[str] = []

    def slowly(coordinator: Coordinator, state: State, point: Point | None) -> restoring.Restored:
        if not verified:
            job.complete(job.coordinator.trigger("three"))
        verified.append(str(point))
        return verify(coordinator, state, point)

    monkeypatch.setattr(restoring, "examine", slowly)
    assert run(restore("latest"))["next_start"] == "chk-3"
    assert verified == ["chk-2", "chk-3"]
