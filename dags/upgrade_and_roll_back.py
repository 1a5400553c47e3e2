"""A running job gets a new version, and the old one again if the new one makes no checkpoints. Runs in Airflow.

Trigger ``tally_deployed``; then ``tally_upgrade`` with the path of the new script, and of the old one. Nothing is lost or counted
twice on the way: the job stops with a savepoint, and whatever starts next starts from there.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, Variable, task

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
def stopped(savepoint: Any) -> bool:
    """Whether there is something to roll back. ``one_failed`` counts what never ran because the stop was refused, too: then
    the job goes on as it was, and a rollback would fence a healthy one."""
    return savepoint is not None


@task
def upgraded() -> None:
    """The other leaf: with the rollback as the only one, the run of a failed upgrade would be a success."""


with DAG(
    "tally_upgrade",
    schedule=None,
    max_active_runs=1,
    params={
        "application": Param(str(JOB), type="string", description="The new script."),
        "previous": Param(str(JOB), type="string", description="The script to go back to."),
    },
    default_args={"retries": 1, "retry_delay": timedelta(seconds=5)},
    doc_md=__doc__,
):
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
    roll_back = RestoreOperator(task_id="roll_back", job="tally_deployed", restore=stop.output)
    [deploy, restore, healthy] >> stopped(stop.output) >> undeploy >> roll_back
