"""Iceberg tables whose snapshots expire, and the errors of a catalog, played without Spark. Runs anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JJavaError

from airflow_checkpoint_provider.errors import CheckpointError, Damaged, SinkMoved, WrongUse
from airflow_checkpoint_provider.location.files import Location, Position
from airflow_checkpoint_provider.protocol.query_details import ICEBERG, QueryDetail
from airflow_checkpoint_provider.spark.queries.sinks.iceberg import CLOCKS, IcebergStreamSink
from airflow_checkpoint_provider.spark.queries.sinks.iceberg_table import (
    BATCH,
    QUERY,
    IcebergSnapshot,
    IcebergTable,
    metadata_in,
    typed_errors,
)
from airflow_checkpoint_provider.spark.queries.sources import iceberg_sources
from airflow_checkpoint_provider.spark.queries.sources.iceberg_sources import IcebergSources
from airflow_checkpoint_provider.spark.queries.sources.reading import Reading
from airflow_checkpoint_provider.spark.queries.sources.sources import Leaf
from airflow_checkpoint_provider.storage.memory import MemoryStore

NOW = 1_800_000_000.0  # seconds since 1970
TABLE = "lake.rows"
ROWS = {"added-data-files": "1"}


class Table:
    """A table of these snapshots, the oldest first: when each was made, and the batch of the query ``id``, if it has one. Snapshots
    before them have expired, if ``expired``.
    """

    name = TABLE

    def __init__(self, *made: tuple[float, int | None], expired: bool = True) -> None:
        self.made, self._first = list(made), 7 if expired else None

    def snapshots(self) -> Iterator[IcebergSnapshot]:
        for number, (at, batch) in reversed([*enumerate(self.made, 8)]):
            summary = ROWS if batch is None else {**ROWS, QUERY: "id", BATCH: str(batch)}
            yield IcebergSnapshot(number, number - 1 if number > 8 else self._first, int(at * 1000), summary)

    def written(self, query_id: str) -> Iterator[tuple[int, IcebergSnapshot]]:
        return ((int(one.summary[BATCH]), one) for one in self.snapshots() if one.summary.get(QUERY) == query_id)

    def mark(self, query_id: str, batch: int) -> None:
        assert query_id == "id"
        self.made.append((NOW, batch))

    @property
    def batches(self) -> list[int]:
        return [batch for _, batch in self.made if batch is not None]


class StreamSink(IcebergStreamSink):
    """The sink of a query in a played table. Its batches began at the times in ``began``, by their numbers."""

    query_id = "id"

    def __init__(self, table: Table, began: dict[int, float]) -> None:
        self.uid, self._table, self.location = "rows", cast(IcebergTable, table), Location(MemoryStore(), "rows")
        for batch, at in began.items():
            about = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": int(at * 1000)})
            self.location.store.overwrite(self.location.key_of(f"offsets/{batch}"), f"v1\n{about}\n-".encode())


LONG = 10 * CLOCKS
OLD = NOW - LONG  # when the oldest snapshot was made that is left


@pytest.mark.parametrize(
    ("position", "began"),
    [
        pytest.param(Position(4, 4), {4: OLD - LONG}, id="no batch had begun"),
        pytest.param(
            Position(5, 4), {4: OLD - LONG, 5: OLD + CLOCKS + 1}, id="its snapshot would be newer than the oldest"
        ),
    ],
)
def test_table_that_has_forgotten_its_batches_is_told(position: Position, began: dict[int, float]) -> None:
    table = Table((OLD, None))
    StreamSink(table, began).rewrite_batch_marker(position)
    assert table.batches == [4]


@pytest.mark.parametrize(
    ("position", "began"),
    [
        pytest.param(Position(5, 4), {4: OLD - LONG, 5: OLD + CLOCKS}, id="a later batch"),
        pytest.param(Position(0, -1), {0: OLD - LONG}, id="the first batch"),
    ],
)
def test_begun_batch_that_the_table_may_have_forgotten_is_refused(position: Position, began: dict[int, float]) -> None:
    table = Table((OLD, None))
    with pytest.raises(SinkMoved, match="nobody can tell whether the table has the rows of that batch"):
        StreamSink(table, began).rewrite_batch_marker(position)
    assert table.batches == []


@pytest.mark.parametrize(
    ("table", "began"),
    [
        pytest.param(
            Table((OLD, None)), OLD + CLOCKS + 1, id="it was rolled back, since its snapshot cannot have expired"
        ),
        pytest.param(Table((OLD, None), expired=False), OLD - LONG, id="no snapshot has expired"),
    ],
)
def test_table_that_lacks_a_batch_is_told_nothing(table: Table, began: float) -> None:
    sink = StreamSink(table, {4: began})
    sink.rewrite_batch_marker(Position(4, 4))
    assert table.batches == []
    with pytest.raises(SinkMoved, match="it would lack 5 of them"):
        sink.check_can_continue(Position(4, 4), {TABLE})


def test_batch_of_an_older_driver_just_before_the_mark_counts() -> None:
    """Iceberg would take the mark for the newest batch, and write that batch twice."""

    class Raced(Table):
        def mark(self, query_id: str, batch: int) -> None:
            if not self.batches:
                self.made.append((NOW, 5))
            super().mark(query_id, batch)

    table = Raced((OLD, None))
    StreamSink(table, {4: OLD - LONG, 5: NOW}).rewrite_batch_marker(Position(5, 4))
    assert table.batches == [5, 4, 5]


def test_way_back_in_a_table_that_has_forgotten_its_batches_is_refused() -> None:
    saved = QueryDetail(
        location="query/rows/1-abc",
        batch=4,
        begun=4,
        sink="iceberg",
        path=TABLE,
        sources={},
        watermark_ms=0,
        newest_file="snapshot/6",
    )
    with pytest.raises(SinkMoved, match="So nobody can tell what it holds"):
        StreamSink(Table((OLD, None)), {}).plan_rewind(saved, allowed=True)


# -- a source that begins ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("starts", "position", "left", "since", "gone"),
    [
        pytest.param(8, Position(0, -1), range(8, 11), None, [], id="all there"),
        pytest.param(8, Position(0, -1), range(9, 11), None, ["snapshot 8"], id="the first one has expired"),
        pytest.param(8, Position(), range(9, 11), None, ["snapshot 8"], id="no batch has begun"),
        pytest.param(8, Position(0, 0), range(9, 11), None, [], id="read long ago"),
        pytest.param(-1, Position(0, -1), range(8, 11), None, [], id="began empty"),
        pytest.param(-1, Position(0, -1), range(9, 11), None, ["snapshot 8"], id="began empty, the first has expired"),
        pytest.param(-1, Position(0, -1), range(9, 11), 9_000, [], id="what has expired was not to be read"),
        pytest.param(-1, Position(0, -1), range(9, 11), 8_999, ["snapshot 8"], id="perhaps it was to be read"),
        pytest.param(None, Position(), range(9, 11), None, [], id="not begun"),
    ],
)
def test_source_is_asked_for_the_snapshot_with_which_it_begins(
    monkeypatch: pytest.MonkeyPatch,
    starts: int | None,
    position: Position,
    left: range,
    since: int | None,
    gone: list[str],
) -> None:
    """Its first batch reads up to snapshot 10. Iceberg keeps the first one in the location, or -1."""
    own = Location(MemoryStore(), "rows")
    about = '{"version":1,"snapshot_id":%d,"position":0,"scan_all_files":false}'
    if starts is not None:
        own.store.overwrite(own.key_of("sources/1/offsets/0"), (about % starts).encode())
    if position.begun == 0:
        lines = ["v1", '{"batchWatermarkMs": 0}', "-", "-", about % 10]
        own.store.overwrite(own.key_of("offsets/0"), "\n".join(lines).encode())
    there = [IcebergSnapshot(number, number - 1 if number > 8 else None, number * 1000, ROWS) for number in left]
    table = SimpleNamespace(name=TABLE, snapshots=lambda: reversed(there))
    monkeypatch.setattr(iceberg_sources, "IcebergTable", lambda *_: table)
    options = {} if since is None else {"stream-from-timestamp": str(since)}
    relation = SimpleNamespace(table=lambda: SimpleNamespace(table=lambda: None), extraOptions=lambda: options)
    source = IcebergSources(cast(Any, None), "rows", [Leaf(2, 1, ICEBERG, {}, relation)])
    losses = list(source.losses(Reading(own, position, position.committed)))
    assert [missing for loss in losses for missing in loss.missing] == gone


# -- errors --------------------------------------------------------------------------------------------------------------

ADDRESS = "jdbc:postgresql://catalog?password=secret"


def java_error(name: str) -> Py4JJavaError:
    """Return an error of a catalog, of the Java class ``name``, whose text holds a password."""
    kind = SimpleNamespace(getSimpleName=lambda: name)
    return Py4JJavaError(f"cannot reach {ADDRESS}", SimpleNamespace(_target_id="o1", getClass=lambda: kind))


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("UncheckedSQLException", CheckpointError, "cannot use the Iceberg table lake.rows now: UncheckedSQLException"),
        ("NoSuchTableException", WrongUse, "Create it first"),
    ],
)
def test_error_of_a_catalog_does_not_tell_its_address(name: str, error: type[CheckpointError], says: str) -> None:
    with pytest.raises(error, match=says) as raised, typed_errors("lake.rows"):
        raise java_error(name)
    assert type(raised.value) is error
    assert ADDRESS not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def metadata(*snapshots: Mapping[str, object], current: object = 1) -> str:
    return json.dumps({"current-snapshot-id": current, "snapshots": snapshots})


def test_snapshot_that_is_its_own_parent_is_yielded_once() -> None:
    ring = [{"snapshot-id": number, "parent-snapshot-id": number % 2 + 1, "timestamp-ms": 5} for number in (1, 2)]
    for snapshots, lineage in ((ring, [1, 2]), ([{**ring[0], "parent-snapshot-id": 1}], [1])):
        found = metadata_in(metadata(*snapshots), "it")
        assert [snapshot.id for snapshot in found.lineage(found.current)] == lineage


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        "[]",
        metadata({"snapshot-id": 1}),
        metadata({"snapshot-id": "x", "timestamp-ms": 5}),
        metadata({"snapshot-id": 1, "timestamp-ms": 5, "summary": 7}),
        metadata({"snapshot-id": 1, "timestamp-ms": 5}, current=[1]),
        metadata({"snapshot-id": 1, "timestamp-ms": 5}).replace("5", "1e999"),
    ],
)
def test_metadata_that_iceberg_never_writes_is_damaged(text: str) -> None:
    with pytest.raises(Damaged, match="it is not what Iceberg writes"):
        metadata_in(text, "it")


@pytest.mark.parametrize("batch", ["x", "", "1e5", "9" * 30, None])
def test_snapshot_of_a_query_that_names_no_batch_is_damaged(batch: str | None) -> None:
    summary = {QUERY: "id"} if batch is None else {QUERY: "id", BATCH: batch}
    with pytest.raises(Damaged, match="snapshot 7 is not what Iceberg writes"):
        IcebergSnapshot(7, None, 0, summary).of("id", after=0)
