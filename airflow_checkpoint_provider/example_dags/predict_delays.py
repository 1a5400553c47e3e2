"""Predictions of late flights by a model that is fitted once in a run: a retry fits nothing again. Runs in Airflow.

It reads the tables that ``flights_etl`` has written. Kill the driver of task ``predict`` (``kill -9``) when its log says ``chk-2 completed at
folder 'model'``, and look at the log of the retry.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Param

from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator

JOB = Path(__file__).parent / "jobs" / "predict_delays.py"
DATA = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "data" / "flights"

with DAG(
    "flights_predictions",
    schedule=None,
    max_active_runs=1,  # all runs write the same predictions
    params={"data": Param(str(DATA), type="string", description="Folder of the tables, and for the predictions.")},
    doc_md=__doc__,
):
    CheckpointedSparkSubmitOperator(
        task_id="predict",
        application=str(JOB),
        application_args=["--source", "{{ params.data }}/tables", "--out", "{{ params.data }}/predictions"],
        retries=3,
        retry_delay=timedelta(seconds=10),
    )
