"""Stages in parts by a column of the source: every row is there once, and each part reads only its own files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import LongType

from airflow_checkpoint_provider.errors import NotInParts
from airflow_checkpoint_provider.spark import CheckpointedJob
from tests.integration.runtime.conftest import Script
from tests.integration.runtime.tables import on_delta
from tests.support.sparks import INSTALLED

CaptureFixture = pytest.CaptureFixture[str]
DAY = {"text": "'2026-02-' || lpad(id % 4, 2, '0')", "number": "id % 4", "date": "date_add('2026-02-01', int(id % 4))",
       "bool": "id % 2 = 0", "time": "timestamp_seconds(90 * (id % 4))"}  # fmt: skip


def write(spark: SparkSession, folder: Path, count: int = 20, day: str = DAY["text"], first: int = 0) -> None:
    """Write rows below a folder for each day, and those of every fifth id below the folder of no day."""
    rows = spark.range(first, first + count).selectExpr("id", f"if(id % 5 = 0, null, {day}) as day")
    rows.write.mode("append").partitionBy("day").parquet(str(folder))


def plus_one(rows: DataFrame) -> DataFrame:
    return rows.withColumn("more", F.col("id") + 1)


class Breaks(Exception):
    """What the part raised."""


def attempt(
    script: Script, folder: Path, monkeypatch: pytest.MonkeyPatch, parts: int | None = None, **options: Any
) -> list[tuple[Any, ...]]:
    """Run one attempt, which fails after so many parts. Return the rows of the stage."""
    with monkeypatch.context() as patched, script.failing() as job:
        if parts is not None:
            stop_after(patched, parts)
        try:
            rows = job.stage("more", plus_one(job.spark.read.parquet(str(folder))), by="day", **options)
            return [(row.id, row.day, row.more) for row in rows.collect()]
        except Breaks:
            return []
    raise AssertionError


def stop_after(monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    from airflow_checkpoint_provider.spark.stages.part_frames import FramesByColumn

    frame = FramesByColumn.frame

    def breaks(self: FramesByColumn, index: int) -> Any:
        if index == parts:
            raise Breaks
        return frame(self, index)

    monkeypatch.setattr(FramesByColumn, "frame", breaks)


@pytest.mark.parametrize(
    "kind", ["text", *(pytest.param(kind, marks=pytest.mark.slow) for kind in DAY if kind != "text")]
)
def test_every_row_is_in_one_part(script: Script, tmp_path: Path, kind: str) -> None:
    write(script.spark, tmp_path / "in", day=DAY[kind])
    rows = script.spark.read.parquet(str(tmp_path / "in"))
    with script.failing() as job:
        stored = job.stage("rows", rows, by="day")
        assert sorted(stored.collect(), key=str) == sorted(rows.collect(), key=str)
        assert stored.schema == rows.schema


def test_retry_computes_the_parts_that_are_missing_and_keeps_the_list(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    write(script.spark, tmp_path / "in")
    attempt(script, tmp_path / "in", monkeypatch, parts=2)
    write(script.spark, tmp_path / "in", 1, "'2026-03-01'", first=101)
    rows = attempt(script, tmp_path / "in", monkeypatch)
    assert sorted(row[0] for row in rows) == list(range(20))
    out = capsys.readouterr().out
    assert "stage 'more': 2 of 5 parts reused, " in out
    assert "its stored rows are used though its inputs moved: 1 file new in " in out
    script.change("second")
    rows = attempt(script, tmp_path / "in", monkeypatch)
    assert sorted(row[0] for row in rows) == [*range(20), 101]
    assert (
        "stage 'more': recomputed. The application changed, and its inputs moved: 1 file new" in capsys.readouterr().out
    )


@pytest.mark.slow  # the one above
def test_inputs_say_whether_another_list_computes_all_parts_again(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    write(script.spark, tmp_path / "in")
    attempt(script, tmp_path / "in", monkeypatch, parts=2)
    write(script.spark, tmp_path / "in", 1, "'2026-03-01'", first=101)
    assert len(attempt(script, tmp_path / "in", monkeypatch, inputs="compare")) == 21
    assert "stage 'more': recomputed. Its inputs moved: 1 file new" in capsys.readouterr().out


@pytest.mark.slow  # the one about the list
def test_changed_frame_computes_all_parts_again(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    write(script.spark, tmp_path / "in")
    attempt(script, tmp_path / "in", monkeypatch, parts=2)
    with script.failing() as job:
        rows = job.stage(
            "more", job.spark.read.parquet(str(tmp_path / "in")).withColumn("more", F.col("id") + 2), by="day"
        )
        assert sorted(row.more for row in rows.collect()) == list(range(2, 22))
    assert "stage 'more': recomputed. Its plan changed: " in capsys.readouterr().out


def test_parts_with_other_columns_are_not_kept_by_a_version(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    write(script.spark, tmp_path / "in", day=DAY["number"])
    attempt(script, tmp_path / "in", monkeypatch, parts=1, version="1")
    script.change("other columns")
    monkeypatch.setitem(globals(), "plus_one", lambda rows: rows.selectExpr("*", "id + 1 AS more", "1 AS extra"))
    assert len(attempt(script, tmp_path / "in", monkeypatch, version="1")) == 20
    assert (
        "Its columns changed, and not all parts are stored: column `extra` is new.  [CKP121]" in capsys.readouterr().out
    )


def test_part_reads_only_its_own_files(script: Script, tmp_path: Path) -> None:
    """The files of another day may even be gone."""
    write(script.spark, tmp_path / "in")
    rows = script.spark.read.parquet(str(tmp_path / "in"))
    gone = tmp_path / "in" / "day=2026-02-03"
    shutil.rmtree(gone)
    with script.failing() as job, pytest.raises(Exception, match="day=2026-02-03"):
        job.stage("rows", rows, by="day")
    newest = script.coordinator().state.retained[-1]
    (state,) = newest.states
    assert str(state.parts) == "4 of 5 parts"
    assert state.rows == 16


@pytest.mark.slow  # the first one
def test_source_without_a_folder_has_one_part_without_rows(script: Script, tmp_path: Path) -> None:
    schema = "id long, day string"
    script.spark.createDataFrame([], schema).write.partitionBy("day").parquet(str(tmp_path / "in"))
    script.spark.sql(f"create table empty ({schema}) using parquet partitioned by (day) location '{tmp_path / 'in'}'")
    try:
        with script.failing() as job:
            assert job.stage("rows", job.spark.table("empty"), by="day").collect() == []
    finally:
        script.spark.sql("drop table empty")


@pytest.mark.slow  # the first one
def test_table_of_the_catalog_has_its_partitions_as_parts(script: Script, tmp_path: Path) -> None:
    spark = script.spark
    spark.range(10).selectExpr("id", "id % 3 as day").write.partitionBy("day").saveAsTable("by_day")
    try:
        with script.failing() as job:
            rows = job.stage("rows", job.spark.table("by_day").where("id < 9"), by="day")
            assert sorted(row.id for row in rows.collect()) == list(range(9))
        assert len(script.checkpoint(3).states) == 1
    finally:
        spark.sql("drop table by_day")


# -- refused -----------------------------------------------------------------------------------------------------------

slow = F.udf(lambda number: number, LongType()).asNondeterministic()
REFUSED: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "window": (
        lambda rows: rows.withColumn("n", F.row_number().over(Window.partitionBy("day").orderBy("id"))),
        "Window",
    ),
    "join": (lambda rows: rows.join(rows.select("id"), "id"), "Join"),
    "aggregate": (lambda rows: rows.groupBy("day").count(), "Aggregate"),
    "distinct": (lambda rows: rows.distinct(), r"Deduplicate \(dropDuplicates, distinct\)"),
    "union": (lambda rows: rows.union(rows), "Union"),
    "limit": (lambda rows: rows.limit(3), "GlobalLimit"),
    "sample": (lambda rows: rows.sample(0.5), "Sample"),
    "draw": (lambda rows: rows.withColumn("r", F.rand()), r"rand\(\)"),
    "id": (lambda rows: rows.withColumn("r", F.monotonically_increasing_id()), r"monotonically_increasing_id\(\)"),
    "pandas": (lambda rows: rows.mapInPandas(lambda frames: frames, "id long, day string"), "MapInPandas"),
    "renamed": (
        lambda rows: rows.withColumnRenamed("day", "d").withColumnRenamed("d", "day"),
        "not a partition column of",
    ),
    "changed": (lambda rows: rows.withColumn("day", F.upper("day")), r"unchanged \(the source has day\)"),
    "unpruned": (lambda rows: rows.withColumn("n", slow("id")), "does not move a filter on it below Project"),
}

FIRST = ("window", "draw", "unpruned")
"""One of each way in which an operator is found; the others are slow tests."""


@pytest.mark.parametrize(
    "kind", [*FIRST, *(pytest.param(kind, marks=pytest.mark.slow) for kind in REFUSED if kind not in FIRST)]
)
def test_operator_in_the_way_is_named(script: Script, tmp_path: Path, kind: str) -> None:
    write(script.spark, tmp_path / "in")
    build, named = REFUSED[kind]
    with script.failing() as job, pytest.raises(NotInParts, match=named):
        job.stage("rows", build(job.spark.read.parquet(str(tmp_path / "in"))), by="day")
    assert script.coordinator().state.retained == ()


@pytest.mark.slow  # the operators
def test_other_sources_and_columns_are_refused(script: Script, tmp_path: Path) -> None:
    write(script.spark, tmp_path / "in")

    def refused(job: CheckpointedJob, rows: DataFrame, by: str, why: str) -> None:
        with pytest.raises(NotInParts, match=why):
            job.stage(f"rows by {by} of {len(why)}", rows, by=by)

    with script.failing() as job:
        rows = job.spark.read.parquet(str(tmp_path / "in"))
        refused(job, rows, "id", r"not a partition column of the source, unchanged \(the source has day\)")
        refused(job, rows, "Day", "not a partition column")
        refused(job, job.spark.range(3), "id", "reads Range, not one folder or table of files")
        stored = job.stage("stored", rows)
        refused(job, stored, "day", r"unchanged \(the source has none\)")
        rows.createOrReplaceTempView("rows")
        of_some_days = job.spark.sql("select * from rows where day in (select day from rows where id = 7)")
        refused(job, of_some_days, "day", "a subquery, which reads rows of all parts")


@pytest.mark.slow  # test_every_row_is_in_one_part
@pytest.mark.timeout(900)
def test_delta_table_has_its_partitions_as_parts(tmp_path: Path) -> None:
    ended = on_delta(tmp_path / "table", "table_parts.py", INSTALLED).run()
    assert ended.code == 0, ended.log
    assert ended.result == {
        "ids": list(range(18)),
        "parts": [None, "2026-02-01", "2026-02-02", "2026-02-03", "2026-02-04"],
    }
    assert "part 5 of 5 of stage 'rows'" in ended.tasks
