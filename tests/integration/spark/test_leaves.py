"""The inputs of a plan's leaves: which options count, and which sources are code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.spark.java_classes import java_class
from airflow_checkpoint_provider.spark.stages.leaves import Leaves
from airflow_checkpoint_provider.spark.stages.plan import Plan, fingerprint


@pytest.fixture
def files(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Plan]:
    folder = str(tmp_path_factory.mktemp("files") / "in")
    spark.range(1).write.parquet(folder)
    return lambda **options: fingerprint(spark.read.options(**options).parquet(folder), {})


@pytest.mark.parametrize(
    "name", ["temporary_aws_session_token", "fs.s3a.secret.key", "fs.s3a.access-key", "sfPassword", "awsAccessKey"]
)
def test_secret_among_the_options_does_not_count(files: Callable[..., Plan], name: str) -> None:
    assert files(**{name: "one"}) == files(**{name: "other"})


@pytest.mark.parametrize("name", ["user", "mergeSchema", "keyspace"])
def test_other_option_counts(files: Callable[..., Plan], name: str) -> None:
    assert files(**{name: "true"}).read != files(**{name: "false"}).read


def test_path_of_files_counts_once(spark: SparkSession, files: Callable[..., Plan]) -> None:
    (leaf,) = files().leaves
    assert leaf.keys() == {"leaf", "paths"}


def test_user_of_jdbc_counts_and_the_password_does_not(spark: SparkSession) -> None:
    """The user is the default schema of many databases."""

    def read(user: str, password: str) -> str:
        derby = {"driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver", "user": user, "password": password}
        table = spark.read.jdbc("jdbc:derby:memory:leaves;create=true", "sys.systables", properties=derby)
        return fingerprint(table, {}).read

    assert read("staging", "one") == read("staging", "other")
    assert read("staging", "one") != read("prod", "one")


def test_source_whose_options_nobody_sees_is_code(spark: SparkSession) -> None:
    """Kafka's relation, for example: its text has no servers."""
    relation = java_class(spark, "java.util.ArrayList")()
    assert Leaves(spark, {}).relation(relation) == {"leaf": "ArrayList", "code": True}


@pytest.mark.parametrize(("name", "code"), [("java.util.ArrayList", True), ("org.apache.spark.SparkConf", False)])
def test_class_that_the_job_brings_is_code(spark: SparkSession, name: str, code: bool) -> None:
    java_object: Any = java_class(spark, name)()
    assert ("code" in Leaves(spark, {}).code_of(java_object)) == code
