"""Queries that the script does not start, and whose sinks cannot be read any more. Runs anywhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from py4j.java_gateway import JavaPackage
from py4j.protocol import SUCCESS_PACKAGE, Py4JJavaError
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.errors import Declined
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.spark.queries.standing import Standing
from airflow_checkpoint_provider.storage import MemoryStore
from tests.unit.spark.driver import Driver


class WithoutThePackage:
    """A JVM that has neither Delta nor Iceberg: Py4J takes the names of their classes for packages."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("org.apache.spark.sql.delta", "org.apache.iceberg")):
            return JavaPackage(name, mock.Mock(send_command=lambda _: SUCCESS_PACKAGE), "j")
        java = mock.MagicMock()
        java.currentThread().getContextClassLoader().loadClass.side_effect = not_found()
        return java


def not_found() -> Py4JJavaError:
    error = Py4JJavaError.__new__(Py4JJavaError)
    Exception.__init__(error, "ClassNotFoundException")
    return error


@pytest.mark.parametrize("table", ["delta", "iceberg"])
def test_query_whose_package_was_removed_with_it_costs_no_checkpoint_but_one(table: str) -> None:
    first = Driver(MemoryStore(), 1)
    first.attempt.writer.append(
        c.LocateQuery(
            uid="old", path="query/old/1-abc", taken_from=None, begun=-1, committed=-1, epoch=1,
            sink="file:/lake/old", format=table,
        )
    )  # fmt: skip
    second = Driver(first.coordinator.store, 2)
    spark = cast(SparkSession, mock.MagicMock(version="4.2.0", _jvm=WithoutThePackage()))
    standing = Standing(spark, second.attempt, cast(Any, SimpleNamespace(snapshots={}, run="r")))
    (snapshot,) = standing.snapshots((), "queries").values()
    with pytest.raises(Declined, match=f"'old'.*{table}.*The next checkpoint is taken without it"):
        snapshot.write(lambda: None)
    assert standing.snapshots((), "queries") == {}
