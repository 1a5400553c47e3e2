"""A job that loads two tables of PostgreSQL: orders by appending twice, a report by overwriting. Runs in the Spark driver.

``loaded.py OUT``; the environment has ``JDBC_URL``, ``JDBC_USER`` and ``JDBC_PASSWORD``.
"""

from __future__ import annotations

import os

from airflow_checkpoint_provider.spark import CheckpointedJob, JdbcSink

ROWS = 2_000
LOGIN = {name: os.environ[f"JDBC_{name.upper()}"] for name in ("user", "password")}


def main(job: CheckpointedJob) -> None:
    sales = job.stage("sales", job.spark.range(ROWS).selectExpr("id", "id % 3 AS shop"))
    orders = job.sink("orders", JdbcSink(os.environ["JDBC_URL"], "orders", properties=LOGIN))
    orders.write(sales.where("id < 1500"))
    totals = job.stage("totals", sales.groupBy("shop").count())
    job.sink("report", JdbcSink(os.environ["JDBC_URL"], "report", properties=LOGIN, mode="overwrite")).write(totals)
    orders.write(sales.where("id >= 1500"))
    job.checkpoint()


if __name__ == "__main__":
    with CheckpointedJob() as job:
        main(job)
