"""An upgrade of a running stream, and a rollback if the new version completes no checkpoints. Runs in Airflow.

Unpause both DAGs, put files into the inbox (see ``jobs/clean_orders.py``), and trigger ``clean_orders_upgrade`` with the paths of the new
and the old script. No order is lost or written twice: the query stops with a savepoint, and continues after it. A batch that the
stop breaks off runs again, with the same orders, in the new version. A rollback takes out what the new version has written; the old
version reads these orders again.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, Variable, task

from airflow_checkpoint_provider.checkpoint import CheckpointConfig
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.operators import (
    CheckpointedSparkSubmitOperator,
    RestoreOperator,
    StopWithSavepointOperator,
)
from airflow_checkpoint_provider.sensors import CheckpointCompletedSensor

JOB = Path(__file__).parent / "jobs" / "clean_orders.py"
DATA = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "data" / "deployed_orders"
STREAM = "clean_orders_deployed"
DEPLOYED = "clean_orders_application"
"""The variable that holds the path of the stream's script. Each try of the task reads it again."""

with DAG(
    STREAM,
    schedule="@continuous",  # starts the next run, whatever has ended the one before
    max_active_runs=1,  # and no limit of failed runs: it would pause this DAG, and a rollback could not start the old version
    is_paused_upon_creation=True,
    params={"data": Param(str(DATA), type="string", description="Folder with the inbox, and for the clean orders.")},
    doc_md=__doc__,
):
    CheckpointedSparkSubmitOperator(
        task_id="run",
        job_id=STREAM,
        scope="job",
        application=f"{{{{ var.value.get('{DEPLOYED}', '{JOB}') }}}}",
        application_args=["--inbox", "{{ params.data }}/inbox", "--out", "{{ params.data }}/clean"],
        conf={"spark.sql.shuffle.partitions": "8"},  # the state has as many, and keeps that number
        checkpointing=CheckpointConfig(interval="1 min", min_pause="10 s"),
        retries=100,
        retry_delay=timedelta(seconds=10),
    )


@task
def set_application(path: str) -> None:
    Variable.set(DEPLOYED, path)


@task.short_circuit(trigger_rule="one_failed")
def stopped(savepoint: Any) -> Any:
    """Return the point to restore, or None if there is nothing to roll back: if the stop was refused, the old version still runs.

    If the stop failed after it had suspended the stream, there is no XCom; the stream then continues with its newest batch."""
    if savepoint:
        return savepoint
    suspended = CheckpointStorageHook().suspended(STREAM)
    return "latest" if suspended and suspended["by"] == "clean_orders_upgrade.stop" else None


@task
def upgraded() -> None:
    """Add a second leaf: if the rollback were the only leaf, the run of a failed upgrade would succeed."""


with DAG(
    "clean_orders_upgrade",
    schedule=None,
    max_active_runs=1,
    params={
        "application": Param(str(JOB), type="string", description="The new script."),
        "previous": Param(str(JOB), type="string", description="The script to go back to."),
    },
    default_args={"retries": 1, "retry_delay": timedelta(seconds=5)},
    doc_md=__doc__,
):
    stop = StopWithSavepointOperator(task_id="stop", job=STREAM, deferrable=True)
    deploy = set_application.override(task_id="deploy")("{{ params.application }}")
    restore = RestoreOperator(task_id="restore", job=STREAM, restore=stop.output)
    healthy = CheckpointCompletedSensor(
        task_id="healthy",
        job=STREAM,
        after=stop.output,
        count=2,
        timeout=timedelta(minutes=15),
        deferrable=True,
    )
    stop >> deploy >> restore >> healthy >> upgraded()

    undeploy = set_application.override(task_id="undeploy")("{{ params.previous }}")
    go_back_to = stopped(stop.output)
    # It stops the new version, if that still runs. What the new version has written is taken out of the sink.
    roll_back = RestoreOperator(task_id="roll_back", job=STREAM, restore=go_back_to, rewind_sink=True)
    [deploy, restore, healthy] >> go_back_to >> undeploy >> roll_back
