"""A job of one stage over TPC-H that appends its rows to a table. Runs in the Spark driver.

``tables.py VARIANT FORMAT TARGET TABLES ROOT``: *plain* appends as Spark does, *sink* by a sink of this package. TARGET is the path of a Delta
table, the name of an Iceberg table, or a JDBC URL, whose login is in ``LOGIN`` as JSON. The table is new.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Any

from benchmarks.jobs.moments import mark, result, spark_jobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_checkpoint_provider.spark import Sink

TABLE = "public.lines"


class Target:
    """A table of one kind: how Spark makes it, appends to it, and reads it, and its sink."""

    def __init__(self, spark: SparkSession, kind: str, place: str) -> None:
        self._spark, self._kind, self._place = spark, kind, place
        self._login: dict[str, str] = json.loads(os.environ.get("LOGIN", "{}"))

    def make(self, rows: DataFrame) -> None:
        if self._kind == "iceberg":
            self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._place.rpartition('.')[0]}")
            rows.limit(0).writeTo(self._place).using("iceberg").create()
        elif self._kind == "jdbc":
            rows.limit(0).write.jdbc(self._place, TABLE, mode="overwrite", properties=self._login)

    def append(self, rows: DataFrame) -> None:
        if self._kind == "iceberg":
            rows.writeTo(self._place).append()
        elif self._kind == "jdbc":
            rows.write.jdbc(self._place, TABLE, mode="append", properties=self._login)
        else:
            rows.write.format("delta").mode("append").save(self._place)

    def sink(self) -> Sink:
        from airflow_checkpoint_provider.spark import DeltaSink, IcebergSink, JdbcSink

        if self._kind == "iceberg":
            return IcebergSink(self._place)
        return JdbcSink(self._place, TABLE, properties=self._login) if self._kind == "jdbc" else DeltaSink(self._place)

    def count(self) -> int:
        reader: Any = self._spark.read
        if self._kind == "iceberg":
            return int(self._spark.table(self._place).count())
        if self._kind == "jdbc":
            return int(reader.jdbc(self._place, TABLE, properties=self._login).count())
        return int(reader.format("delta").load(self._place).count())


def main(variant: str, kind: str, place: str, tables: str, root: str) -> None:
    """Run the job, and tell its moments and how many rows readers find."""
    from pyspark.sql import SparkSession

    from airflow_checkpoint_provider.spark import CheckpointedJob
    from benchmarks.jobs import sales

    spark = SparkSession.builder.getOrCreate()
    target = Target(spark, kind, place)
    mark("session")
    with CheckpointedJob(spark, job_id="tables", root=root) as job:
        rows = job.stage("lines", sales.lines(sales.reader(spark, tables)))
        target.make(rows)
        job.checkpoint()
        mark("begun")
        if variant == "plain":
            target.append(rows)
        else:
            job.sink("out", target.sink()).write(rows)
        job.checkpoint()
        mark("published")
    result(rows=target.count(), jobs=spark_jobs(spark))
    spark.stop()


if __name__ == "__main__":
    mark("python")
    parser = argparse.ArgumentParser()
    for name in ("variant", "kind", "place", "tables", "root"):
        parser.add_argument(name)
    given = parser.parse_args()
    main(given.variant, given.kind, given.place, given.tables, given.root)
