"""The rank of each airport by PageRank over the flights from New York: fifty turns of a loop. Runs in the Spark driver.

``spark-submit rank_airports.py --source DATA --out RANKS``, or with plain ``python``.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.spark import CheckpointedJob, FileSink

TURNS = 50
DAMPING = 0.85


def main(job: CheckpointedJob, source: str, out: str) -> None:
    routes = job.stage("routes", shares(job.spark.read.parquet(f"{source}/flights.parquet")))
    ranks = job.frame("ranks", lambda: routes.select(F.col("src").alias("id"), F.lit(1.0).alias("rank")).distinct())
    for _ in job.iterate("pagerank", range(TURNS)):
        ranks.set(one_step(ranks.df, routes))
    job.sink("report", FileSink(out, mode="overwrite")).write(ranks.df.coalesce(1))


def shares(flights: DataFrame) -> DataFrame:
    """Return each route in both directions, with its share of the flights of the airport where it begins."""
    there = flights.select(F.col("origin").alias("src"), F.col("dest").alias("dst"))
    both = there.unionByName(there.select(F.col("dst").alias("src"), F.col("src").alias("dst")))
    counted = both.groupBy("src", "dst").agg(F.count("*").alias("flights"))
    total = counted.groupBy("src").agg(F.sum("flights").alias("total"))
    return counted.join(total, "src").select("src", "dst", (F.col("flights") / F.col("total")).alias("share"))


def one_step(ranks: DataFrame, routes: DataFrame) -> DataFrame:
    """Return the ranks after each airport has handed its rank on to the airports that it flies to."""
    handed_on = (
        ranks.join(routes, ranks["id"] == routes["src"])
        .groupBy("dst")
        .agg(F.sum(F.col("rank") * F.col("share")).alias("sum"))
    )
    return handed_on.select(F.col("dst").alias("id"), (1 - DAMPING + DAMPING * F.col("sum")).alias("rank"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", required=True, help="folder with flights.parquet")
    parser.add_argument("--out", required=True, help="folder for the ranks; its content is replaced")
    options = parser.parse_args()
    with CheckpointedJob() as job:
        main(job, options.source, options.out)
