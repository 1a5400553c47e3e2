"""Stages of a retry: which are reused, which are computed again, and the log line about it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import StringType

from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.spark import CheckpointedJob, open_checkpoint
from tests.integration.runtime.conftest import Script

CaptureFixture = pytest.CaptureFixture[str]
RESULT = [(0, 4), (1, 3), (2, 3)]

named = F.udf(lambda number: f"n{number}", StringType())


def numbers(job: CheckpointedJob, count: int = 10) -> DataFrame:
    return job.spark.range(count).select("id", (F.col("id") % 3).alias("rest"))


def three_stages(job: CheckpointedJob, count: int = 10, version: str | None = None) -> list[tuple[int, int]]:
    """*clean* is plain, *named* calls Python, *counted* is a function."""
    clean = job.stage("clean", numbers(job, count))
    rows = job.stage("named", clean.withColumn("name", named("id")), version=version)
    counted = job.stage("counted", lambda: rows.groupBy("rest").agg(F.count("name").alias("count")))
    return sorted((row["rest"], row["count"]) for row in counted.collect())


def fail(script: Script, version: str | None = None) -> None:
    """A first attempt that breaks after its three stages."""
    with script.failing() as job:
        three_stages(job, version=version)


def lines(capsys: CaptureFixture, uid: str) -> list[str]:
    """What was said of a stage since the last look."""
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"stage '{uid}'")]


def test_retry_reuses_all_stages(script: Script, capsys: CaptureFixture) -> None:
    fail(script)
    computed = [script.recomputes(uid) for uid in ("clean", "named", "counted")]
    with script.attempt() as job:
        assert three_stages(job) == RESULT
        assert (job.attempt, job.restored and job.restored.id) == (2, 3)
    assert not any(again() for again in computed)
    assert capsys.readouterr().out.count(": reused, ") == 3


def test_reused_stage_has_the_schema_and_rows_of_a_computed_stage(script: Script) -> None:
    def stage(job: CheckpointedJob) -> DataFrame:
        at = F.timestamp_seconds("id").alias("at")
        return job.stage(
            "clean", job.spark.range(10).select("id", F.lit(1).alias("never_null"), F.rand().alias("random"), at)
        )

    with script.failing() as job:
        fresh = stage(job)
        schema, rows = fresh.schema, sorted(fresh.collect())
        assert not any(field.nullable is False for field in schema.fields), "a file's columns may be null"
    with script.attempt() as job:
        resumed = stage(job)
        assert (resumed.schema, sorted(resumed.collect())) == (schema, rows)


def test_new_run_computes_all_stages(script: Script) -> None:
    with script.attempt() as job:
        three_stages(job)
        began = job.started_at
    computed = [script.recomputes(uid) for uid in ("clean", "named", "counted")]
    with script.attempt() as job:
        three_stages(job)
        assert job.started_at > began
    assert all(again() for again in computed)


# -- the application changed -------------------------------------------------------------------------------------------


def test_stage_with_the_same_plan_is_reused_by_a_changed_application(script: Script, capsys: CaptureFixture) -> None:
    fail(script)
    script.change("second")
    clean = script.recomputes("clean")
    with script.attempt() as job:
        assert three_stages(job) == RESULT
    assert not clean()
    assert lines(capsys, "clean")[-1].endswith("; application changed, this stage did not  [CKP120]")


def test_stage_with_python_is_recomputed_by_a_changed_application(script: Script, capsys: CaptureFixture) -> None:
    fail(script)
    script.change("second")
    named_again, counted_again = script.recomputes("named"), script.recomputes("counted")
    with script.attempt() as job:
        three_stages(job)
    assert named_again()
    assert counted_again()
    out = capsys.readouterr().out
    assert (
        "stage 'named': recomputed. The application changed and its plan calls Python, so equal rows cannot be proved."
        ' To keep them next time, set version="1".  [CKP121]'
    ) in out
    assert (
        "stage 'counted': recomputed. Its plan changed: its input, stage 'named', was computed again.  [CKP121]" in out
    )


def test_equal_version_keeps_the_rows_of_a_changed_application(script: Script, capsys: CaptureFixture) -> None:
    fail(script, version="1")
    script.change("second")
    computed = [script.recomputes(uid) for uid in ("clean", "named", "counted")]
    with script.attempt() as job:
        assert three_stages(job, version="1") == RESULT
    assert not any(again() for again in computed)
    assert "; application changed, version='1' is the same" in lines(capsys, "named")[-1]


def test_another_version_recomputes_the_stage(script: Script, capsys: CaptureFixture) -> None:
    fail(script, version="1")
    again = script.recomputes("named")
    with script.attempt() as job:
        three_stages(job, version="2")
    assert again()
    assert "stage 'named': recomputed. Its version changed: '1' → '2'." in capsys.readouterr().out


# -- an input changed ----------------------------------------------------------------------------------------------------


def test_changed_literal_recomputes_the_stage(script: Script, capsys: CaptureFixture) -> None:
    def stage(job: CheckpointedJob, day: str) -> None:
        job.stage("clean", job.spark.range(10).where(F.lit(day) >= F.lit("2026-11-20")))

    with script.failing() as job:
        stage(job, "2026-11-20")
    again = script.recomputes("clean")
    with script.attempt() as job:
        stage(job, "2026-11-21")
    assert again()
    (out,) = lines(capsys, "clean")
    assert "recomputed. Its plan changed: " in out
    assert "`2026-11-21`" in out
    assert "use job.started_at" in out


def test_stage_built_on_a_recomputed_stage_is_recomputed(script: Script, capsys: CaptureFixture) -> None:
    """No plan shows what changed inside Python; a function is called again, though the application is the same."""
    fail(script)
    computed = [script.recomputes(uid) for uid in ("clean", "named", "counted")]
    with script.attempt() as job:
        assert three_stages(job, count=9) == [(0, 3), (1, 3), (2, 3)]
    assert all(again() for again in computed)
    out = capsys.readouterr().out
    assert "stage 'named': recomputed. Its plan calls Python and stage 'clean' before it was computed again." in out
    assert "use job.started_at" in out.split("stage 'clean': recomputed")[1].split("\n")[0]


def test_values_are_not_replayed_after_a_recomputed_stage(script: Script) -> None:
    def sums(job: CheckpointedJob, count: int) -> int:
        total = job.value("total", 0)
        total.set(total.get() + job.stage("clean", numbers(job, count)).count())
        job.stage("fixed", job.spark.range(3))
        total.set(total.get() + 1)
        return int(total.get())

    with script.failing() as job:
        assert sums(job, 10) == 11
    fixed = script.recomputes("fixed")
    with script.attempt() as job:
        assert sums(job, 20) == 21, "as the script computed it, not as it was when the stored rows were written"
    assert not fixed()


# -- functions ---------------------------------------------------------------------------------------------------------


def called(script: Script, version: str | None = None) -> list[int]:
    """Runs one attempt whose only stage is a function; how often that was called."""
    calls = []

    def build() -> DataFrame:
        calls.append(1)
        return script.spark.range(7)

    with script.failing() as job:
        assert job.stage("clean", build, version=version).count() == 7
    return calls


def test_function_is_not_called_if_its_rows_are_reused(script: Script) -> None:
    assert called(script) == [1]
    assert called(script) == []


def test_function_of_a_changed_application_is_called_and_its_plan_compared(script: Script) -> None:
    called(script)
    script.change("second")
    again = script.recomputes("clean")
    assert called(script) == [1]
    assert not again()


def test_function_with_an_equal_version_is_called_by_a_changed_application(script: Script) -> None:
    called(script, version="1")
    script.change("second")
    again = script.recomputes("clean")
    assert called(script, version="1") == [1]
    assert not again()


@pytest.mark.parametrize("function", [False, True])
def test_equal_version_does_not_keep_rows_of_a_changed_input(script: Script, tmp_path: Path, function: bool) -> None:
    """The path came as an argument, so another path is another application, too."""
    for source in ("a", "b"):
        script.spark.range(3).selectExpr(f"'{source}' AS src").write.parquet(str(tmp_path / source))

    def rows(source: str) -> set[str]:
        def build() -> DataFrame:
            return script.spark.read.parquet(str(tmp_path / source))

        script.change(source)
        with script.failing() as job:
            return {row.src for row in job.stage("clean", build if function else build(), version="1").collect()}
        raise AssertionError

    assert rows("a") == {"a"}
    assert rows("b") == {"b"}


def test_values_of_char_columns_are_kept_in_a_retry_and_by_open_checkpoint(script: Script) -> None:
    """Spark pads what it reads as CHAR; these values came from elsewhere."""
    spark = script.spark
    spark.sql("create table padded (c char(5)) using parquet")
    try:
        frame = spark.table("padded").union(spark.sql("select 'q' as c"))
        with script.failing() as job:
            assert job.stage("c", frame).collect() == [("q",)]
        pointer = f"{script.root}/{History('job').prefix}/chk-1"
        opened = open_checkpoint(pointer, spark)["c"]
        with script.attempt() as job:
            again = job.stage("c", frame)
            derived = job.stage(
                "derived", again.alias("l").join(again.alias("r"), F.col("l.c") == F.col("r.c")).select("l.c")
            )
            assert [rows.collect() for rows in (again, derived, opened)] == [[("q",)]] * 3
            assert opened.schema == again.schema == frame.schema
    finally:
        spark.sql("drop table padded")
