"""A job with one stage of so many keys, whose rows are then read. Runs in the Spark driver.

``keys.py ROOT KEYS [--stored ROWS]``: with ``--stored`` there is no stage; the rows that lie at ROWS are read.
"""

from __future__ import annotations

import argparse

from benchmarks.jobs.moments import fail_if_asked, mark, result


def main(arguments: argparse.Namespace) -> None:
    """Run the job; tell when its first row was there and when all rows were read."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

    from airflow_checkpoint_provider.spark import CheckpointedJob
    from benchmarks.jobs.snapshots import keys

    spark = SparkSession.builder.getOrCreate()
    mark("session")
    with CheckpointedJob(spark, root=arguments.root) as job:
        mark("attached")
        if arguments.stored:
            rows = spark.read.schema("k bigint, v string").parquet(arguments.stored)
        else:
            rows = job.stage("keys", keys(spark, arguments.keys))
        rows.first()
        mark("first row")
        (total,) = rows.agg(F.bit_xor(F.xxhash64("k", "v"))).collect()
        mark("all rows")
        result(rows=total[0])
        fail_if_asked()
    spark.stop()


if __name__ == "__main__":
    mark("python")
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("keys", type=int)
    parser.add_argument("--stored")
    main(parser.parse_args())
