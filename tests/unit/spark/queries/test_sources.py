"""By which format Spark's own plan names the sources of a query. Runs anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_checkpoint_provider.spark.queries.sources.sources import FILES, leaves

ICEBERG_TABLE, RATE_TABLE = "org.apache.iceberg.spark.source.SparkTable", "org.apache.spark.sql.RateStreamTable"


class ScalaSeq:
    """A sequence or a map of Scala's."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.size, self.apply, self.toList = (lambda: len(items)), items.__getitem__, lambda: self


def java_class(name: str) -> Any:
    return SimpleNamespace(getSimpleName=lambda: name.rpartition(".")[2], getName=lambda: name)


def relation(kind: str, source: str, table: str = "") -> Any:
    """Return a leaf of a plan. Only one of the newer kind has a table."""
    found = SimpleNamespace(getClass=lambda: java_class(kind), sourceName=lambda: source, isStreaming=lambda: True)
    found.dataSource = lambda: SimpleNamespace(options=lambda: ScalaSeq(()))
    if table:
        found.table = lambda: SimpleNamespace(getClass=lambda: java_class(table))
    return found


@pytest.mark.parametrize(
    ("kind", "source", "table", "known"),
    [
        ("StreamingRelationV2", "iceberg", ICEBERG_TABLE, "iceberg"),
        ("StreamingRelationV2", "lake.db.Rows", ICEBERG_TABLE, "iceberg"),  # readStream.table
        ("StreamingRelationV2", "rate", RATE_TABLE, "rate"),
        ("StreamingRelation", "delta", "", "delta"),
        ("StreamingRelation", "FileSource[file:/in]", "", FILES),
        ("StreamingExecutionRelation", "delta", "", "StreamingExecutionRelation"),
    ],
)
def test_format_of_a_source(kind: str, source: str, table: str, known: str) -> None:
    plan = SimpleNamespace(collectLeaves=lambda: ScalaSeq([relation(kind, source, table)]))
    execution = SimpleNamespace(analyzed=lambda: plan)
    writer = SimpleNamespace(_df=SimpleNamespace(_jdf=SimpleNamespace(queryExecution=lambda: execution)))
    assert [leaf.format for leaf in leaves(cast(Any, writer))] == [known]
