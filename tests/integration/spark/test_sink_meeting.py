"""Where a query may go on: the batches that its sink has must fit. Runs on Linux, with a Spark session."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.errors import NotSupportedYet, SinkMoved
from airflow_checkpoint_provider.location.files import NOTHING, Position
from airflow_checkpoint_provider.protocol.query_details import FOREACH_BATCH, QueryDetail
from airflow_checkpoint_provider.spark import batch_sink
from airflow_checkpoint_provider.spark.queries.sinks.base import StreamSink
from airflow_checkpoint_provider.spark.queries.sinks.files import FileStreamSink
from airflow_checkpoint_provider.spark.queries.writer import Target


def sink(spark: SparkSession, path: Path, newest: int = NOTHING) -> FileStreamSink:
    """Return a sink with the batches up to ``newest``, each with a row."""
    for batch in range(newest + 1):
        batch_sink(str(path))(spark.range(batch, batch + 1, 1, 1), batch)
    return FileStreamSink(spark, "rows", Target("parquet", str(path)))


@pytest.mark.parametrize(
    ("newest", "begun", "committed"),
    [(1, 1, 1), (1, 1, 0), (0, 1, 0), (0, 0, NOTHING), (NOTHING, 0, NOTHING), (NOTHING, NOTHING, NOTHING)],
)
def test_sink_may_have_the_batch_that_had_begun_or_not(
    spark: SparkSession, tmp_path: Path, newest: int, begun: int, committed: int
) -> None:
    sink(spark, tmp_path, newest).check_can_continue(Position(begun, committed), {f"file:{tmp_path}"})


@pytest.mark.parametrize(
    ("newest", "begun", "committed", "says"),
    [
        (
            1,
            NOTHING,
            NOTHING,
            "starts from its beginning, but its sink .* has batches up to 1: it would skip 2 of the new ones",
        ),
        (2, 1, 0, "would continue after batch 0, but its sink .* has batches up to 2: it would skip 2 of the new ones"),
        (0, 2, 1, "would continue after batch 1, but its sink .* has batches up to 0: it would lack 1 of them"),
        (
            NOTHING,
            1,
            1,
            "would continue after batch 1, but its sink .* has no batches any more: it would lack 2 of them",
        ),
    ],
)
def test_query_whose_rows_would_be_skipped_or_missing_is_refused(
    spark: SparkSession, tmp_path: Path, newest: int, begun: int, committed: int, says: str
) -> None:
    known = {f"file:{tmp_path}"} if committed != NOTHING else set()
    with pytest.raises(SinkMoved, match=says):
        sink(spark, tmp_path, newest).check_can_continue(Position(begun, committed), known)


def test_fork_goes_on_in_an_empty_path_alone(spark: SparkSession, tmp_path: Path) -> None:
    sink(spark, tmp_path / "empty").check_can_continue(Position(3, 3), {"file:/data/original"})
    with pytest.raises(SinkMoved, match="it would lack 3 of them"):
        sink(spark, tmp_path / "used", 0).check_can_continue(Position(3, 3), {"file:/data/original"})


def detail(path: Path, newest_file: str | None) -> QueryDetail:
    """Return the query after batch 1, as a checkpoint holds it."""
    return QueryDetail(
        location="query/rows/1-abc",
        batch=1,
        begun=1,
        sink="parquet",
        path=f"file:{path}",
        sources={},
        watermark_ms=0,
        newest_file=newest_file,
    )


def test_query_does_not_go_back_where_rows_that_it_had_written_are_gone(spark: SparkSession, tmp_path: Path) -> None:
    """Whether the sink was emptied, or another one has its path."""
    newest = sink(spark, tmp_path / "was", 2).newest_file(1)
    emptied, others = sink(spark, tmp_path / "emptied"), sink(spark, tmp_path / "others", 0)
    for found, path in ((emptied, tmp_path / "emptied"), (others, tmp_path / "others"), (others, tmp_path / "was")):
        with pytest.raises(SinkMoved, match="lacks files that it had then"):
            found.plan_rewind(detail(path, newest), allowed=True)


def test_query_goes_back_into_another_path_that_is_empty(spark: SparkSession, tmp_path: Path) -> None:
    gone_back = sink(spark, tmp_path / "new").plan_rewind(detail(tmp_path / "was", "file:/was/part-1"), allowed=False)
    assert (gone_back.batch, gone_back.sink, gone_back.newest_file) == (1, f"file:{tmp_path}/new", None)


def test_query_with_a_function_of_its_own_does_not_go_back(spark: SparkSession, tmp_path: Path) -> None:
    """Nobody knows which batches it has written."""
    own = StreamSink("rows", Target(FOREACH_BATCH, ""))
    with pytest.raises(NotSupportedYet, match="cannot go back: its foreachBatch may have written later batches"):
        own.plan_rewind(detail(tmp_path, None), allowed=True)
