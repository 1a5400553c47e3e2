"""Cleans orders as they arrive in a folder, for ever. Runs in the Spark driver.

``spark-submit clean_orders.py --inbox FOLDER --out FOLDER``: each file in the inbox holds one order a line, as JSON. Orders without a
customer are left out; the same order is written once, however often it arrives.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame

from airflow_checkpoint_provider.spark import CheckpointedJob

ORDER = "number BIGINT, customer STRING, cents BIGINT"


def clean(orders: DataFrame) -> DataFrame:
    return orders.where("customer is not null").dropDuplicates(["number"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inbox", required=True, help="folder where files with orders arrive")
    parser.add_argument("--out", required=True, help="folder for the clean orders")
    options = parser.parse_args()
    with CheckpointedJob() as job:
        orders = job.spark.readStream.schema(ORDER).json(options.inbox)
        job.start_query("orders", clean(orders).writeStream.format("parquet").option("path", options.out))
    job.spark.stop()
