"""Loads one table: without the rows that stand in it twice, and sorted by its first column. Runs in the Spark driver.

``spark-submit load_table.py --data FOLDER --table NAME`` reads ``FOLDER/tables/NAME.parquet`` and writes ``FOLDER/loaded/NAME``.
"""

from __future__ import annotations

import argparse

from airflow_checkpoint_provider.spark import CheckpointedJob

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder with the tables")
    parser.add_argument("--table", required=True, help="name of the table")
    options = parser.parse_args()
    with CheckpointedJob() as job:
        table = job.spark.read.parquet(f"{options.data}/tables/{options.table}.parquet")
        rows = job.stage("rows", table.distinct())
        rows.sort(rows.columns[0]).write.mode("overwrite").parquet(f"{options.data}/loaded/{options.table}")
    job.spark.stop()
