"""Two streaming queries, of which the second reads what the first writes, with a savepoint of both every hour. Runs in Airflow.

Unpause both DAGs, and put files into the inbox (see ``jobs/new_customers.py``). A savepoint holds batches of both queries that fit
together: whatever starts from it reads each order once. If the second query is a minute behind, the savepoint does not wait any longer,
and holds a copy of the orders that it has yet to read.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Param

from airflow_checkpoint_provider.checkpoint import CheckpointConfig, KeepLatest
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator, TriggerSavepointOperator

JOB = Path(__file__).parent / "jobs" / "new_customers.py"
DATA = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "data" / "customers"
FOLDER = Param(str(DATA), type="string", description="Folder with the inbox, and for what the queries write.")

with DAG(
    "new_customers",
    schedule="@continuous",
    max_active_runs=1,
    max_consecutive_failed_dag_runs=10,  # an error that no retry can mend fails each run at once; then the DAG is paused
    is_paused_upon_creation=True,
    params={"data": FOLDER},
    doc_md=__doc__,
):
    CheckpointedSparkSubmitOperator(
        task_id="run",
        job_id="new_customers",
        scope="job",  # all runs share one history, so the next run continues where this one ended
        application=str(JOB),
        application_args=["--inbox", "{{ params.data }}/inbox", "--out", "{{ params.data }}"],
        checkpointing=CheckpointConfig(interval="10 min", min_pause="1 min", aligned_timeout="1 min"),
        retries=100,
        retry_delay=timedelta(seconds=10),
    )

with DAG(
    "new_customers_savepoints",
    schedule="@hourly",
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    doc_md=__doc__,
):
    TriggerSavepointOperator(
        task_id="savepoint",
        job="new_customers",
        retention=KeepLatest(24),
        start_timeout="10 min",  # the driver may just be restarted
        deferrable=True,
    )
