"""What a Python function has captured is compared by its value, or named. The frames are built, and never run."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

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


BUILDS = (in_closure, in_inner_function, as_default, in_batches, in_a_subquery, in_partial)
VALUES = [
    (10, 20),
    (1, 1.0),
    (1, True),
    ("10", 10),
    (datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)),
    (Decimal("1.10"), Decimal("1.1")),
    (np.float64(1), np.float64(2)),
    ({"a": [1, (2, None)]}, {"a": [1, (3, None)]}),
    ({"x", "y"}, {"x", "z"}),
]


@pytest.mark.parametrize("build", BUILDS)
def test_another_value_is_another_plan(spark: SparkSession, build: Build) -> None:
    one, same, other = (fingerprint(build(spark, rate), {}) for rate in (10, 10, 20))
    assert one == same
    assert one.digest != other.digest
    assert one.read == other.read, "version= decides about it, as about a literal"
    assert one.unseen == ()
    (name,) = one.captured
    assert difference(one, other) == f"the value of `{name}` in a Python function"


@pytest.mark.parametrize(("value", "other"), VALUES)
def test_plain_values_are_compared(spark: SparkSession, value: Any, other: Any) -> None:
    one, two = fingerprint(in_closure(spark, value), {}), fingerprint(in_closure(spark, other), {})
    assert one.digest != two.digest
    assert one.unseen == two.unseen == ()


class Model:
    """An object that is not plain."""

    def __init__(self, rate: int) -> None:
        self.rate = rate


def test_other_objects_are_named(spark: SparkSession) -> None:
    broadcast = spark.sparkContext.broadcast([1])
    for value in (Model(1), broadcast, [Model(2)]):
        plan = fingerprint(in_closure(spark, value), {})
        assert (plan.captured, plan.unseen) == ({}, ("value of a Python function",))


def test_pickle_that_is_too_large_to_read_is_named(spark: SparkSession) -> None:
    """PySpark broadcasts it."""
    assert fingerprint(in_closure(spark, "ab" * 2**20), {}).unseen == ("an object of a Python function",)


def test_body_is_no_part_of_the_plan(spark: SparkSession) -> None:
    """The application has a digest of it."""
    one, other = (spark.range(3).select(fn.udf(body, "long")("id")) for body in (lambda x: x + 1, lambda x: x + 2))
    assert fingerprint(one, {}) == fingerprint(other, {})


def test_functions_and_modules_are_code(spark: SparkSession) -> None:
    for value in (np, len, Model, datetime.date, test_functions_and_modules_are_code):
        plan = fingerprint(in_closure(spark, value), {})
        assert (plan.captured, plan.unseen) == ({}, ())


def test_nothing_of_a_pickle_runs(spark: SparkSession) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (pytest.fail, ("it was called",))

    assert fingerprint(in_closure(spark, Trap()), {}).unseen == ("value of a Python function",)


def test_secret_is_named_and_not_stored(spark: SparkSession) -> None:
    def plan(api_token: str) -> Plan:
        return fingerprint(spark.range(3).select(fn.udf(lambda x: (x, api_token), "string")("id")), {})

    one, other = plan("of Monday"), plan("of Tuesday")
    assert one == other, "a retry may have another token"
    assert (one.captured, one.unseen) == ({}, ("api_token of a Python function",))
