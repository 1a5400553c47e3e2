"""A job that publishes Iceberg tables: orders by appending twice, a report by overwriting. Runs in the Spark driver.

``published_iceberg.py OUT`` writes ``ice.db.orders`` and ``ice.db.report``, and prints what readers find there. ``SALES`` is the number
of its rows; 0 only reads, also the rows that wait in the checkpoint ``WAITING``.
"""

from __future__ import annotations

import json
import os

from pyspark.sql import SparkSession

from airflow_checkpoint_provider.spark import CheckpointedJob, IcebergSink, open_checkpoint

if __name__ == "__main__":
    rows = int(os.environ.get("SALES", "20"))
    spark = SparkSession.builder.getOrCreate()
    spark.sql("CREATE NAMESPACE IF NOT EXISTS ice.db")
    for table in ("orders", "report"):
        spark.sql(f"CREATE TABLE IF NOT EXISTS ice.db.{table} (id BIGINT, shop BIGINT) USING iceberg")
    if rows:
        with CheckpointedJob() as job:
            sales = job.stage("sales", job.spark.range(rows).selectExpr("id", "id % 3 AS shop"))
            orders = job.sink("orders", IcebergSink("ice.db.orders"))
            orders.write(sales.where("id < 15"))
            job.checkpoint()
            report = job.sink("report", IcebergSink("ice.db.report", mode="overwrite"))
            report.write(sales)
            orders.write(sales.where("id >= 15"))
            job.checkpoint()
    found = {
        table: sorted(row.id for row in spark.table(f"ice.db.{table}").collect()) for table in ("orders", "report")
    }
    refs = {row.name for table in found for row in spark.table(f"ice.db.{table}.refs").collect()}
    waiting = open_checkpoint(os.environ["WAITING"], spark)["orders"].collect() if "WAITING" in os.environ else []
    ids = sorted(row.id for row in waiting)
    print("RESULT", json.dumps({**found, "branches": sorted(refs), "waiting": ids}), flush=True)
    spark.stop()
