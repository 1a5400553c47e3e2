"""A file sink that goes back while an older driver still writes there. Runs on Linux, with a Spark session."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.errors import Damaged, SinkMoved
from airflow_checkpoint_provider.file_sink.log import FileSinkLog, SinkFile
from airflow_checkpoint_provider.file_sink.rewinding import all_aside, put_back
from airflow_checkpoint_provider.file_sink.store_folder import StoreFolder
from airflow_checkpoint_provider.location.files import location_at
from airflow_checkpoint_provider.protocol.query_details import QueryDetail
from airflow_checkpoint_provider.spark import batch_sink
from airflow_checkpoint_provider.spark.queries.sinks.base import WayBack
from airflow_checkpoint_provider.spark.queries.sinks.files import FileStreamSink
from airflow_checkpoint_provider.spark.queries.sinks.sink_log import SinkLog
from airflow_checkpoint_provider.spark.queries.writer import Target
from airflow_checkpoint_provider.storage import LocalStore
from tests.support.streams import sink_log

SAVED, ZOMBIE = 4, 9  # the batch of the checkpoint; the one in which the older driver is, which compacts the log


class Disturbed(SinkLog):
    """A log in which the older driver publishes its batch at one moment: right before the call of this name."""

    def __init__(self, spark: SparkSession, path: Path, moment: str, act: Callable[[], object]) -> None:
        super().__init__(spark, str(path))
        self._moment, self._act = moment, act

    def _before(self, moment: str) -> None:
        if moment == self._moment:
            self._moment = ""
            self._act()

    def files(self) -> list[SinkFile]:
        self._before("files")
        return super().files()

    def visible(self) -> list[str]:
        self._before("visible")
        return super().visible()

    def keep(self, files: Sequence[SinkFile], batch: int, before: Sequence[SinkFile] | None = None) -> None:
        self._before("keep")
        super().keep(files, batch, before)
        self._before("end")


def publishes(spark: SparkSession, path: Path) -> Callable[[], object]:
    """Return what the older driver still does when it has passed its last look at the log: it adds its batch."""
    jvm = spark._jvm
    sinks = jvm.org.apache.spark.sql.execution.streaming.sinks  # type: ignore[union-attr]
    spark.range(ZOMBIE, ZOMBIE + 1, 1, 1).write.mode("append").parquet(f"{path}-written")
    (written,) = Path(f"{path}-written").glob("*.parquet")
    file = Path(shutil.move(written, path / written.name))

    def act() -> None:
        log = sinks.FileStreamSinkLog(1, spark._jsparkSession, f"{path}/_spark_metadata", jvm.scala.Option.empty())  # type: ignore[union-attr]
        status = sinks.SinkFileStatus(f"file:{file}", file.stat().st_size, False, 0, 1, 1, "add")
        files = spark.sparkContext._gateway.new_array(sinks.SinkFileStatus, 1)  # type: ignore[union-attr]
        files[0] = status
        assert log.add(ZOMBIE, files)

    return act


def saved(spark: SparkSession, path: Path) -> QueryDetail:
    """Return the query as a checkpoint after batch ``SAVED`` holds it."""
    return QueryDetail(
        location="query/rows/1-abc",
        batch=SAVED,
        begun=SAVED,
        sink="parquet",
        path=f"file:{path}",
        sources={},
        watermark_ms=0,
        newest_file=None,
    )


def read(spark: SparkSession, path: Path) -> list[int]:
    return sorted(row.id for row in spark.read.parquet(str(path)).collect())


@pytest.mark.parametrize(
    "moment", [*(pytest.param(at, marks=pytest.mark.slow) for at in ("files", "visible", "keep")), "end"]
)
def test_log_that_is_compacted_while_the_sink_goes_back_names_only_what_is_kept(
    spark: SparkSession, tmp_path: Path, moment: str
) -> None:
    write = batch_sink(str(tmp_path))
    for batch in range(ZOMBIE):
        write(spark.range(batch, batch + 1, 1, 1), batch)
    sink, detail = FileStreamSink(spark, "rows", Target("parquet", str(tmp_path))), saved(spark, tmp_path)
    with pytest.raises(SinkMoved, match="cannot go back to batch 4"):
        sink.plan_rewind(detail, allowed=False)
    gone_back, number = sink.plan_rewind(detail, allowed=True), sink.next_number(ZOMBIE)
    sink.log = Disturbed(spark, tmp_path, moment, publishes(spark, tmp_path))
    sink.rewind(WayBack("orders", "query/rows/2-def", gone_back, number))
    assert (tmp_path / "_spark_metadata" / f"{ZOMBIE}.compact").exists(), "the older driver was there"
    assert read(spark, tmp_path) == list(range(SAVED + 1))
    for batch in range(number + 1, number + 12):  # further than to the next compaction
        batch_sink(str(tmp_path))(spark.range(batch, batch + 1, 1, 1), batch)
    assert read(spark, tmp_path) == [*range(SAVED + 1), *range(number + 1, number + 12)]
    assert not set(sink_log(tmp_path)) & set(range(ZOMBIE + 1))
    taken = read(spark, tmp_path / "_rewound-2-def")  # a batch that appeared before the look is among it
    assert taken == list(range(SAVED + 1, ZOMBIE + (moment in ("files", "visible"))))


@pytest.mark.parametrize("scheme", ["", "file:", pytest.param("file://", marks=pytest.mark.slow)])
@pytest.mark.parametrize("end", [pytest.param("", marks=pytest.mark.slow), "/"])  # most other tests write it without
def test_sink_goes_back_however_its_path_is_written(spark: SparkSession, tmp_path: Path, scheme: str, end: str) -> None:
    """And a person puts the rows back, without Spark."""
    path, out = f"{scheme}{tmp_path}/a b%20c/out{end}", tmp_path / "a b%20c" / "out"
    for batch in range(2):
        batch_sink(path)(spark.range(batch, batch + 1, 1, 1), batch)
    sink, detail = FileStreamSink(spark, "rows", Target("parquet", path)), replace(saved(spark, out), batch=0, begun=0)
    gone_back = sink.plan_rewind(replace(detail, path=sink.path), allowed=True)
    for _ in range(2):
        sink.rewind(WayBack("orders", "query/rows/2-def", gone_back, 19))
        assert (read(spark, out), read(spark, out / "_rewound-2-def")) == ([0], [1])
    log = FileSinkLog(StoreFolder(location_at(LocalStore(str(tmp_path)), path)))
    (aside,) = all_aside(log.files_of)
    assert put_back(log, aside, "ann", aside.manifest.at) is None
    assert read(spark, out) == [0, 1]
    batch_sink(path)(spark.range(2, 3, 1, 1), log.newest_batch() + 1)
    assert read(spark, out) == [0, 1, 2]


@pytest.mark.parametrize("outside", ["out2/file", "out/../file", "out/%2e%2e/file", "out"])
def test_file_outside_the_sink_is_not_touched(spark: SparkSession, tmp_path: Path, outside: str) -> None:
    """Whoever changed the log may have named it."""
    path = f"file://{tmp_path}/{outside}"
    for file in (tmp_path / "file", tmp_path / "out2" / "file"):
        file.parent.mkdir(exist_ok=True)
        file.write_text("kept")
    for batch in range(2):
        batch_sink(f"{tmp_path}/out")(spark.range(batch, batch + 1, 1, 1), batch)
    entry = tmp_path / "out" / "_spark_metadata" / "1"
    entry.write_text(entry.read_text() + "\n" + json.dumps({"path": path, "size": 4, "action": "add"}))
    (entry.parent / ".1.crc").unlink()
    sink = FileStreamSink(spark, "rows", Target("parquet", f"{tmp_path}/out"))
    detail = replace(saved(spark, tmp_path / "out"), batch=0, begun=0)
    gone_back = sink.plan_rewind(detail, allowed=True)
    with pytest.raises(Damaged, match="is no data file of the sink"):
        sink.rewind(WayBack("orders", "query/rows/2-def", gone_back, 19))
    assert (tmp_path / "file").exists()
    assert (tmp_path / "out2" / "file").exists()
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 2, "nothing was moved"
