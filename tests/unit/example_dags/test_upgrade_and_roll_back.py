"""The example DAG that upgrades a job: when it rolls back, to which savepoint, and whether it starts the job again."""

from __future__ import annotations

import importlib.util
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.operators import RestoreOperator
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.storage import Store
from tests.support.acting import Job
from tests.support.stack import EXAMPLES
from tests.support.tasks import OTHER, run

FILE = EXAMPLES / "upgrade_and_roll_back.py"
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
    """Suspend the job with a savepoint whose task does not see the end."""
    number = job.coordinator.trigger(
        Request(token="stop", kind="suspend_savepoint", origin="task", owner=owner, folder=f"{job.store.uri}/saved")
    )
    job.complete(number)


def test_rollback_restores_the_savepoint_of_a_successful_stop(example: ModuleType, tally: Job) -> None:
    assert example.stopped.function(XCOM) == XCOM


def test_refused_stop_causes_no_rollback_of_a_running_job(example: ModuleType, tally: Job) -> None:
    assert example.stopped.function(None) is None


def test_refused_stop_causes_no_rollback_of_a_job_that_never_ran(example: ModuleType, store: Store) -> None:
    assert example.stopped.function(None) is None


def test_rollback_resumes_a_job_whose_stop_failed_after_the_suspension(example: ModuleType, tally: Job) -> None:
    """A killed stop has no XCom; without a rollback the job would stay suspended."""
    suspend(tally, "tally_upgrade.stop")
    where = example.stopped.function(None)
    with DAG(OTHER, schedule=None):
        roll_back = RestoreOperator(task_id="roll_back", job="tally_deployed", restore=where)
    assert run(roll_back)["next_start"] == "chk-1"
    assert tally.state.suspended is None


def test_suspended_returns_time_owner_and_savepoint(tally: Job) -> None:
    assert CheckpointStorageHook().suspended("tally_deployed") is None
    suspend(tally, "tally_upgrade.stop")
    found = tally.checkpoint(1)
    suspension = {"at": found.completed_at, "by": "tally_upgrade.stop", "savepoint": found.target}
    assert CheckpointStorageHook().suspended("tally_deployed") == suspension
    with DAG(OTHER, schedule=None):
        run(RestoreOperator(task_id="restore", job="tally_deployed", restore="latest"))
    assert CheckpointStorageHook().suspended("tally_deployed") is None


def test_suspension_by_another_task_causes_no_rollback(example: ModuleType, tally: Job) -> None:
    suspend(tally, "maintenance.stop")
    assert example.stopped.function(None) is None


@pytest.mark.parametrize(("running", "starts"), [(0, True), (1, False)])
def test_job_is_started_again_if_no_run_is_running(example: ModuleType, running: int, starts: bool) -> None:
    def counts(dag_id: str, states: list[str]) -> int:
        assert (dag_id, states) == ("tally_deployed", ["queued", "running"])
        return running

    ti: Any = SimpleNamespace(get_dr_count=counts)
    assert example.ended.function(ti) is starts


def test_start_is_the_last_task_of_the_rollback(example: ModuleType) -> None:
    start = example.upgrade.get_task("start")
    assert start.trigger_dag_id == "tally_deployed"
    assert start.upstream_task_ids == {"ended"}
    assert example.upgrade.get_task("ended").upstream_task_ids == {"roll_back"}
