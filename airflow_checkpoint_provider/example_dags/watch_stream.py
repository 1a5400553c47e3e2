"""A streaming query that tells you when it fails, gives up when it gets no further, and is looked after. Runs in Airflow.

Unpause both DAGs, and put files into the inbox (see ``jobs/clean_orders.py``). Kill the driver: ``tell`` gets a text, and the retry
continues. Pause the first DAG and end its run: half an hour later the second DAG fails, and ``tell`` gets that, too. If the first DAG has
failed, it is paused: mend the cause, and unpause it.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Param

from airflow_checkpoint_provider.checkpoint import CheckpointConfig
from airflow_checkpoint_provider.notifications import CheckpointNotifier
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator
from airflow_checkpoint_provider.retry_policies import CheckpointRetryPolicy
from airflow_checkpoint_provider.sensors import CheckpointHealthSensor

JOB = Path(__file__).parent / "jobs" / "clean_orders.py"
DATA = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "data" / "watched"
FOLDER = Param(str(DATA), type="string", description="Folder with the inbox, and for the clean orders.")


def tell(text: str) -> None:
    """Stand in for your chat: ``CheckpointNotifier`` also takes a notifier, such as that of Slack."""
    with (DATA / "told.txt").open("a") as file:
        file.write(f"{text}\n\n")


with DAG(
    "watched_orders",
    schedule="@continuous",
    max_active_runs=1,
    max_consecutive_failed_dag_runs=1,  # else the next run starts at once, and its tries are counted from one
    is_paused_upon_creation=True,
    params={"data": FOLDER},
    doc_md=__doc__,
):
    CheckpointedSparkSubmitOperator(
        task_id="run",
        job_id="watched_orders",
        scope="job",
        application=str(JOB),
        application_args=["--inbox", "{{ params.data }}/inbox", "--out", "{{ params.data }}/clean"],
        checkpointing=CheckpointConfig(interval="10 s"),
        max_restore_age=(timedelta(days=6), "warn"),  # the source keeps its rows for a week
        retries=100,  # the policy ends the task earlier if it gets no further
        retry_policy=CheckpointRetryPolicy(stuck_after=3, delay=timedelta(seconds=10)),
        on_retry_callback=CheckpointNotifier(tell),
        on_failure_callback=CheckpointNotifier(tell),
    )

with DAG(
    "watched_orders_health",
    schedule="*/10 * * * *",
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    doc_md=__doc__,
):
    CheckpointHealthSensor(
        task_id="health",
        job="watched_orders",
        max_age="30 min",
        unprotected="1 h",
        retries=2,  # for a storage that does not answer; an unhealthy job fails at once
        retry_delay=timedelta(seconds=10),
        on_failure_callback=CheckpointNotifier(tell),
    )
