"""A streaming query that never ends, kept running, with a savepoint every hour. Runs in Airflow.

Unpause both DAGs, and put files into the inbox (see ``jobs/clean_orders.py``). If the driver dies, the retry continues with the next
batch: no order is lost or written twice. If all retries fail, the next run continues, too. After ten failed runs in a row, the DAG is
paused.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Param

from airflow_checkpoint_provider.checkpoint import CheckpointConfig, KeepLatest
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator, TriggerSavepointOperator

JOB = Path(__file__).parent / "jobs" / "clean_orders.py"
DATA = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "data" / "orders"
FOLDER = Param(str(DATA), type="string", description="Folder with the inbox, and for the clean orders.")

with DAG(
    "clean_orders",
    schedule="@continuous",
    max_active_runs=1,
    max_consecutive_failed_dag_runs=10,  # an error that no retry can mend fails each run at once; then the DAG is paused
    is_paused_upon_creation=True,
    params={"data": FOLDER},
    doc_md=__doc__,
):
    CheckpointedSparkSubmitOperator(
        task_id="run",
        job_id="clean_orders",
        scope="job",  # all runs share one history, so the next run continues where this one ended
        application=str(JOB),
        application_args=["--inbox", "{{ params.data }}/inbox", "--out", "{{ params.data }}/clean"],
        checkpointing=CheckpointConfig(interval="10 min", min_pause="1 min"),
        retries=100,
        retry_delay=timedelta(seconds=10),
    )

with DAG(
    "clean_orders_savepoints",
    schedule="@hourly",
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    doc_md=__doc__,
):
    TriggerSavepointOperator(
        task_id="savepoint",
        job="clean_orders",
        retention=KeepLatest(24),
        start_timeout="10 min",  # the driver may just be restarted
        deferrable=True,
    )
