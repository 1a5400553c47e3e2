"""A table by key that gets all its rows, then a hundredth of them anew. Runs in the Spark driver.

``key_table.py VARIANT ROOT KEYS``: ``plain`` writes all rows by Spark's own Parquet writer.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from benchmarks.jobs.moments import mark, result, spark_jobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLAIN, WHOLE, CHANGE = "plain", "whole", "change"
CHANGED = 100  # each so manieth key


def rows(spark: SparkSession, keys: int, *, each: int = 1, sign: int = 1) -> DataFrame:
    """Return the rows of each so manieth key."""
    return spark.range(0, keys, each).selectExpr(
        "id AS key", f"{sign} * id AS amount", "concat('name ', id % 1000) AS name"
    )


def main(variant: str, root: str, keys: int) -> None:
    """Run one way, and tell its moments and the sum of all amounts."""
    from pyspark.sql import SparkSession

    from airflow_checkpoint_provider.spark import CheckpointedJob

    spark = SparkSession.builder.getOrCreate()
    rows(spark, keys).write.format("noop").mode("overwrite").save()  # the generated code is compiled by now
    mark("session")
    with CheckpointedJob(spark, job_id="key_table", root=root) as job:
        if variant == PLAIN:
            mark("begun")
            rows(spark, keys).write.parquet(f"{root}-plain")
            mark("stored")
            table = spark.read.parquet(f"{root}-plain")
        else:
            state = job.keyed_state("table", "key")
            turns = 1 if variant == WHOLE else 2
            for turn in job.iterate("turns", range(turns + 1), every=1):
                if turn == turns:
                    mark("stored")
                    break
                mark("begun")
                state.upsert(rows(spark, keys) if turn == 0 else rows(spark, keys, each=CHANGED, sign=-1))
            table = state.df
        total = table.groupBy().sum("amount").first()
        mark("read")
    assert total
    result(rows=int(total[0]), jobs=spark_jobs(spark))
    spark.stop()


if __name__ == "__main__":
    mark("python")
    parser = argparse.ArgumentParser()
    parser.add_argument("variant")
    parser.add_argument("root")
    parser.add_argument("keys", type=int)
    given = parser.parse_args()
    main(given.variant, given.root, given.keys)
