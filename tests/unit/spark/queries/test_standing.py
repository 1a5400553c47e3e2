"""Queries that the script does not start, and whose sinks cannot be read any more. Runs anywhere."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from py4j.java_gateway import JavaPackage
from py4j.protocol import SUCCESS_PACKAGE, Py4JJavaError
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.coordinator.restore import Restored
from airflow_checkpoint_provider.errors import Declined
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Point
from airflow_checkpoint_provider.protocol.query_records import QueryLocation, QueryRecord
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark.queries.standing import Standing
from airflow_checkpoint_provider.spark.state.states import States
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
    standing = Standing(spark, second.attempt, States("r"))
    (snapshot,) = standing.snapshots((), "queries").values()
    with pytest.raises(Declined, match=f"'old'.*{table}.*The next checkpoint is taken without it"):
        snapshot.write(lambda: None)
    assert standing.snapshots((), "queries") == {}


@pytest.mark.parametrize(
    ("path", "after", "dropped"),
    [
        ("query/old/1-abc", (), True),
        ("query/old/2-abc", (), False),  # it has run beside the checkpoint, perhaps later
        ("query/old/3-abc", (), False),
        ("query/old/1-abc", ("first",), False),  # no checkpoint holds it before it was started beside "first"
    ],
)
def test_query_was_dropped_if_the_restored_checkpoint_would_hold_it(
    path: str, after: tuple[str, ...], dropped: bool
) -> None:
    """The checkpoint was taken by attempt 2, and does not hold the query."""
    query = QueryRecord(uid="old", locations=(QueryLocation(path=path, branch=0, format="parquet", after=after),))
    state = replace(State(), queries=(query,), checkpoints=(cast(Any, SimpleNamespace(id=7, epochs=(2,))),))
    attempt: Any = SimpleNamespace(restored=Restored(point=Point(id=7)), journal=SimpleNamespace(state=state))
    states = States("r")
    standing = Standing(cast(Any, None), attempt, states)
    assert standing.dropped(query) is dropped
    states.dropped.add("old")
    assert standing.dropped(query)
    assert not Standing(cast(Any, None), attempt, States("r", begun_with=frozenset({"old"}))).dropped(query)
