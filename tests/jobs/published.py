"""A job that publishes: orders by appending twice, a report by overwriting. Runs in the Spark driver.

``published.py OUT [ROOT]`` writes below OUT, or beside the root if that is a bucket. ``SALES`` is the number of orders.
"""

from __future__ import annotations

import json
import os
import sys

from airflow_checkpoint_provider.spark import CheckpointedJob, FileSink

ROWS = int(os.environ.get("SALES", "2000"))


def main(job: CheckpointedJob, out: str) -> None:
    sales = job.stage("sales", job.spark.range(ROWS).selectExpr("id", "id % 3 AS shop"))
    orders = job.sink("orders", FileSink(f"{out}/orders", partition_by=["shop"]))
    orders.write(sales.where("id < 1500"))
    totals = job.stage("totals", sales.groupBy("shop").count())
    job.sink("report", FileSink(f"{out}/report", mode="overwrite")).write(totals.coalesce(1))
    orders.write(sales.where("id >= 1500"))
    job.checkpoint()
    print("RESULT", json.dumps({"attempt": job.attempt}), flush=True)


if __name__ == "__main__":
    root = sys.argv[2] if len(sys.argv) > 2 else None
    with CheckpointedJob(root=root) as job:
        main(job, sys.argv[1] if root is None else f"{root.replace('s3://', 's3a://')}-out")
