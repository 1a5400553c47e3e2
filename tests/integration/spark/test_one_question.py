"""What the driver asks the JVM in one question is what PySpark asks piece by piece. Runs on Linux."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.spark.attempt.settings import spark_confs
from airflow_checkpoint_provider.spark.stages.leaves import mapping
from airflow_checkpoint_provider.spark.stages.redaction import SECRETS, is_secret

ODD = "(a,b) -> c\nd, (e"


@contextmanager
def context_conf(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Set a conf of the context, which PySpark cannot unset."""
    conf = spark.sparkContext._conf
    conf.set(name, value)
    try:
        yield
    finally:
        conf._jconf.remove(name)  # type: ignore[union-attr]


def test_confs_of_the_context_are_those_that_pyspark_lists(spark: SparkSession) -> None:
    with context_conf(spark, "spark.tests.odd", ODD):
        assert spark_confs(spark) == dict(spark.sparkContext._conf.getAll())
        assert spark_confs(spark)["spark.tests.odd"] == ODD


def test_options_of_a_source_are_those_that_java_lists(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("1\n")
    frame = spark.read.option("comment", "").option("nullValue", ODD).csv(str(tmp_path))
    options = frame._jdf.queryExecution().analyzed().relation().options()
    listed = spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(options)  # type: ignore[union-attr]
    assert mapping(options) == dict(listed)
    assert ODD in mapping(options).values()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        "my.SECRET.x",
        "\u017fecret",
        "to\u212aen",
        "PassWord",
        "access.key",
        "accesskey",
        "access-key",
        "account_Key",
        "keyspace",
        "Credentials",
    ],
)
def test_default_pattern_of_secrets_means_what_it_means_to_java(spark: SparkSession, text: str) -> None:
    pattern = spark._jvm.java.util.regex.Pattern.compile(SECRETS)  # type: ignore[union-attr]
    assert is_secret(spark)(text) == bool(pattern.matcher(text).find())


def test_what_spark_hides_is_a_secret(spark: SparkSession) -> None:
    """Each release has a default of its own. Ours hides what one of them hides."""
    entries = spark._jvm.org.apache.spark.internal.config.ConfigEntry  # type: ignore[union-attr]
    assert {*entries.findEntry("spark.redaction.regex").defaultValueString().split("|")} <= {*SECRETS.split("|")}


def test_another_pattern_of_secrets_is_one_of_java(spark: SparkSession) -> None:
    with context_conf(spark, "spark.redaction.regex", r"\p{javaUpperCase}x"):  # which Python does not know
        assert [is_secret(spark)(text) for text in ("Ax", "ax", "secret")] == [True, False, False]
