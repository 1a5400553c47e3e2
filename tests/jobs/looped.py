"""A job with loops: turns that replace a frame, write to a sink, number writes of their own and compute stages. Runs in the Spark driver.

``looped.py OUT [ROOT]`` writes below OUT, or beside the root if that is a bucket. ``TURNS`` is the number of turns of the first loop,
``EVERY`` the number of turns between two barriers. ``PLAIN`` is the number of turns of a loop that does nothing else.
The last lines show what the run has come to. All of it is the same for a run that nobody disturbs.
"""

from __future__ import annotations

import json
import os
import sys
import time

from pyspark.sql.functions import col, lit
from pyspark.sql.functions import sum as sum_of

from airflow_checkpoint_provider.spark import CheckpointedJob, FileSink, Frame

EVERY = int(os.environ.get("EVERY", "2"))
TURNS = int(os.environ.get("TURNS", "5"))


def plain(job: CheckpointedJob, count: int) -> None:
    """Turns with nothing in them that could serve a request."""
    ranks, turns = job.frame("ranks", job.spark.range(0, 1, 1, 1).withColumn("rank", lit(0))), job.value("turns", 0)
    for turn in job.iterate("rank", range(count), every=1000):
        turns.set(turns.get() + 1)
        ranks.set(ranks.df.withColumn("rank", col("rank") + 1))
        print("TURN", turn, flush=True)
        time.sleep(0.2)
    print("RESULT", json.dumps({"turns": turns.get(), "ranks": rows(ranks)}), flush=True)


def main(job: CheckpointedJob, out: str) -> None:
    if "PLAIN" in os.environ:
        plain(job, int(os.environ["PLAIN"]))
        return
    edges = job.stage(
        "edges", job.spark.range(0, 12, 1, 1).selectExpr("id % 4 AS src", "id % 3 AS dst", "id AS weight")
    )
    ranks = job.frame("ranks", lambda: edges.select(col("src").alias("id"), lit(1).alias("rank")).distinct())
    history, turns = job.sink("history", FileSink(f"{out}/history")), job.value("turns", 0)
    history.write(ranks.df.select(lit(-1).alias("turn"), "id", "rank").coalesce(1))
    for turn in job.iterate("rank", range(TURNS), every=EVERY):
        turns.set(turns.get() + 1)
        sums = job.stage(
            f"sums-{turn}",
            ranks.df.join(edges, col("id") == col("src")).groupBy("dst").agg(sum_of("rank").alias("s")),
        )
        ranks.set(
            ranks.df.join(sums, col("id") == col("dst"), "left").selectExpr("id", "rank + coalesce(s, 0) AS rank")
        )
        history.write(ranks.df.select(lit(turn).alias("turn"), "id", "rank").coalesce(1))
        number = job.txn("numbered")["txnVersion"]
        ranks.df.coalesce(1).write.mode("overwrite").parquet(f"{out}/numbered/{number}")
    days(job, out, ranks)
    print("RESULT", json.dumps({"turns": turns.get(), "ranks": rows(ranks)}), flush=True)


def days(job: CheckpointedJob, out: str, ranks: Frame) -> None:
    total, report = job.frame("total", lambda: ranks.df.limit(0)), job.sink("report", FileSink(f"{out}/report"))
    for day in job.once("days", ["mon", "tue"]):
        total.set(total.df.unionByName(ranks.df).groupBy("id").agg(sum_of("rank").alias("rank")))
        report.write(total.df.select(lit(day).alias("day"), "id", "rank").coalesce(1))
    report.write(total.df.select(lit("end").alias("day"), "id", "rank").coalesce(1))


def rows(frame: Frame) -> list[list[int]]:
    return sorted([row["id"], row["rank"]] for row in frame.df.collect())


if __name__ == "__main__":
    root = sys.argv[2] if len(sys.argv) > 2 else None
    with CheckpointedJob(root=root) as job:
        main(job, sys.argv[1] if root is None else f"{root.replace('s3://', 's3a://')}-out")
