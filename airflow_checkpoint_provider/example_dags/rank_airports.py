"""Airports ranked in fifty turns of a loop: a retry goes on at the first turn that is not stored. Runs in Airflow.

It reads the tables that ``flights_etl`` has written. Kill the driver of task ``rank`` (``kill -9``) when its log says ``chk-3 completed at
turn 20 of loop 'pagerank'``, and look at the log of the retry.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Param

from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator

JOB = Path(__file__).parent / "jobs" / "rank_airports.py"
DATA = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "data" / "flights"

with DAG(
    "airport_ranks",
    schedule=None,
    max_active_runs=1,  # all runs write the same ranks
    params={"data": Param(str(DATA), type="string", description="Folder of the tables, and for the ranks.")},
    doc_md=__doc__,
):
    CheckpointedSparkSubmitOperator(
        task_id="rank",
        application=str(JOB),
        application_args=["--source", "{{ params.data }}/tables", "--out", "{{ params.data }}/ranks"],
        retries=3,
        retry_delay=timedelta(seconds=10),
    )
