"""What a Python function has captured is compared by its value, or named. The frames are built, and never run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from airflow_checkpoint_provider.spark.stages.captured import WHOLE
from airflow_checkpoint_provider.spark.stages.plan import Plan, fingerprint
from airflow_checkpoint_provider.spark.stages.plan_diff import difference

Build = Callable[[SparkSession, Any], DataFrame]


def in_closure(spark: SparkSession, value: Any) -> DataFrame:
    return spark.range(3).select(fn.udf(lambda x: (x, value), "string")("id"))


def in_inner_function(spark: SparkSession, value: Any) -> DataFrame:
    def inner(x: int) -> Any:
        return x, value

    return spark.range(3).select(fn.udf(lambda x: (inner(x), 1), "string")("id"))


def as_default(spark: SparkSession, value: Any) -> DataFrame:
    def function(x: int, value: Any = value) -> Any:
        return x, value

    return spark.range(3).select(fn.udf(function, "string", useArrow=False)("id"))


def in_batches(spark: SparkSession, value: Any) -> DataFrame:
    def function(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        return (batch.assign(value=value) for batch in batches)

    return spark.range(3).mapInPandas(function, "id long, value string")


def in_a_subquery(spark: SparkSession, value: Any) -> DataFrame:
    spark.udf.register("captures", lambda x: (x, value), "string")
    return spark.sql("select 1 where 'a' < (select max(captures(id)) from range(3))")


def in_partial(spark: SparkSession, value: Any) -> DataFrame:
    return spark.range(3).select(fn.udf(functools.partial(max, value), "string", useArrow=False)("id"))


BUILDS = {
    in_closure: "value",
    in_inner_function: "value",
    as_default: "value",
    in_batches: "value",
    in_a_subquery: "value",
    in_partial: "partial",
}


@pytest.mark.parametrize(("build", "name"), BUILDS.items())
def test_another_value_is_another_plan(spark: SparkSession, build: Build, name: str) -> None:
    one, same, other = (fingerprint(build(spark, rate), {}) for rate in (10, 10, 20))
    assert one == same
    assert one.digest != other.digest
    assert one.read == other.read, "version= decides about it, as about a literal"
    assert one.unseen == ()
    assert difference(one, other) == f"the value of `{name}` in a Python function"


def test_values_belong_to_their_functions(spark: SparkSession) -> None:
    def rated(*rates: int) -> DataFrame:
        functions = (fn.udf(lambda x, rate=rate: x * rate, "long") for rate in rates)
        return spark.range(3).select(*(function("id").alias(f"c{number}") for number, function in enumerate(functions)))

    plans = [fingerprint(rated(*rates), {}) for rates in ((10, 20, 10), (20, 10, 10), (10, 20, 20))]
    assert len({plan.digest for plan in plans}) == 3
    assert difference(plans[0], plans[1]) == "the value of `rate` in a Python function"


class Model:
    """An object that is not plain."""

    def __init__(self, rate: int) -> None:
        self.rate = rate


def test_other_objects_are_named(spark: SparkSession) -> None:
    broadcast = spark.sparkContext.broadcast([1])
    for value in (Model(1), broadcast, [Model(2)]):
        plan = fingerprint(in_closure(spark, value), {})
        assert ([*plan.captured], plan.unseen) == ([WHOLE], ("value of a Python function",))


def test_pickle_that_is_too_large_to_read_is_named(spark: SparkSession) -> None:
    """PySpark broadcasts it."""
    assert fingerprint(in_closure(spark, "ab" * 2**20), {}).unseen == ("an object of a Python function",)


def test_body_is_no_part_of_the_plan(spark: SparkSession) -> None:
    """The application has a digest of it."""
    one, other = (spark.range(3).select(fn.udf(body, "long")("id")) for body in (lambda x: x + 1, lambda x: x + 2))
    assert fingerprint(one, {}) == fingerprint(other, {})


def test_secret_is_named_and_not_stored(spark: SparkSession) -> None:
    def plan(api_token: str) -> Plan:
        return fingerprint(spark.range(3).select(fn.udf(lambda x: (x, api_token), "string")("id")), {})

    one, other = plan("of Monday"), plan("of Tuesday")
    assert one == other, "a retry may have another token"
    assert ([*one.captured], one.unseen) == ([WHOLE], ("api_token of a Python function",))
