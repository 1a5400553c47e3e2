"""The example DAG that upgrades a job: when it rolls back, to where, and whether somebody must start the job again."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.operators import RestoreOperator
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.storage import Store
from tests.support.acting import Job
from tests.unit.lifecycle.stage import OTHER, run

FILE = Path(__file__).parents[3] / "dags" / "upgrade_and_roll_back.py"
XCOM = {"job": "tally_deployed", "scope": "", "id": 1, "pointer": "file:///saved/savepoint-tally_deployed-1-abc"}


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("upgrade_and_roll_back", FILE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tally(store: Store) -> Job:
    job = Job(store, "tally_deployed")
    job.start()
    return job


def suspend(job: Job, owner: str) -> None:
    """With a savepoint; the task that asked for it does not see the end."""
    number = job.coordinator.trigger(
        Request(token="stop", kind="suspend_savepoint", origin="task", owner=owner, folder=f"{job.store.uri}/saved")
    )
    job.complete(number)


def test_a_stop_that_succeeded_is_gone_back_to(example: ModuleType, tally: Job) -> None:
    assert example.stopped.function(XCOM) == XCOM


def test_a_stop_that_was_refused_is_no_reason_to_fence_a_healthy_job(example: ModuleType, tally: Job) -> None:
    assert example.stopped.function(None) is None


def test_nor_is_one_of_a_job_that_never_ran(example: ModuleType, store: Store) -> None:
    assert example.stopped.function(None) is None


def test_a_stop_that_failed_behind_its_suspension_is_gone_back_to_as_well(example: ModuleType, tally: Job) -> None:
    """Killed, or the driver did not end: there is no XCom, and without a rollback nobody resumes the job."""
    suspend(tally, "tally_upgrade.stop")
    where = example.stopped.function(None)
    with DAG(OTHER, schedule=None):
        roll_back = RestoreOperator(task_id="roll_back", job="tally_deployed", restore=where)
    assert run(roll_back)["next_start"] == "chk-1"
    assert tally.state.suspended is None


def test_who_stopped_a_job_when_and_with_what(tally: Job) -> None:
    assert CheckpointStorageHook().suspended("tally_deployed") is None
    suspend(tally, "tally_upgrade.stop")
    found = tally.checkpoint(1)
    told = {"at": found.completed_at, "by": "tally_upgrade.stop", "savepoint": found.target}
    assert CheckpointStorageHook().suspended("tally_deployed") == told
    with DAG(OTHER, schedule=None):
        run(RestoreOperator(task_id="restore", job="tally_deployed", restore="latest"))
    assert CheckpointStorageHook().suspended("tally_deployed") is None


def test_what_somebody_else_has_suspended_stays_so(example: ModuleType, tally: Job) -> None:
    suspend(tally, "maintenance.stop")
    assert example.stopped.function(None) is None


@pytest.mark.parametrize(("running", "starts"), [(0, True), (1, False)])
def test_a_job_whose_run_is_over_is_started_again(example: ModuleType, running: int, starts: bool) -> None:
    def counts(dag_id: str, states: list[str]) -> int:
        assert (dag_id, states) == ("tally_deployed", ["queued", "running"])
        return running

    ti: Any = SimpleNamespace(get_dr_count=counts)
    assert example.ended.function(ti) is starts


def test_the_rollback_ends_with_that(example: ModuleType) -> None:
    start = example.upgrade.get_task("start")
    assert start.trigger_dag_id == "tally_deployed"
    assert start.upstream_task_ids == {"ended"}
    assert example.upgrade.get_task("ended").upstream_task_ids == {"roll_back"}
