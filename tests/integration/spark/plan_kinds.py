"""Kinds of plans, built the same way in two drivers; as a script it is the second driver and prints their identities."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as fn
from pyspark.sql.functions import col, lit

from airflow_checkpoint_provider.spark.stages.plan import Plan, fingerprint
from tests.support.drivers import fast_confs

Kind = Callable[[SparkSession, str], DataFrame]


def make_inputs(spark: SparkSession, data: str) -> None:
    days = spark.range(40).select(
        "id", (col("id") % 4).alias("k"), fn.array(col("id"), lit(1)).alias("xs"), lit("a").alias("s")
    )
    for day in ("d1", "d2"):
        days.coalesce(1).write.parquet(f"{data}/in/{day}")
    days.select("id", "s").coalesce(1).write.csv(f"{data}/csv")


def _in(spark: SparkSession, data: str, day: str = "d1") -> DataFrame:
    return spark.read.schema("id long, k long, xs array<long>, s string").parquet(f"{data}/in/{day}")


def _keep(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    return batches


def _drop(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    return (batch[:0] for batch in batches)


def _plus(n: int) -> Any:
    def plus(value: int) -> int:
        return value + n

    return fn.udf(plus, "long", useArrow=False)


def _ctes(spark: SparkSession, data: str) -> DataFrame:
    _in(spark, data).createOrReplaceTempView("va")
    return spark.sql(
        "with a as (select * from va where id > 3), b as (select k, count(*) n from a group by k)"
        " select a.id, b.n from a join b on a.k = b.k where a.id > (select min(id) from a) and a.k in (select k from b where n > 1)"
    )


def _exists(spark: SparkSession, data: str) -> DataFrame:
    _in(spark, data).createOrReplaceTempView("vb")
    return spark.sql("select * from vb o where exists (select 1 from vb i where i.k = o.id)")


def _udf_in_a_subquery(spark: SparkSession, data: str) -> DataFrame:
    spark.udf.register("plus_one", _plus(1))
    _in(spark, data).createOrReplaceTempView("vc")
    return spark.sql(
        "select * from vc where id in (select plus_one(k) from vc) or k > (select max(plus_one(id)) from vc)"
    )


class _One:
    def eval(self) -> Iterator[tuple[int]]:
        yield (1,)


def _table_function(spark: SparkSession, data: str) -> DataFrame:
    spark.udtf.register("just_one", fn.udtf(returnType="a long")(_One))  # type: ignore[arg-type]  # PySpark's own hint is too wide
    return spark.sql("select * from just_one()")


def _self_join(spark: SparkSession, data: str) -> DataFrame:
    a, b = _in(spark, data).alias("a"), _in(spark, data).alias("b")
    return a.join(b, col("a.id") == col("b.k")).groupBy("a.k").agg(fn.sum("b.id").alias("n")).orderBy("n")


def _jdbc(spark: SparkSession, where: str) -> DataFrame:
    derby = {"driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver", "password": "none"}
    return spark.read.jdbc("jdbc:derby:memory:kinds;create=true", "sys.systables", predicates=[where], properties=derby)


def _filter(words: str) -> Kind:
    return lambda spark, data: _in(spark, data).filter(words)


def _select(*words: str) -> Kind:
    return lambda spark, data: _in(spark, data).selectExpr(*words)


def _wide(last: int) -> Kind:
    return _select(*(f"id + {i} as c{i}" for i in range(59)), f"id + {last} as c59")


SAFE: dict[str, Kind] = {
    "filter": _filter("k >= 2"),
    "other literal": _filter("k >= 3"),
    "other path": lambda spark, data: _in(spark, data, "d2").filter("k >= 2"),
    "glob": lambda spark, data: _in(spark, data, "d*").filter("k >= 2"),
    "alias x": _select("id as x"),
    "alias y": _select("id as y"),
    "in list": _filter(f"id in ({', '.join(map(str, range(200)))})"),
    "in list, last": _filter(f"id in ({', '.join(map(str, range(199)))}, 777)"),
    "wide": _wide(59),
    "wide, last": _wide(60),
    "looks like id 5": _filter("s = 'no #5'"),
    "looks like id 6": _filter("s = 'no #6'"),
    "self-join": _self_join,
    "broadcast": lambda spark, data: _in(spark, data).join(fn.broadcast(_in(spark, data, "d2")), "id"),
    "window": lambda spark, data: _in(spark, data).withColumn(
        "r", fn.row_number().over(Window.partitionBy("k").orderBy("id"))
    ),
    "pivot": lambda spark, data: _in(spark, data).groupBy("k").pivot("s", ["a", "b"]).count(),
    "cube": lambda spark, data: _in(spark, data).cube("k", "s").count(),
    "union": lambda spark, data: _in(spark, data).unionByName(_in(spark, data, "d2")).dropDuplicates(["k"]),
    "explode": lambda spark, data: _in(spark, data).select(fn.explode("xs").alias("x")),
    "repartition 2": lambda spark, data: _in(spark, data).repartition(2),
    "repartition 7": lambda spark, data: _in(spark, data).repartition(7),
    "observe": lambda spark, data: _in(spark, data).observe(Observation(), fn.count(lit(1)).alias("n")),
    "exists": _exists,
    "lambda 1": lambda spark, data: _in(spark, data).select(fn.transform("xs", lambda x: x + 1).alias("y")),
    "lambda 2": lambda spark, data: _in(spark, data).select(fn.transform("xs", lambda x: x + 2).alias("y")),
    "times": _select("now() as n", "to_timestamp(s) as t", "monotonically_increasing_id() as m"),
    "rand 5": _select("rand(5) as r"),
    "rand 6": _select("rand(6) as r"),
    "long number 1": _select("rand(5) as r", "1234567890123 as n"),
    "long number 2": _select("rand(5) as r", "1234567890124 as n"),
    "ctes": _ctes,
    "range": lambda spark, data: spark.range(10),
    "seeds": _select("rand() as r", "uuid() as u", "shuffle(xs) as s", "uniform(0, 9) as f", "randstr(5) as t"),
    "recursion": lambda spark, data: spark.sql(
        "with recursive r(n) as (select 1 union all select n + 1 from r where n < 5) select * from r"
    ),
    "sample": lambda spark, data: _in(spark, data).sample(0.5),
    "csv ,": lambda spark, data: spark.read.schema("a long, b string").csv(f"{data}/csv", sep=","),
    "csv ;": lambda spark, data: spark.read.schema("a long, b string").csv(f"{data}/csv", sep=";"),
    "jdbc 1": lambda spark, data: _jdbc(spark, "1 = 1"),
    "jdbc 2": lambda spark, data: _jdbc(spark, "1 = 0"),
}
LOCAL: dict[str, Kind] = {
    "pandas 1": lambda spark, data: spark.createDataFrame(pd.DataFrame({"a": [1, 2]})),
    "pandas 2": lambda spark, data: spark.createDataFrame(pd.DataFrame({"a": [1, 3]})),
    "values 1": lambda spark, data: spark.sql("values (1, 'x')"),
    "values 2": lambda spark, data: spark.sql("values (1, 'y')"),
    "nested pandas": lambda spark, data: spark.createDataFrame(
        pd.DataFrame({"a": [[1, 2]], "b": [{"k": [3]}]}), "a array<long>, b map<string, array<long>>"
    ),
    "nested values": lambda spark, data: spark.sql("values (array(1, 2), map('k', struct(3, 'x')))"),
    "bytes 1": lambda spark, data: spark.sql("values (X'00ff', array(X'01'), map('k', struct(X'02')))"),
    "bytes 2": lambda spark, data: spark.sql("values (X'00ff', array(X'01'), map('k', struct(X'03')))"),
    "transposed 1": lambda spark, data: spark.sql("values (1, 2)").transpose(),
    "transposed 2": lambda spark, data: spark.sql("values (1, 3)").transpose(),
}
CODE: dict[str, Kind] = {
    "udf 1": lambda spark, data: _in(spark, data).select(_plus(1)("id").alias("p")),
    "udf 2": lambda spark, data: _in(spark, data).select(_plus(2)("id").alias("p")),
    "udf in a subquery": _udf_in_a_subquery,
    "table function": _table_function,
    "mapInPandas": lambda spark, data: _in(spark, data).mapInPandas(_keep, "id long, k long, xs array<long>, s string"),
    "mapInPandas, other body": lambda spark, data: _in(spark, data).mapInPandas(
        _drop, "id long, k long, xs array<long>, s string"
    ),
    "applyInPandas": lambda spark, data: (
        _in(spark, data).groupBy("k").applyInPandas(lambda batch: batch[["k"]], "k long")
    ),
    "program": lambda spark, data: spark.sql("select transform(id) using 'cat' as (a string) from range(3)"),
    "Java's method": _select("id + length(try_reflect('java.lang.System', 'lineSeparator')) as i"),
    "Java's method, by its other name": _filter("s = java_method('java.lang.System', 'lineSeparator')"),
    "rdd": lambda spark, data: spark.sparkContext.parallelize([(1,)], 1).toDF("a long"),
    "createDataFrame": lambda spark, data: spark.createDataFrame([(1,)], "a long"),
}
KINDS = SAFE | LOCAL | CODE


def identities(spark: SparkSession, data: str) -> dict[str, Plan]:
    return {name: fingerprint(kind(spark, data), {}) for name, kind in KINDS.items()}


def _shift(spark: SparkSession, data: str) -> None:
    """Move every counter that plans are numbered from."""
    _in(spark, data).filter(col("id") > 1).collect()
    for name in ("wide", "self-join", "ctes", "lambda 1", "udf 1", "observe"):
        KINDS[name](spark, data)


def main(data: str, out: str) -> None:
    builder = SparkSession.builder.master("local[1]")
    for name, value in (fast_confs(Path(out).parent) | {"spark.sql.shuffle.partitions": "9"}).items():
        builder = builder.config(name, value)
    spark = builder.config("spark.sql.adaptive.enabled", "false").getOrCreate()
    _shift(spark, data)
    Path(out).write_text(json.dumps({name: plan.to_json() for name, plan in identities(spark, data).items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
