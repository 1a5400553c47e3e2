"""Stages of a retry: which are reused, which are computed again, and the log line about it."""

from __future__ import annotations

import sys
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
    def stages(job: CheckpointedJob) -> None:
        clean = job.stage("clean", numbers(job))
        job.stage("counted", lambda: clean.groupBy("rest").count())

    with script.attempt() as job:
        stages(job)
        began = job.started_at
    computed = [script.recomputes(uid) for uid in ("clean", "counted")]
    with script.attempt() as job:
        stages(job)
        assert job.started_at > began
    assert all(again() for again in computed)


# -- the application changed -------------------------------------------------------------------------------------------


@pytest.mark.slow  # test_function_of_a_changed_application_is_called_and_its_plan_compared
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
        "stage 'named': recomputed. The application changed and its plan calls Python or other code, so equal rows cannot be proved."
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


@pytest.mark.slow  # tests/unit/spark/stages/test_reuse.py, and test_parts.py with Spark
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
    assert (
        "stage 'named': recomputed. Its plan calls Python or other code, and stage 'clean' before it was computed again."
        in out
    )
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


@pytest.mark.parametrize(
    "function",
    [False, pytest.param(True, marks=pytest.mark.slow)],  # test_function_with_an_equal_version_is_called_by_a_...
)
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


# -- what else belongs to the program ------------------------------------------------------------------------------------


def test_conf_that_lost_rows_is_taken_back_and_the_stage_is_computed_again(
    script: Script, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """One of two files is damaged: its rows are left out at first; then the job fails, as it would without an earlier try."""
    script.spark.range(1000).repartition(2).write.parquet(str(tmp_path / "in"))
    damaged = min((tmp_path / "in").glob("part-*"))
    damaged.write_bytes(b"\0" * damaged.stat().st_size)
    damaged.with_name(f".{damaged.name}.crc").unlink()

    def rows(job: CheckpointedJob, function: bool) -> int:
        def build() -> DataFrame:
            return job.spark.read.schema("id long").parquet(str(tmp_path / "in"))

        return job.stage("clean", build if function else build()).count()

    for function in (False, True):
        script.spark.conf.set("spark.sql.files.ignoreCorruptFiles", True)
        with script.failing() as job:
            assert rows(job, function) == 500
        script.spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
        with pytest.raises(Exception, match=r"FAILED_READ_FILE|is not a Parquet file"), script.attempt() as job:
            rows(job, function)
    out = capsys.readouterr().out
    assert "application changed since attempt 1: the conf spark.sql.files.ignoreCorruptFiles" in out
    assert "Its plan changed: spark.sql.files.ignoreCorruptFiles: `true` → `false`" in out


@pytest.mark.slow  # tests/unit/spark/stages/test_imports.py
def test_module_elsewhere_that_a_function_calls_is_part_of_the_application(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = tmp_path / "shared" / "fees_elsewhere.py"
    rules.parent.mkdir()
    monkeypatch.syspath_prepend(str(rules.parent))
    script.change("def fee(amount):\n    from fees_elsewhere import fee")
    fees = F.udf(
        lambda number: int(rules.read_text()[6:]) * number, "long"
    )  # a worker of Python is kept, and so its modules

    def total(job: CheckpointedJob) -> int:
        return sum(
            row["fee"] for row in job.stage("fees", job.spark.range(3).select(fees("id").alias("fee"))).collect()
        )

    seen = []
    for text in ("fee = 2", "fee = 1001"):
        rules.write_text(text)
        with script.failing() as job:
            seen.append(total(job))
    assert seen == [6, 3003]


def test_what_was_not_compared_is_named_once_where_a_stage_is_reused(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    conf = script.spark.sparkContext._conf
    conf.set("spark.jars", "s3a://lake/jars/rules.jar")
    monkeypatch.setattr("sys.path", [path for path in sys.path if "site-packages" in path])
    line = (
        "not compared with the attempt whose rows are reused: the jar rules.jar."
        " If one of them changed, give the stages another version=  [CKP126]"
    )

    def two_stages(job: CheckpointedJob) -> None:
        job.stage("counted", job.stage("clean", numbers(job)).groupBy("rest").count())

    try:
        with script.failing() as job:
            two_stages(job)
        assert "CKP126" not in capsys.readouterr().out
        with script.attempt() as job:
            two_stages(job)
        assert [text for text in capsys.readouterr().out.splitlines() if "CKP126" in text] == [line]
    finally:
        conf._jconf.remove("spark.jars")  # type: ignore[union-attr]
    with script.failing() as job:
        two_stages(job)
    with script.attempt() as job:
        two_stages(job)
    assert "CKP126" not in capsys.readouterr().out


def test_redacted_literal_is_neither_printed_nor_stored(script: Script, capsys: CaptureFixture) -> None:
    def stage(job: CheckpointedJob, key: str) -> None:
        job.stage("hidden", job.spark.range(3).select(F.expr(f"aes_encrypt('a', '{key}')").alias("secret")))

    script.spark.conf.set("spark.sql.redaction.string.regex", "(secret|password)-[A-Za-z0-9]+")
    try:
        for name in ("Alpha", "Bravo"):
            with script.failing() as job:
                stage(job, f"secret-{name}1234")
    finally:
        script.spark.conf.unset("spark.sql.redaction.string.regex")
    out = capsys.readouterr().out
    assert "stage 'hidden': recomputed. Its plan changed: a text that the session's redaction hides." in out
    stored = [path.read_bytes() for path in script.root.rglob("*") if path.is_file()]
    assert any(b"aes_encrypt" in body for body in stored)
    assert not any(name.encode() in body for body in [*stored, out.encode()] for name in ("Alpha", "Bravo"))
