"""Totals by shop that grow with each day, in a table by key. Runs in the Spark driver.

``keyed.py OUT [ROOT]`` adds the days ``DAYS`` (environment; default 1,2,3), and prints a line ``RESULT {...}`` with the rows of the table.
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.spark import CheckpointedJob, FileSink

SHOPS = 40


def main(job: CheckpointedJob, out: str, days: list[int]) -> None:
    totals = job.keyed_state("totals", "shop", schema="shop bigint, sales bigint, newest int")
    history = job.sink("history", FileSink(f"{out}/history"))
    for day in job.once("days", days):
        new = sales(job, day)
        totals.upsert(added(totals.df, new, day))
        totals.delete(totals.df.where(f"shop = {day} AND newest < {day}"))
        history.write(new.agg(F.sum("sales").alias("sales")).withColumn("day", F.lit(day)))
    job.sink("report", FileSink(f"{out}/report", mode="overwrite")).write(totals.df)
    rows = sorted(map(list, totals.df.collect()))
    print("RESULT", json.dumps({"rows": rows, "attempt": job.attempt}), flush=True)


def sales(job: CheckpointedJob, day: int) -> DataFrame:
    """Return the sales of a day: not each shop has some."""
    return job.spark.range(1, SHOPS + 1).where(f"id % 4 <> {day % 4}").selectExpr("id AS shop", f"id * {day} AS sales")


def added(totals: DataFrame, new: DataFrame, day: int) -> DataFrame:
    before = totals.select("shop", F.col("sales").alias("before"))
    both = F.col("sales") + F.coalesce("before", F.lit(0))
    return new.join(before, "shop", "left").select("shop", both.alias("sales"), F.lit(day).alias("newest"))


if __name__ == "__main__":
    root = sys.argv[2] if len(sys.argv) > 2 else None
    out = sys.argv[1] if root is None else f"{root.replace('s3://', 's3a://')}-out"
    with CheckpointedJob(root=root) as job:
        main(job, out, [int(day) for day in os.environ.get("DAYS", "1,2,3").split(",")])
