"""A job of five stages over TPC-H, kept in one of several ways. Runs in the Spark driver.

``revenue.py VARIANT TABLES ROOT [--python] [--stored ROWS --schema JSON]``: ``--python`` computes one column by a Python UDF; with
``--stored`` only the last stage is computed, from the rows of the stage before it, which lie at ROWS.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from typing import TYPE_CHECKING

from benchmarks.jobs.moments import mark, result, spark_jobs

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from benchmarks.jobs.sales import Read
    from benchmarks.jobs.variants import Stage


def channel(python: bool, name: str) -> Column:
    """Return by which of ten channels a clerk sold."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

    if python:
        return F.udf(lambda clerk: int(clerk[6:]) % 10, "int")(name)
    return (F.substring(name, 7, 9).cast("int") % 10).alias(name)


def compute(stage: Stage, read: Read, python: bool) -> DataFrame:
    """Take the five stages one after the other."""
    from benchmarks.jobs import sales

    lines = stage("lines", lambda: sales.lines(read))
    sold = stage("sold", lambda: sales.sold(read, lines, lambda name: channel(python, name)))
    margins = stage("margins", lambda: sales.margins(read, sold))
    months = stage("months", lambda: sales.months(margins))
    return stage("ranks", lambda: sales.ranks(months))


def digest(df: DataFrame) -> str:
    """Return a digest of the rows, whatever their order."""
    rows = sorted(repr(tuple(row)) for row in df.collect())
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def main(arguments: argparse.Namespace) -> None:
    """Run the job and tell its moments, and the digest of its rows."""
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    mark("pyspark imported")
    if arguments.variant.startswith("ours"):
        import airflow_checkpoint_provider.spark  # noqa: F401 - to tell the moment
    from benchmarks.jobs import sales
    from benchmarks.jobs.variants import stages

    mark("imported")
    spark = SparkSession.builder.getOrCreate()
    mark("session")
    with stages(arguments.variant, spark, arguments.root) as stage:
        if arguments.stored:
            schema = StructType.fromJson(json.loads(arguments.schema))
            rows = stage("ranks", lambda: sales.ranks(spark.read.schema(schema).parquet(arguments.stored)))
        else:
            rows = compute(stage, sales.reader(spark, arguments.tables), arguments.python)
        found = digest(rows)
        mark("result")
    result(rows=found, jobs=spark_jobs(spark))
    spark.stop()


if __name__ == "__main__":
    mark("python")
    parser = argparse.ArgumentParser()
    parser.add_argument("variant")
    parser.add_argument("tables")
    parser.add_argument("root")
    parser.add_argument("--python", action="store_true")
    parser.add_argument("--stored")
    parser.add_argument("--schema")
    main(parser.parse_args())
