"""The line of the log that says what changed between two plans."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.functions import col, lit

from airflow_checkpoint_provider.spark.stages import parquet_files
from airflow_checkpoint_provider.spark.stages.plan import Plan, fingerprint
from airflow_checkpoint_provider.spark.stages.plan_diff import difference

SCHEMA = "id long, day date, s string"


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    root = str(tmp_path_factory.mktemp("differences-in-paths-that-are-long-enough-to-be-cut"))
    rows = spark.range(3).select("id", lit(datetime.date(2026, 11, 20)).alias("day"), lit("a").alias("s")).coalesce(1)
    for day in (19, 20, 21):
        rows.write.parquet(f"{root}/in/day=2026-11-{day}")
    return root


@pytest.fixture
def rows(spark: SparkSession, folder: str) -> DataFrame:
    return spark.read.schema(SCHEMA).parquet(f"{folder}/in/day=2026-11-20")


def _between(old: DataFrame, new: DataFrame) -> str:
    line = difference(fingerprint(old, {}), fingerprint(new, {}))
    assert len(line) <= 160
    assert "\n" not in line
    return line


def test_difference_names_a_literal(rows: DataFrame) -> None:
    old, new = (rows.filter(col("day") >= day).select("id", "s") for day in ("2026-11-20", "2026-11-21"))
    assert _between(old, new) == "`day >= 2026-11-20` → `2026-11-21`"


def test_difference_names_a_literal_deep_in_a_longer_plan(rows: DataFrame) -> None:
    def plan(least: int) -> DataFrame:
        kept = rows.filter((col("id") > least) & (col("s") != "x"))
        return kept.join(rows.groupBy("s").count(), "s").withColumn("n", col("count") + 1).orderBy("n")

    assert _between(plan(1), plan(2)) == "`id > 1` → `2`"


def test_difference_cuts_a_long_literal(rows: DataFrame) -> None:
    line = _between(rows.filter(col("s") == "x" * 500), rows.filter(col("s") == "y" * 500))
    assert line.startswith("`s = xxx")
    assert "… → `yyy".replace("… →", "…` →") in line


def test_difference_names_an_entry_at_the_end_of_a_long_list(rows: DataFrame) -> None:
    assert _between(rows.filter(col("id").isin(list(range(200)))), rows.filter(col("id").isin([*range(199), 777]))) == (
        "`199` → `777`"
    )


def test_difference_names_an_alias(rows: DataFrame) -> None:
    assert _between(rows.select((col("id") * 2).alias("x")), rows.select((col("id") * 2).alias("y"))) == "`AS x` → `y`"


def test_difference_names_an_added_or_removed_step(rows: DataFrame) -> None:
    more = rows.filter("s = 'a'")
    assert _between(rows, more) == "`Filter (s = a)` added"
    assert _between(more, rows) == "`Filter (s = a)` removed"


def test_difference_names_paths(spark: SparkSession, folder: str) -> None:
    days = [f"{folder}/in/day=2026-11-{day}" for day in (19, 20, 21)]

    def over(*paths: str) -> DataFrame:
        return spark.read.schema(SCHEMA).parquet(*paths)

    assert "day=2026-11-20` → `…" in _between(over(days[1]), over(days[2]))
    assert _between(over(days[1]), over(days[2])).endswith("day=2026-11-21`")
    added = _between(over(days[1]), over(*days))
    assert added.startswith("its input: `…")
    assert added.endswith("day=2026-11-19` added and 1 more")
    assert _between(over(*days), over(*days[:2])).endswith("day=2026-11-21` removed")


def test_difference_names_an_option_without_its_value(spark: SparkSession, folder: str) -> None:
    old, new = (spark.read.schema("a string").csv(f"{folder}/in", sep=sep) for sep in (";", "|"))
    assert _between(old, new) == "an option of its input (sep)"


def test_difference_names_local_rows(spark: SparkSession) -> None:
    assert _between(spark.sql("values (1)"), spark.sql("values (2)")) == "the rows that the driver gives to it"


def test_difference_names_a_conf(spark: SparkSession, rows: DataFrame) -> None:
    old = fingerprint(rows, {})
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        line = difference(old, fingerprint(rows, {}))
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    assert line.startswith("spark.sql.session.timeZone: `")
    assert line.endswith("→ `Asia/Tokyo`")


def test_difference_names_type_and_nullability_of_a_column(spark: SparkSession, folder: str) -> None:
    old, new = (spark.read.schema(f"id {kind}").parquet(f"{folder}/in") for kind in ("long", "int"))
    assert _between(old, new) == "column `id`, type: `long` → `integer`"
    strict = spark.range(1).select(col("id").alias("a"))
    loose = spark.range(1).select(fn.nullif("id", lit(7)).alias("a"))
    assert _between(strict, loose).startswith("`")


def test_difference_names_a_stage_that_was_computed_again(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    uri = f"file://{tmp_path_factory.mktemp('stage')}/1-aa"
    written = parquet_files.write(spark.range(3), uri, codec="lz4_raw")
    frame = parquet_files.read(spark, uri, parquet_files.count_rows(spark, written, {}), written.schema)
    plans = [fingerprint(frame, {uri: stage}) for stage in (("clean", "1-aa"), ("clean", "2-bb"), ("raw", "1-aa"))]
    assert difference(plans[0], plans[1]) == "its input, stage 'clean', was computed again"
    assert difference(plans[0], plans[2]) == "its input: stage `clean` → `raw`"


def test_difference_counts_lines_if_no_rule_matches(spark: SparkSession, rows: DataFrame) -> None:
    plan = fingerprint(rows, {})

    def with_text(exact: str) -> Plan:
        return dataclasses.replace(plan, text=f"{plan.text.partition('exact')[0]}exact\n{exact}")

    assert difference(with_text("a\nb"), with_text("a\nc\nd")) == "the plan differs (2 lines)"


# -- what the session hides ----------------------------------------------------------------------------------------------


@pytest.fixture
def redacting(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.redaction.string.regex", "(secret|password)-.*")  # greedy: to the end of the line
    yield
    spark.conf.unset("spark.sql.redaction.string.regex")


def _secrets(rows: DataFrame, key: str) -> list[DataFrame]:
    """Frames that hold a secret as a literal, an alias, the comment of a column and in a list."""
    return [
        rows.where(f"s <> '{key}'"),
        rows.select(lit(1).alias(key)),
        rows.withMetadata("s", {"comment": key}),
        rows.select(fn.lit([key, "other"]).alias("keys")),
    ]


@pytest.mark.usefixtures("redacting")
def test_redacted_text_is_in_no_plan_but_in_its_digest(rows: DataFrame) -> None:
    old, new = (
        [fingerprint(frame, {}) for frame in _secrets(rows, f"secret-{key}")] for key in ("Alpha-123", "Bravo-123")
    )
    for before, after in zip(old, new, strict=True):
        assert before.digest != after.digest
        for plan in (before, after):
            assert not any(key in str(plan.to_json()) for key in ("Alpha", "Bravo"))
        assert difference(before, after) == "a text that the session's redaction hides"


@pytest.mark.usefixtures("redacting")
def test_difference_that_is_not_hidden_is_named_beside_hidden_texts(rows: DataFrame) -> None:
    old, new = (rows.where("s <> 'password-abc'").where(f"id > {least}") for least in (1, 2))
    assert _between(old, new) == "`id > 1` → `2`"


def test_redacted_path_and_value_of_a_conf_are_in_no_plan(spark: SparkSession, folder: str) -> None:
    spark.conf.set("spark.sql.redaction.string.regex", "2026-11-2\\d")
    spark.conf.set("spark.sql.catalog.books.url", "jdbc:postgresql://books?password=Alpha")
    try:
        plans = [
            fingerprint(spark.read.schema(SCHEMA).parquet(f"{folder}/in/day=2026-11-{day}"), {}) for day in (20, 21)
        ]
    finally:
        spark.conf.unset("spark.sql.redaction.string.regex")
        spark.conf.unset("spark.sql.catalog.books.url")
    assert len({plan.digest for plan in plans}) == len({plan.read for plan in plans}) == 2
    assert not any(text in str(plan.to_json()) for text in ("2026-11-2", "Alpha") for plan in plans)
    assert difference(*plans) == "a text that the session's redaction hides"
