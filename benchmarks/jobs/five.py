"""A job of five stages without work, so that its time is that of its start and its end. Runs in the Spark driver.

``five.py VARIANT ROOT``: ``ours``, or ``plain``, which writes each stage as Parquet and needs only PySpark.
"""

from __future__ import annotations

import os
import sys

from benchmarks.jobs.moments import fail_if_asked, mark, result

MANY = "BENCHMARK_CHECKPOINTS"
"""The environment's variable with the number of checkpoints that are taken after the stages."""


def plain(root: str) -> None:
    """Start Spark and write five stages."""
    from pyspark.sql import SparkSession

    mark("pyspark imported")
    mark("imported")
    modules = len(sys.modules)
    spark = SparkSession.builder.getOrCreate()
    mark("session")
    for number in range(5):
        spark.range(100).write.parquet(f"{root}/{number}")
    mark("stages")
    mark("left")
    spark.stop()
    mark("stopped")
    result(modules=modules)


def ours(root: str) -> None:
    """Do the same with ``CheckpointedJob``."""
    from pyspark.sql import SparkSession

    mark("pyspark imported")
    from airflow_checkpoint_provider.spark import CheckpointedJob

    mark("imported")
    modules = len(sys.modules)
    spark = SparkSession.builder.getOrCreate()
    mark("session")
    with CheckpointedJob(spark, root=root) as job:
        mark("attached")
        for number in range(5):
            job.stage(f"stage {number}", spark.range(100))
        mark("stages")
        for _ in range(int(os.environ.get(MANY, "0"))):
            job.checkpoint()
        result(modules=modules)
        fail_if_asked()
        mark("script ended")
    mark("left")
    spark.stop()
    mark("stopped")


if __name__ == "__main__":
    mark("python")
    {"ours": ours, "plain": plain}[sys.argv[1]](sys.argv[2])
