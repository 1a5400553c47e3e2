"""A job that runs for days, with a savepoint every hour. Savepoints of one week, and at least 24, are kept. Each starts a run of a
third DAG. Runs in Airflow.

Trigger ``tally`` and put files into its inbox (see ``jobs/tally.py``); then unpause ``tally_savepoints``. If the job does not
run, and is not started within ten minutes, the hour is skipped if nothing has changed since the last savepoint; otherwise it fails.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_checkpoint_provider.assets import checkpoint_asset, triggering_checkpoint
from airflow_checkpoint_provider.checkpoint import KeepLatest, KeepWithin
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator, TriggerSavepointOperator

JOB = Path(__file__).parent / "jobs" / "tally.py"
DATA = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "data" / "tally"
FOLDER = Param(str(DATA), type="string", description="Folder with the inbox, and for the sums.")

with DAG("tally", schedule=None, max_active_runs=1, params={"data": FOLDER}, doc_md=__doc__):
    CheckpointedSparkSubmitOperator(
        task_id="run",
        job_id="tally",
        scope="job",  # all runs share one history, which the other DAG finds by the job's id
        application=str(JOB),
        application_args=["--inbox", "{{ params.data }}/inbox", "--out", "{{ params.data }}/sums.json"],
        retries=10,
        retry_delay=timedelta(seconds=10),
    )

with DAG(
    "tally_savepoints",
    schedule="@hourly",
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    doc_md=__doc__,
):
    TriggerSavepointOperator(
        task_id="savepoint",
        job="tally",
        retention=KeepLatest(24) | KeepWithin(days=7),
        start_timeout="10 min",  # the driver may just be restarted
        execution_timeout=timedelta(
            minutes=18
        ),  # the driver waits for the end of a batch; three tries fit into one hour
        deferrable=True,
    )


@task
def count(**context: Any) -> dict[str, Any]:
    """Count the rows of the newest savepoint. Needs no Spark."""
    savepoint = triggering_checkpoint(context)
    states = CheckpointStorageHook().describe(savepoint)["states"].values()
    return {
        "savepoint": savepoint["pointer"],
        "rows": sum(state["rows"] for state in states if state["kind"] == "stage"),
    }


with DAG("tally_counted", schedule=checkpoint_asset("tally"), max_active_runs=1, doc_md=__doc__):
    count()
