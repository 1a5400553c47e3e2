"""Ways to draw values, and to number rows by partitions, which two stages of a test share. Runs where Spark runs."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

Drawing = Callable[[DataFrame], DataFrame]
ROWS = 200
SPLIT = "spark.sql.files.maxPartitionBytes"


def write_rows(spark: SparkSession, folder: str) -> None:
    """Write rows in several files, which other confs split otherwise."""
    spark.range(ROWS).withColumn("xs", F.array(*map(F.lit, range(8)))).repartition(4).write.parquet(folder)


DRAWN: dict[str, Drawing] = {
    "rand": lambda df: df.withColumn("d", F.rand()),
    "randn": lambda df: df.withColumn("d", F.randn()),
    "uuid": lambda df: df.withColumn("d", F.expr("uuid()")),
    "shuffle": lambda df: df.withColumn("d", F.shuffle("xs")),
    "uniform": lambda df: df.withColumn("d", F.uniform(0, 1_000_000)),
    "randstr": lambda df: df.withColumn("d", F.randstr(8)),
    "in SQL": lambda df: df.selectExpr("id", "struct(rand() as r, shuffle(xs) as x, uniform(0, 9) as u) as d"),
    "by a condition": lambda df: df.withColumn("d", F.when(F.rand() < 0.5, F.lit("low")).otherwise(F.lit("high"))),
    "sample": lambda df: df.sample(0.5).withColumn("d", F.lit(0)),
    "sampleBy": lambda df: df.sampleBy(F.col("id") % 2, {0: 0.5, 1: 0.5}).withColumn("d", F.lit(0)),
}
BY_PARTITION: dict[str, Drawing] = {
    "monotonically_increasing_id": lambda df: df.withColumn("d", F.monotonically_increasing_id()),
    "spark_partition_id": lambda df: df.withColumn("d", F.spark_partition_id()),
    "rand(5)": lambda df: df.withColumn("d", F.rand(5)),
    "zipWithIndex": lambda df: df.rdd.zipWithIndex().map(lambda row: (row[0]["id"], row[1])).toDF(["id", "d"]),
    "limit": lambda df: df.limit(ROWS // 2).withColumn("d", F.lit(0)),
}
