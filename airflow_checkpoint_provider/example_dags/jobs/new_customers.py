"""Cleans orders as they arrive, and finds the customers who order for the first time. Runs in the Spark driver.

``spark-submit new_customers.py --inbox FOLDER --out FOLDER``: each file in the inbox holds one order a line, as JSON. One query writes
the orders with a customer to ``OUT/clean``. Another one reads these, and writes the first order of each customer to ``OUT/customers``.
"""

from __future__ import annotations

import argparse

from airflow_checkpoint_provider.spark import CheckpointedJob

ORDER = "number BIGINT, customer STRING, cents BIGINT"

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inbox", required=True, help="folder where files with orders arrive")
    parser.add_argument("--out", required=True, help="folder for what the queries write")
    options = parser.parse_args()
    clean, customers = f"{options.out}/clean", f"{options.out}/customers"
    with CheckpointedJob() as job:
        read = job.spark.readStream.schema(ORDER)
        orders = read.json(options.inbox).where("customer is not null")
        job.start_query("orders", orders.writeStream.format("parquet").option("path", clean))
        first = read.parquet(clean).dropDuplicates(["customer"])
        job.start_query("customers", first.writeStream.format("parquet").option("path", customers), after=["orders"])
    job.spark.stop()
