"""A loop that replaces a DataFrame in each turn, and stores it each fifth turn in one of two ways. Runs in the Spark driver.

``looping.py VARIANT ROOT EDGES TURNS``: PageRank over a random graph with a tenth as many nodes as edges.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from benchmarks.jobs.moments import mark, result, spark_jobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVERY = 5


def graph(spark: SparkSession, edges: int) -> DataFrame:
    """Return edges with the share of its rank that a node hands on along each."""
    nodes = edges // 10
    drawn = spark.range(edges).selectExpr(f"pmod(hash(id), {nodes}) AS src", f"pmod(hash(id, 7), {nodes}) AS dst")
    return drawn.selectExpr("src", "dst", "1 / count(*) OVER (PARTITION BY src) AS share")


def one_step(ranks: DataFrame, edges: DataFrame) -> DataFrame:
    """Return the ranks after one turn."""
    handed_on = (
        ranks.join(edges, ranks["id"] == edges["src"]).groupBy("dst").agg({"*": "count", "share": "sum", "rank": "avg"})
    )
    return handed_on.selectExpr("dst AS id", "0.15 + 0.85 * `avg(rank)` * `sum(share)` AS rank")


def by_checkpoint(spark: SparkSession, edges: DataFrame, first: DataFrame, root: str, turns: int) -> DataFrame:
    """Run the loop with ``DataFrame.checkpoint()``."""
    spark.sparkContext.setCheckpointDir(f"{root}-spark")
    ranks = first
    for turn in range(turns):
        ranks = one_step(ranks, edges)
        if (turn + 1) % EVERY == 0:
            ranks = ranks.checkpoint()
    return ranks


def main(variant: str, root: str, count: int, turns: int) -> None:
    """Run the loop, and tell its moments and the sum of all ranks."""
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import lit

    from airflow_checkpoint_provider.spark import CheckpointedJob

    spark = SparkSession.builder.getOrCreate()
    mark("session")
    with CheckpointedJob(spark, job_id="looping", root=root) as job:
        edges = job.stage("edges", graph(spark, count))
        first = edges.selectExpr("src AS id").distinct().withColumn("rank", lit(1.0))
        job.checkpoint()
        mark("begun")
        if variant == "ours":
            frame = job.frame("ranks", first)
            for _ in job.iterate("pagerank", range(turns), every=EVERY):
                frame.set(one_step(frame.df, edges))
            ranks = frame.df
        else:
            ranks = by_checkpoint(spark, edges, first, root, turns)
        total = ranks.groupBy().sum("rank").first()
        mark("looped")
    mark("left")
    assert total
    result(rows=f"{total[0]:.6g}", jobs=spark_jobs(spark))
    spark.stop()


if __name__ == "__main__":
    mark("python")
    parser = argparse.ArgumentParser()
    parser.add_argument("variant")
    parser.add_argument("root")
    parser.add_argument("edges", type=int)
    parser.add_argument("turns", type=int)
    given = parser.parse_args()
    main(given.variant, given.root, given.edges, given.turns)
