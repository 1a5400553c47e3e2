"""A job of one stage over TPC-H that hands its rows out, in one of several ways. Runs in the Spark driver.

``outputs.py VARIANT TABLES ROOT``: *plain* appends as Spark does, *sink* by a ``FileSink``; ``from-query``: the rows are not stored before.
"""

from __future__ import annotations

import argparse

from benchmarks.jobs.moments import mark, result, spark_jobs


def main(variant: str, tables: str, root: str) -> None:
    """Run the job, and tell its moments and how many rows readers find."""
    from pyspark.sql import SparkSession

    from airflow_checkpoint_provider.spark import CheckpointedJob, FileSink
    from benchmarks.jobs import sales

    spark = SparkSession.builder.getOrCreate()
    out = f"{root.replace('s3://', 's3a://')}-out"
    mark("session")
    with CheckpointedJob(spark, job_id="outputs", root=root) as job:
        rows = sales.lines(sales.reader(spark, tables))
        if not variant.endswith("from-query"):
            rows = job.stage("lines", rows)
        job.checkpoint()
        mark("begun")
        if variant.startswith("plain"):
            rows.write.mode("append").parquet(out)
        else:
            job.sink("out", FileSink(out)).write(rows)
        mark("written")
        job.checkpoint()
        mark("published")
    result(rows=spark.read.parquet(out).count(), jobs=spark_jobs(spark))
    spark.stop()


if __name__ == "__main__":
    mark("python")
    parser = argparse.ArgumentParser()
    parser.add_argument("variant")
    parser.add_argument("tables")
    parser.add_argument("root")
    given = parser.parse_args()
    main(given.variant, given.tables, given.root)
