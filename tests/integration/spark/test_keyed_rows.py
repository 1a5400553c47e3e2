"""The rows of a table by key after changes that are not stored yet. tests/integration/runtime/test_keyed.py stores them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.errors import DuplicateKeys, WrongUse
from airflow_checkpoint_provider.spark.loops.keyed import OpenedKeyed
from airflow_checkpoint_provider.spark.loops.keyed_files import LaidOut

Make = Callable[[SparkSession], DataFrame]


def table(spark: SparkSession, *changes: tuple[str, DataFrame], stored: DataFrame | None = None) -> OpenedKeyed:
    """Return a table after changes of what is stored; None: nothing is stored."""
    opened = OpenedKeyed.of("t", "k", None, 128, spark)
    opened.df, opened.at = stored, "state/t/1-a" if stored else None
    for method, df in changes:
        getattr(opened, method)(opened.df, df)
    return opened


def stored_rows(opened: OpenedKeyed, df: DataFrame) -> list[tuple[Any, ...]]:
    """Return the rows of ``df`` as they are written. Raises ``DuplicateKeys``."""
    laid_out = LaidOut(opened, df)
    rows = [tuple(row) for row in laid_out.df.collect()]
    laid_out.check()
    return sorted(rows, key=lambda row: str(row[0]))


def times(df: DataFrame, length: int) -> int:
    """Return how often the plan has the rows that ``spark.range(length)`` makes."""
    return str(df._jdf.queryExecution().optimizedPlan().toString()).count(f"Range (0, {length},")


def ranged(spark: SparkSession, length: int) -> DataFrame:
    return spark.range(length).selectExpr("double(id) AS k", "int(id) AS n")


@pytest.mark.parametrize("methods", [["upsert"], ["replace"], ["delete"], ["upsert", "upsert", "delete", "upsert"]])
@pytest.mark.parametrize("is_stored", [True, False])
def test_each_change_is_in_the_plan_once(spark: SparkSession, methods: list[str], is_stored: bool) -> None:
    base = ranged(spark, 100)
    changes = [(method, ranged(spark, 200 + number)) for number, method in enumerate(methods)]
    opened = table(spark, *changes, stored=base) if is_stored else table(spark, ("upsert", base), *changes)
    written = [df for df in (opened.df, opened.changes) if df is not None]
    assert len(written) == 1 + (is_stored and methods != ["replace"])
    for df in written:
        found = [times(LaidOut(opened, df).df, 200 + number) for number in range(len(methods))]
        assert found == [1] * len(methods)


def test_rows_that_spark_draws_are_drawn_once(spark: SparkSession) -> None:
    """Spark spreads the rows over partitions by their columns, so it draws others where it needs the key alone."""
    rows = spark.range(40).selectExpr("id AS k", "md5(string(id)) AS payload", "false AS picked")
    drawn = rows.repartition(4).sample(0.5, seed=1).selectExpr("k", "payload", "true AS picked")
    opened = table(spark, ("upsert", drawn), stored=rows)
    assert opened.df
    found = stored_rows(opened, opened.df)
    assert [row[0] for row in sorted(found)] == list(range(40))
    assert {row[2] for row in found} == {True, False}


def test_all_rows_are_shuffled_by_key_and_to_their_files(spark: SparkSession) -> None:
    rows = [spark.range(length).selectExpr("id AS k", "string(id) AS n") for length in (100, 7, 8)]
    opened = table(spark, ("upsert", rows[1]), ("upsert", rows[2]), stored=rows[0])
    assert opened.df
    plan = str(LaidOut(opened, opened.df).df._jdf.queryExecution().executedPlan().toString())
    assert plan.count("Exchange hashpartitioning") == 2


def put(text: str) -> Make:
    return lambda spark: spark.sql(f"SELECT double(k) AS k, n FROM VALUES {text} AS t(k, n)")


STORED = put("(1D, 1), (0D, 2), (double('NaN'), 3), (null, 4)")
CASES: dict[str, tuple[list[tuple[str, Make]], list[tuple[Any, int]]]] = {
    "each key is any other of its value": (
        [("upsert", put("(-0.0D, 20), (double('NaN'), 30), (null, 40), (2D, 50)"))],
        [(0.0, 20), (1.0, 1), (2.0, 50), (math.nan, 30), (None, 40)],
    ),
    "each key is taken out": ([("delete", put("(-0.0D, 0), (double('NaN'), 0), (null, 0), (2D, 0)"))], [(1.0, 1)]),
    "put in again": (
        [("delete", put("(1D, 0), (0D, 0)")), ("upsert", put("(1D, 9)")), ("delete", put("(null, 0), (null, 0)"))],
        [(1.0, 9), (math.nan, 3)],
    ),
    "replaced": (
        [("upsert", put("(5D, 5)")), ("replace", put("(6D, 6), (7D, 7)")), ("delete", put("(6D, 0)"))],
        [(7.0, 7)],
    ),
    "put in once more after it was there twice": (
        [
            ("upsert", put("(8D, 1), (8D, 2)")),
            ("upsert", put("(8D, 3)")),
            ("delete", put("(0D, 0), (double('NaN'), 0), (null, 0)")),
        ],
        [(1.0, 1), (8.0, 3)],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_newest_change_of_a_key_counts(spark: SparkSession, case: str) -> None:
    changes, expected = CASES[case]
    opened = table(spark, *((method, make(spark)) for method, make in changes), stored=STORED(spark))
    assert opened.df
    assert [(str(k), n) for k, n in stored_rows(opened, opened.df)] == sorted((str(k), n) for k, n in expected)


@pytest.mark.parametrize("method", ["upsert", "replace"])
def test_key_that_a_change_has_twice_is_refused(spark: SparkSession, method: str) -> None:
    """Reads before the barrier show both, so that no later change hides one of them."""
    opened = table(
        spark, (method, put("(1D, 7), (1D, 8)")(spark)), ("upsert", put("(2D, 9)")(spark)), stored=STORED(spark)
    )
    assert opened.df
    assert sorted(n for (n,) in opened.df.where("k = 1").select("n").collect()) == [7, 8]
    for df in (opened.df, opened.changes):
        if df is not None:
            with pytest.raises(DuplicateKeys):
                stored_rows(opened, df)


def test_new_columns_are_null_in_the_other_rows(spark: SparkSession) -> None:
    wider = put("(1D, 7)")(spark).selectExpr("*", "map('a', 1) AS m")
    opened = table(
        spark, ("delete", put("(0D, 0), (double('NaN'), 0)")(spark)), ("upsert", wider), stored=STORED(spark)
    )
    assert opened.df
    assert stored_rows(opened, opened.df) == [(1.0, 7, {"a": 1}), (None, 4, None)]
    assert opened.changes is not None
    assert opened.changes.columns == ["k", "__checkpoint_deleted", "n", "m"]


@pytest.mark.parametrize("of", ["bigint", "array<struct<a:int,b:string>>", "decimal(12,3)", "map<string,timestamp>"])
def test_column_that_is_missing_may_be_given_as_the_error_says(spark: SparkSession, of: str) -> None:
    stored = spark.sql(f"SELECT 1D AS k, CAST(null AS {of}) AS n")
    without = spark.sql("SELECT 2D AS k")
    with pytest.raises(WrongUse, match=re.escape(f'give the column, or F.lit(None).cast("{of}")')):
        table(spark, ("upsert", without), stored=stored)
    opened = table(spark, ("upsert", without.withColumn("n", F.lit(None).cast(of))), stored=stored)
    assert opened.df
    assert opened.df.count() == 2
