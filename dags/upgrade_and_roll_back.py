"""A running job gets a new version, and the old one again if the new one makes no checkpoints. Runs in Airflow.

Trigger ``tally_deployed``; then ``tally_upgrade`` with the path of the new script, and of the old one. Nothing is lost or counted
twice on the way: the job stops with a savepoint, and whatever starts next starts from there. A rollback ends with a new run of
``tally_deployed`` if the one before has failed for good.
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
"""The variable that says which script the job runs. Each try of its task reads it anew."""

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
        retries=20,  # a version that fails at once uses them up until it is rolled back
        retry_delay=timedelta(seconds=10),
    )


@task
def set_application(path: str) -> None:
    Variable.set(DEPLOYED, path)


@task.short_circuit(trigger_rule="one_failed")
def stopped(savepoint: Any) -> Any:
    """Where to go back to, if there is something to roll back. ``one_failed`` counts what never ran because the stop was
    refused, too: then the job goes on as it was, and a rollback would fence a healthy one. But a stop that failed after it had
    suspended the job leaves no savepoint here; without a rollback nobody would resume the job."""
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
    """Be the second leaf: with only the rollback as leaf, the run of a failed upgrade would be a success."""


with DAG(
    "tally_upgrade",
    schedule=None,
    max_active_runs=1,
    params={
        "application": Param(str(JOB), type="string", description="The new script."),
        "previous": Param(str(JOB), type="string", description="The script to go back to."),
        "data": Param(str(DATA), type="string", description="Its folder, if a rollback must start the job again."),
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
