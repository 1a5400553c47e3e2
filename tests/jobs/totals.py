"""Turnover of made-up sales: each kind of stage, and values that change between them. Runs in the Spark driver.

``totals.py OUT [ROOT]`` prints a line ``RESULT {...}`` with its rows, its values and what the job says of itself.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import StringType

from airflow_checkpoint_provider.spark import CheckpointedJob, Value

SALES = 20_000
shop_of = F.udf(lambda number: f"shop {number % 7}", StringType())


def sales(spark: SparkSession) -> DataFrame:
    day = F.timestamp_seconds(F.col("id") * 3600)
    return spark.range(SALES).select("id", (F.col("id") % 11).alias("item"), day.alias("at")).where("id % 5 <> 0")


def prices(spark: SparkSession) -> DataFrame:
    return spark.range(11).select(
        F.col("id").alias("item"), (F.col("id") * F.lit("1.25").cast("decimal(9, 2)")).alias("price")
    )


def by_shop(priced: DataFrame) -> DataFrame:
    return priced.groupBy("shop").agg(
        F.sum("price").alias("turnover"), F.count("*").alias("sales"), F.max("at").alias("last")
    )


def main(job: CheckpointedJob, out: str) -> None:
    seen, rows = job.value("seen", []), job.value("rows", 0)

    def count(name: str, df: DataFrame) -> None:
        names = seen.get()
        names.append(name)
        seen.set(names)
        rows.set(rows.get() + df.count())

    clean = job.stage("clean", sales(job.spark))
    count("clean", clean)
    named = job.stage("named", clean.withColumn("shop", shop_of("id")))
    count("named", named)
    priced = job.stage("priced", named.join(prices(job.spark), "item"))
    count("priced", priced)
    job.checkpoint()
    totals = job.stage("totals", lambda: by_shop(priced))
    count("totals", totals)
    totals.write.mode("overwrite").parquet(out)
    tell(job, totals, seen, rows)


def tell(job: CheckpointedJob, totals: DataFrame, *values: Value) -> None:
    result = {
        "rows": sorted(totals.toJSON().collect()),
        "values": [value.get() for value in values],
        "attempt": job.attempt,
        "restored": job.restored.id if job.restored else None,
        "started_at": job.started_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
    print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    out, *root = sys.argv[1:]
    with CheckpointedJob(root=root[0] if root else None) as job:
        main(job, out)
    job.spark.stop()
