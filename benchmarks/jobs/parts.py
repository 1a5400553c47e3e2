"""A job with one long stage, whole or in parts. Runs in the Spark driver.

``parts.py VARIANT ROOT ROWS``: ``whole``, or ``in parts``. It makes its source first, ``ROOT-source``. Each row costs the processor a
while. With ``BENCHMARK_KILLED_IN`` the driver kills itself while Spark computes the part of that number. It tells a moment
``part <number>`` when it begins a part.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.jobs.moments import enter_stage, mark, result, spark_jobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTS = 10
DIGESTS = 12  # of each row, one of the other


def make_source(spark: SparkSession, folder: str, count: int) -> None:
    """Write the ids, in a folder for each part."""
    ids = spark.range(0, count, numPartitions=20).selectExpr("id", f"id % {PARTS} as part")
    ids.write.mode("ignore").partitionBy("part").parquet(folder)


def rows(spark: SparkSession, folder: str, *parts: int) -> DataFrame:
    """Return the rows of some parts. They take long."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

    digest = F.col("id").cast("string")
    for _ in range(DIGESTS):
        digest = F.sha2(digest, 256)
    ids = spark.read.schema("id long").parquet(*(f"{folder}/part={part}" for part in parts))
    return ids.select("id", F.substring(digest, 1, 8).alias("digest"))


def processor_s(spark: SparkSession) -> float:
    """Return the seconds of the processor that this process and its JVM have used so far."""
    jvm: Any = spark._jvm
    stat = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/stat").read_text()
    ticks = sum(map(int, stat.rpartition(")")[2].split()[11:13]))  # in user mode, and in the kernel
    return ticks / os.sysconf("SC_CLK_TCK") + time.process_time()


def main(variant: str, root: str, count: int) -> None:
    """Run the job, and tell its moments, its rows and a sum over them."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

    from airflow_checkpoint_provider.spark import CheckpointedJob
    from tests.support.parts import parts

    spark = SparkSession.builder.getOrCreate()
    source = f"{root}-source"
    make_source(spark, source, count)
    mark("session")
    before = processor_s(spark)
    with CheckpointedJob(spark, root=root) as job:

        def part(number: int) -> DataFrame:
            mark(f"part {number}")
            enter_stage(spark, str(number), parts(job).checkpointer.wait)
            return rows(spark, source, number)

        found = (
            job.stage("rows", part, parts=range(PARTS))
            if variant == "in parts"
            else job.stage("rows", rows(spark, source, *range(PARTS)))
        )
        (summed,) = found.select(F.count("id"), F.sum(F.conv("digest", 16, 10).cast("long"))).collect()
    mark("left")
    result(rows=[str(one) for one in summed], jobs=spark_jobs(spark), processor_s=processor_s(spark) - before)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
