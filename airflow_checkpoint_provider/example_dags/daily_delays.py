"""Delays by carrier that grow day by day, in a table by key that lasts from run to run. Runs in Airflow.

It reads the tables that ``flights_etl`` has written. Each run adds the day that its form names. A day that was added already is left out, also
if its task is cleared or the day is given again.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Param

from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator

JOB = Path(__file__).parent / "jobs" / "daily_delays.py"
DATA = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "data" / "flights"

with DAG(
    "flights_daily",
    schedule=None,  # yours: "@daily", and {{ ds }} as the day
    max_active_runs=1,  # two runs cannot both go on with one table
    params={
        "data": Param(str(DATA), type="string", description="Folder of the tables, and for the report."),
        "day": Param("2013-01-01", type="string", format="date", description="The day to add."),
    },
    doc_md=__doc__,
):
    CheckpointedSparkSubmitOperator(
        task_id="add",
        scope="job",  # all runs have one history
        application=str(JOB),
        application_args=[
            *("--source", "{{ params.data }}/tables", "--out", "{{ params.data }}/daily"),
            *("--day", "{{ params.day }}"),
        ],
        depends_on_past=True,
        retries=3,
        retry_delay=timedelta(seconds=10),
    )
