"""A job that publishes Delta tables: orders by appending twice, a report by overwriting. Runs in the Spark driver.

``published_table.py OUT`` writes below OUT. ``SALES`` is the number of its rows.
"""

from __future__ import annotations

import os
import sys

from airflow_checkpoint_provider.spark import CheckpointedJob, DeltaSink

if __name__ == "__main__":
    out, rows = sys.argv[1], int(os.environ.get("SALES", "20"))
    with CheckpointedJob() as job:
        sales = job.stage("sales", job.spark.range(rows).selectExpr("id", "id % 3 AS shop"))
        orders = job.sink("orders", DeltaSink(f"{out}/orders", partition_by=["shop"]))
        orders.write(sales.where("id < 15"))
        job.checkpoint()
        report = job.sink("report", DeltaSink(f"{out}/report", mode="overwrite"))
        report.write(sales)
        orders.write(sales.where("id >= 15"))
        job.checkpoint()
