"""An upgrade of a running job, and a rollback if the new version completes no checkpoints. Runs in Airflow.

Trigger ``tally_deployed``; then ``tally_upgrade`` with the paths of the new and the old script. Nothing is lost or counted
twice: the job stops with a savepoint, and the next attempt starts from it. A rollback ends with a new run of
``tally_deployed`` if the run before has failed for good.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Param, Variable, task

from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.operators import (
    CheckpointedSparkSubmitOperator,
    RestoreOperator,
    StopWithSavepointOperator,
)
from airflow_checkpoint_provider.sensors import CheckpointCompletedSensor

JOB = Path(__file__).parent / "jobs" / "tally.py"
DATA = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "data" / "tally"
DEPLOYED = "tally_application"
"""The variable that holds the path of the job's script. Each try of the task reads it again."""

with DAG(
    "tally_deployed",
    schedule=None,
    max_active_runs=1,
    params={"data": Param(str(DATA), type="string", description="Folder with the inbox, and for the sums.")},
    doc_md=__doc__,
):
    CheckpointedSparkSubmitOperator(
        task_id="run",
        job_id="tally_deployed",
        scope="job",
        application=f"{{{{ var.value.get('{DEPLOYED}', '{JOB}') }}}}",
        application_args=["--inbox", "{{ params.data }}/inbox", "--out", "{{ params.data }}/sums.json"],
        retries=20,  # a version that fails at once uses them up before it is rolled back
        retry_delay=timedelta(seconds=10),
    )


@task
def set_application(path: str) -> None:
    Variable.set(DEPLOYED, path)


@task.short_circuit(trigger_rule="one_failed")
def stopped(savepoint: Any) -> Any:
    """Return the point to restore, or None if there is nothing to roll back.

    ``one_failed`` also counts tasks that did not run because the stop was refused. Then the job continues, and a rollback would
    fence a healthy driver. If the stop failed after it had suspended the job, there is no XCom; the rollback then resumes the job
    from its latest checkpoint."""
    if savepoint:
        return savepoint
    suspended = CheckpointStorageHook().suspended("tally_deployed")
    return "latest" if suspended and suspended["by"] == "tally_upgrade.stop" else None


@task.short_circuit
def ended(ti: Any = None) -> bool:
    """Return whether the new version failed for good: its run is over, and no retry starts the old version."""
    running: int = ti.get_dr_count("tally_deployed", states=["queued", "running"])
    return running == 0


@task
def upgraded() -> None:
    """Add a second leaf: if the rollback were the only leaf, the run of a failed upgrade would succeed."""


with DAG(
    "tally_upgrade",
    schedule=None,
    max_active_runs=1,
    params={
        "application": Param(str(JOB), type="string", description="The new script."),
        "previous": Param(str(JOB), type="string", description="The script to go back to."),
        "data": Param(str(DATA), type="string", description="Folder of the job, if a rollback must start it again."),
    },
    default_args={"retries": 1, "retry_delay": timedelta(seconds=5)},
    doc_md=__doc__,
) as upgrade:
    stop = StopWithSavepointOperator(task_id="stop", job="tally_deployed", deferrable=True)
    deploy = set_application.override(task_id="deploy")("{{ params.application }}")
    restore = RestoreOperator(task_id="restore", job="tally_deployed", restore=stop.output)
    healthy = CheckpointCompletedSensor(
        task_id="healthy",
        job="tally_deployed",
        after=stop.output,
        count=2,
        timeout=timedelta(minutes=30),
        deferrable=True,
    )
    stop >> deploy >> restore >> healthy >> upgraded()

    undeploy = set_application.override(task_id="undeploy")("{{ params.previous }}")
    go_back_to = stopped(stop.output)
    roll_back = RestoreOperator(task_id="roll_back", job="tally_deployed", restore=go_back_to)
    start = TriggerDagRunOperator(task_id="start", trigger_dag_id="tally_deployed", conf={"data": "{{ params.data }}"})
    [deploy, restore, healthy] >> go_back_to >> undeploy >> roll_back >> ended() >> start
