"""Five stages over the tables of TPC-H: filter, joins, aggregation, window. Runs in the Spark driver."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

STAGES = ("lines", "sold", "margins", "months", "ranks")
BEST = 3  # customers that are shown of each nation and month
Read = Callable[[str], DataFrame]


def reader(spark: SparkSession, folder: str) -> Read:
    """Return the function that reads a table of TPC-H."""
    return lambda table: spark.read.parquet(f"{folder}/{table}")


def lines(read: Read) -> DataFrame:
    """Return the lines of orders that were kept, with their revenue."""
    revenue = F.col("l_extendedprice") * (1 - F.col("l_discount"))
    return (
        read("lineitem")
        .where("l_returnflag <> 'R' and l_shipdate >= date'1993-01-01'")
        .select("l_orderkey", "l_partkey", "l_suppkey", "l_quantity", revenue.cast("decimal(18, 2)").alias("revenue"))
    )


def sold(read: Read, lines: DataFrame, channel: Callable[[str], Column]) -> DataFrame:
    """Return the lines with the month, nation and channel of their orders. ``channel`` computes from the name of a column."""
    orders = read("orders").select(
        F.col("o_orderkey").alias("l_orderkey"),
        F.col("o_custkey").alias("customer"),
        F.trunc("o_orderdate", "month").alias("month"),
        channel("o_clerk").alias("channel"),
    )
    customers = read("customer").select(F.col("c_custkey").alias("customer"), F.col("c_nationkey").alias("n_nationkey"))
    nations = read("nation").select("n_nationkey", F.col("n_name").alias("nation"))
    of_nations = customers.join(nations, "n_nationkey").drop("n_nationkey")
    return lines.join(orders, "l_orderkey").join(of_nations, "customer").drop("l_orderkey")


def margins(read: Read, sold: DataFrame) -> DataFrame:
    """Return what each line costs and brings."""
    supplied = read("partsupp").select(
        F.col("ps_partkey").alias("l_partkey"), F.col("ps_suppkey").alias("l_suppkey"), "ps_supplycost"
    )
    cost = (F.col("l_quantity") * F.col("ps_supplycost")).cast("decimal(18, 2)")
    priced = sold.join(supplied, ["l_partkey", "l_suppkey"]).withColumn("margin", F.col("revenue") - cost)
    return priced.select("nation", "customer", "channel", "month", "revenue", "margin")


def months(margins: DataFrame) -> DataFrame:
    """Return the sums of each customer, channel and month."""
    sums = (F.sum("revenue").alias("revenue"), F.sum("margin").alias("margin"), F.count("*").alias("lines"))
    return margins.groupBy("nation", "customer", "channel", "month").agg(*sums)


def ranks(months: DataFrame) -> DataFrame:
    """Return the best customers of each nation and month, with the sum of all their months until then."""
    order = [F.desc("margin"), F.asc("customer"), F.asc("channel")]
    of_month = Window.partitionBy("nation", "month").orderBy(*order)
    until_then = Window.partitionBy("customer", "channel").orderBy("month")
    return (
        months.withColumn("total", F.sum("margin").over(until_then))
        .withColumn("rank", F.row_number().over(of_month))
        .where(F.col("rank") <= BEST)
    )
