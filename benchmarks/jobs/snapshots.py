"""Writes the same rows again and again, in the way that the next line of standard input names. Runs in the Spark driver.

``snapshots.py ROOT KEYS``: each line is the name of a way and a number; the answer has the seconds, and the bytes of the files.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.functions import count, lit

from airflow_checkpoint_provider.spark import CheckpointedJob
from airflow_checkpoint_provider.spark.stages.parquet_files import codec_for
from benchmarks.jobs.moments import result


def keys(spark: SparkSession, count: int) -> DataFrame:
    """Return ``count`` keys with a value of 17 letters each, which no codec makes much smaller."""
    return spark.range(0, count, 1, 2).selectExpr("id AS k", "concat('v', hex(xxhash64(id))) AS v")


def ours(df: DataFrame, folder: Path) -> float:
    """Take a stage. Its checkpoint, which runs beside the job, is waited for outside of the time."""
    with CheckpointedJob(df.sparkSession, root=str(folder), job_id="keys") as job:
        began = time.perf_counter()
        job.stage("keys", df)
        return time.perf_counter() - began


def raw(df: DataFrame, folder: Path) -> float:
    """Write with the codec of a stage on a local disk."""
    began = time.perf_counter()
    df.write.option("compression", codec_for("file")).parquet(str(folder))
    return time.perf_counter() - began


def counted(df: DataFrame, folder: Path) -> float:
    """Write and let Spark count the rows meanwhile, as a stage does."""
    began = time.perf_counter()
    raw(df.observe(Observation(), count(lit(1)).alias("rows")), folder)
    return time.perf_counter() - began


def spark_checkpoint(df: DataFrame, folder: Path) -> float:
    """Take a checkpoint of Spark."""
    df.sparkSession.sparkContext.setCheckpointDir(str(folder))
    began = time.perf_counter()
    df.checkpoint()
    return time.perf_counter() - began


WAYS = {"ours": ours, "raw": raw, "raw, counted": counted, "checkpoint()": spark_checkpoint}


def main(root: str, count: str) -> None:
    """Answer line by line until standard input ends."""
    spark = SparkSession.builder.getOrCreate()
    df = keys(spark, int(count))
    for number, line in enumerate(sys.stdin):
        folder = Path(root) / str(number)
        seconds = WAYS[line.strip()](df, folder)
        result(seconds=seconds, bytes=sum(file.stat().st_size for file in folder.rglob("part-*")))
        shutil.rmtree(folder)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
