"""Loads each table of a folder by a Spark job of its own; a table that failed continues where it was, though the list has changed. Runs in
Airflow.

Run ``flights_etl`` first: it prepares tables. Kill the driver of one instance of ``load`` (``kill -9``), and look at the log of its retry.
"""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import DAG, Param, task

from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator

JOB = Path(__file__).parent / "jobs" / "load_table.py"
DATA = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "data" / "flights"

with DAG(
    "load_tables",
    schedule=None,
    max_active_runs=1,  # all runs write the same tables
    params={"data": Param(str(DATA), type="string", description="Folder with the tables, and for what is loaded.")},
    doc_md=__doc__,
):

    @task
    def list_tables(tables: str) -> list[str]:
        """Return the names of the tables that are there now. Their order means nothing."""
        return [path.stem for path in Path(tables).glob("*.parquet")]

    CheckpointedSparkSubmitOperator.partial(
        task_id="load",
        application=str(JOB),
        application_args=["--data", "{{ params.data }}", "--table", "{{ task.item }}"],
        retries=2,
        map_index_template="{{ task.item }}",
        max_active_tis_per_dagrun=2,
    ).expand(item=list_tables("{{ params.data }}/tables"))
