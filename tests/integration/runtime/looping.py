"""A frame of three rows with a number, for tests of loops. Runs in the Spark driver."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, lit

from airflow_checkpoint_provider.spark import CheckpointedJob, Frame


def numbers(job: CheckpointedJob) -> DataFrame:
    return job.spark.range(3).select(col("id"), lit(0).alias("n"))


def added(frame: Frame, number: int) -> None:
    frame.set(frame.df.withColumn("n", col("n") + number))


def total(frame: Frame) -> int:
    """What was added to each row."""
    (row,) = frame.df.select("n").distinct().collect()
    return int(row["n"])
