"""Inputs that move between the tries of a run while the plan stays the same: files that Spark has listed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.spark import CheckpointedJob
from airflow_checkpoint_provider.spark.stages import inputs as inputs_module
from airflow_checkpoint_provider.spark.stages.inputs import INPUTS_FILE, listing
from tests.integration.runtime.conftest import Broken, Launch, Script
from tests.support.launches import Launches
from tests.support.parts import parts

CaptureFixture = pytest.CaptureFixture[str]
ADVICE = 'To compute it again when its inputs move, write inputs="compare"'


class Landing:
    """A folder into which others write files with one row each."""

    def __init__(self, folder: Path, script: Script) -> None:
        self.folder, self.script = folder, script
        folder.mkdir()
        self.land("a", 1)
        self.land("b", 2)

    def land(self, name: str, row: int) -> None:
        (self.folder / f"{name}.json").write_text(json.dumps({"id": row}) + "\n")

    def rows(self, job: CheckpointedJob, **options: str) -> list[int]:
        frame = self.frame()
        return [row.id for row in job.stage("clean", frame, **options).sort("id").collect()]

    def frame(self) -> DataFrame:
        return self.script.spark.read.schema("id long").json(str(self.folder))

    def attempt(self, **options: str) -> list[int]:
        """Return the rows of an attempt that fails afterwards."""
        rows: list[int] = []
        with self.script.failing() as job:
            rows += self.rows(job, **options)
        return rows


@pytest.fixture
def landing(tmp_path: Path, script: Script) -> Landing:
    return Landing(tmp_path / "landing-zone", script)


def lines(capsys: CaptureFixture, code: str) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if f"[{code}]" in line]


# -- files -------------------------------------------------------------------------------------------------------------


def test_retry_keeps_the_rows_of_a_folder_that_grew_and_says_so(landing: Landing, capsys: CaptureFixture) -> None:
    assert landing.attempt() == [1, 2]
    landing.land("c", 3)
    assert landing.attempt() == [1, 2]
    moved = f"1 file new in file:{landing.folder}"
    assert lines(capsys, "CKP127") == [
        f"stage 'clean': its stored rows are used though its inputs moved: {moved}. {ADVICE}  [CKP127]"
    ]


def test_redacted_name_of_a_folder_or_a_file_is_neither_printed_nor_stored(
    landing: Landing, capsys: CaptureFixture
) -> None:
    """What moved is still seen."""
    conf = landing.script.spark.conf
    conf.set("spark.sql.redaction.string.regex", f"{landing.folder.name}|customer-[A-Z][a-z]+")
    try:
        landing.attempt()
        landing.land("customer-Alpha", 3)
        assert landing.attempt() == [1, 2]
        landing.script.change("corrected")
        assert landing.attempt() == [1, 2, 3]
    finally:
        conf.unset("spark.sql.redaction.string.regex")
    out = capsys.readouterr().out
    assert "its stored rows are used though its inputs moved: 1 file new in file:" in out
    stored = [path.read_bytes() for path in landing.script.root.rglob("*") if path.is_file()]
    assert any(b"(redacted)" in body for body in stored)
    names = (landing.folder.name, "Alpha")
    assert not any(name.encode() in body for body in [*stored, out.encode()] for name in names)


def test_nothing_is_said_of_a_folder_that_did_not_move(landing: Landing, capsys: CaptureFixture) -> None:
    landing.attempt()
    landing.script.change("corrected")
    assert landing.attempt(inputs="auto") == [1, 2]
    out = capsys.readouterr().out
    assert "CKP127" not in out
    assert "application changed, this stage did not  [CKP120]" in out


def test_changed_and_gone_files_are_counted(landing: Landing, capsys: CaptureFixture) -> None:
    landing.attempt()
    (landing.folder / "a.json").unlink()
    landing.land("b", 22)
    os.utime(landing.folder / "b.json", (0, 0))
    landing.land("c", 3)
    landing.attempt()
    (line,) = lines(capsys, "CKP127")
    assert "moved: 1 file new and 1 file changed and 1 file gone in file:" in line


def test_compare_computes_again(landing: Landing, capsys: CaptureFixture) -> None:
    landing.attempt(inputs="compare")
    assert landing.attempt(inputs="compare") == [1, 2]
    landing.land("c", 3)
    assert landing.attempt(inputs="compare") == [1, 2, 3]
    moved = f"1 file new in file:{landing.folder}"
    assert lines(capsys, "CKP121") == [f"stage 'clean': recomputed. Its inputs moved: {moved}.  [CKP121]"]


def test_corrected_script_computes_again_unless_the_rows_are_kept(landing: Landing, capsys: CaptureFixture) -> None:
    landing.attempt()
    landing.land("c", 3)
    landing.script.change("corrected")
    assert landing.attempt() == [1, 2, 3]
    (line,) = lines(capsys, "CKP121")
    assert "recomputed. The application changed, and its inputs moved: 1 file new in file:" in line
    assert line.endswith('. To keep its rows, write inputs="keep".  [CKP121]')

    landing.land("d", 4)
    landing.script.change("corrected once more")
    assert landing.attempt(inputs="keep") == [1, 2, 3]
    (line,) = lines(capsys, "CKP127")
    assert line.endswith('. inputs="keep" is set  [CKP127]')


def test_version_never_decides_about_inputs(landing: Landing) -> None:
    landing.attempt(version="1")
    landing.land("c", 3)
    assert landing.attempt(version="1") == [1, 2]
    landing.script.change("corrected")
    assert landing.attempt(version="1") == [1, 2, 3]


def test_corrected_overwrite_in_front_of_a_stage(script: Script, tmp_path: Path, capsys: CaptureFixture) -> None:
    fees = str(tmp_path / "fees")

    def total(factor: int) -> int:
        totals: list[int] = []
        with script.failing() as job:
            job.spark.range(3).selectExpr(f"id * {factor} AS fee").write.mode("overwrite").parquet(fees)
            frame = job.stage("total", job.spark.read.parquet(fees).agg(F.sum("fee").alias("total")))
            totals += [row.total for row in frame.collect()]
        return totals[0]

    assert total(1) == 3
    assert total(1) == 3, "the same rows in other files"
    assert len(lines(capsys, "CKP127")) == 1
    script.change("corrected")
    assert total(1000) == 3000


def test_clear_computes_again_and_a_retry_does_not(
    launched: Launch, launches: Launches, landing: Landing, capsys: CaptureFixture
) -> None:
    def attempt(try_number: int, generation: int) -> list[int]:
        rows: list[int] = []
        with suppress(Broken), launched(launches.plan(try_number, generation=generation)) as job:
            rows += landing.rows(job)
            raise Broken
        return rows

    assert attempt(1, generation=7) == [1, 2]
    landing.land("c", 3)
    assert attempt(2, generation=7) == [1, 2]
    assert len(lines(capsys, "CKP127")) == 1
    assert attempt(3, generation=8) == [1, 2, 3]
    (line,) = lines(capsys, "CKP121")
    assert "recomputed. The task was cleared, and its inputs moved: 1 file new in file:" in line


# -- functions ---------------------------------------------------------------------------------------------------------


def test_function_is_not_called_to_look_and_its_paths_are_named(landing: Landing, capsys: CaptureFixture) -> None:
    called: list[int] = []

    def build() -> DataFrame:
        called.append(1)
        return landing.frame()

    def attempt(**options: str) -> int:
        counts: list[int] = []
        with landing.script.failing() as job:
            counts.append(job.stage("clean", build, **options).count())
        return counts[0]

    assert attempt() == 2
    landing.land("c", 3)
    assert (attempt(), len(called)) == (2, 1)
    (line,) = lines(capsys, "CKP120")
    assert f"; not compared: file:{landing.folder}  [CKP120]" in line
    assert (attempt(inputs="compare"), len(called)) == (3, 2)


@pytest.mark.parametrize("how", ["a pattern", "an inferred schema", "a list"])
def test_inputs_that_show_in_the_plan_compute_again_with_advice(
    landing: Landing, capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Neither can be kept: the frame that Spark builds now is another one."""
    read = landing.script.spark.read
    frames: dict[str, Callable[[], DataFrame]] = {
        "a pattern": lambda: read.schema("id long").json(f"{landing.folder}/*.json"),
        "an inferred schema": lambda: read.json(str(landing.folder)),
        "a list": lambda: read.schema("id long").json([*map(str, landing.folder.iterdir())]),
    }
    monkeypatch.setattr(landing, "frame", frames[how])
    landing.attempt(inputs="keep")
    (landing.folder / "c.json").write_text('{"id": 3, "more": 1}\n')
    assert landing.attempt(inputs="keep") == [1, 2, 3]
    (line,) = lines(capsys, "CKP121")
    assert "Its inputs moved, and the paths of a pattern and a schema that Spark infers are part of the plan" in line


# -- what is listed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        # read as those below are: by a folder, or by a plan inside of the plan
        *(pytest.param(other, marks=pytest.mark.slow) for other in ("binaryFile", "text", "csv", "view")),
        *("partitions", "table", "subquery", "v2"),
    ],
)
def test_files_of_every_source_are_compared(
    script: Script, tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark, folder = script.spark, tmp_path / "in dir"
    files = spark.range(2).selectExpr("id AS k", "cast(id AS string) AS s").coalesce(1)
    partitions = ["k"] if source == "partitions" else []
    kind = source if source in ("text", "csv") else "parquet"
    name = f"inputs_{source}"

    def write(mode: str) -> None:
        rows = files.select("s") if source == "text" else files
        rows.write.partitionBy(*partitions).mode(mode).format(kind).save(str(folder))

    def frame() -> DataFrame:
        if source in ("binaryFile", "text"):
            return spark.read.format(source).load(str(folder))
        if source == "csv":
            return spark.read.csv(str(folder), schema="k long, s string")
        if source == "table":
            spark.sql(f"REFRESH TABLE {name}")
            return spark.table(name)
        read = spark.read.parquet(str(folder))
        if source == "view":
            read.createOrReplaceTempView(name)
            return spark.sql(f"SELECT * FROM {name}")
        if source == "subquery":
            read.createOrReplaceTempView(name)
            return spark.sql(f"SELECT 1 AS one WHERE 1 < (SELECT count(*) FROM {name})")
        return read

    write("overwrite")
    if source == "table":
        spark.sql(f"DROP TABLE IF EXISTS {name}")
        spark.sql(f"CREATE TABLE {name} (k long, s string) USING parquet LOCATION '{folder}'")
    if source == "v2":
        spark.conf.set("spark.sql.sources.useV1SourceList", "")
    try:
        first, same = listing(frame(), {}), listing(frame(), {})
        write("append")
        grown = listing(frame(), {})
    finally:
        spark.conf.unset("spark.sql.sources.useV1SourceList")
    assert first.digest
    assert first.digest == same.digest
    assert grown.digest != first.digest
    assert first.unseen == ()
    files_new = "2 files new" if partitions else "1 file new"
    assert inputs_module.moved(first, grown).startswith(f"{files_new} in ")


def test_what_spark_has_not_listed_is_named(script: Script, tmp_path: Path) -> None:
    spark = script.spark
    spark.sql("DROP TABLE IF EXISTS inputs_by_day")
    spark.range(3).selectExpr("id", "id % 2 AS day").write.partitionBy("day").option(
        "path", str(tmp_path / "by day")
    ).saveAsTable("inputs_by_day")
    derby = {"driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver"}
    systables = spark.read.jdbc("jdbc:derby:memory:inputs;create=true", "sys.systables", properties=derby)
    of_rows = spark.createDataFrame([(1,)], "id long")
    found = listing(spark.table("inputs_by_day").select("id").union(systables.selectExpr("1L")).union(of_rows), {})
    assert found.inputs == ()
    assert found.digest == ""
    assert found.unseen == (f"file:{tmp_path}/by day", "JDBCRelation", "an RDD or createDataFrame")


def test_program_outside_of_the_plan_is_named(script: Script, capsys: CaptureFixture) -> None:
    def attempt() -> None:
        with script.failing() as job:
            job.stage("words", script.spark.sql("select transform(id) using 'cat' as (a string) from range(2)"))

    attempt()
    attempt()
    (line,) = lines(capsys, "CKP120")
    assert "; not compared: the program of TRANSFORM  [CKP120]" in line
    script.change("another program")
    again = script.recomputes("words")
    attempt()
    assert again()


def test_too_many_files_are_named_and_not_listed(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_module, "MOST_FILES", 1)
    found = listing(landing.frame(), {})
    assert found.unseen == (f"file:{landing.folder} (2 files, more than 1)",)


@pytest.mark.parametrize("name", ["line\nbreak", "a; isDirectory=false; length=7", "100%25", "ümläut {x}"])
def test_any_file_name_is_listed(landing: Landing, name: str) -> None:
    before = listing(landing.frame(), {})
    landing.land(name, 3)
    (found,) = listing(landing.frame(), {}).inputs
    assert len(found.files) == 3
    assert inputs_module.moved(before, listing(landing.frame(), {})).startswith("1 file new in ")


def test_self_join_and_stages_are_listed_once_and_never(landing: Landing) -> None:
    frame = landing.frame()
    assert len(listing(frame.alias("a").join(frame.alias("b"), "id"), {}).inputs) == 1
    with landing.script.attempt() as job:
        staged = job.stage("clean", frame)
        readbacks = parts(job).stages.readbacks
        assert listing(staged, readbacks).inputs == ()


@pytest.mark.parametrize(
    ("bytes_", "words"),
    [
        pytest.param(None, "is gone", id="gone", marks=pytest.mark.slow),  # as the damaged one
        pytest.param(b"\x00", "cannot be read", id="damaged"),
        pytest.param(
            b'{"inputs": [{"files": ["a"], "name": "b"}], "v": 1}', "", id="of another shape", marks=pytest.mark.slow
        ),
    ],
)
def test_lost_list_of_inputs_still_compares(
    landing: Landing, capsys: CaptureFixture, bytes_: bytes | None, words: str
) -> None:
    landing.attempt(inputs="compare")
    (stored,) = landing.script.root.rglob(INPUTS_FILE)
    stored.unlink() if bytes_ is None else stored.write_bytes(bytes_)
    landing.land("c", 3)
    assert landing.attempt(inputs="compare") == [1, 2, 3]
    (line,) = lines(capsys, "CKP121")
    assert "recomputed. Its inputs moved: " in line
    assert words in line


def test_looking_starts_no_job(landing: Landing) -> None:
    tracker = landing.script.spark.sparkContext.statusTracker()
    frame = landing.frame()
    jobs: Callable[[], int] = lambda: len(tracker.getJobIdsForGroup(None))  # noqa: E731
    before = jobs()
    listing(frame, {})
    assert jobs() == before


# -- the call ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "word", ["Auto", *(pytest.param(word, marks=pytest.mark.slow) for word in ("", None, True, ["auto"]))]
)  # all are refused alike
def test_another_word_is_refused_at_the_call(landing: Landing, word: object) -> None:
    with landing.script.attempt() as job:
        with pytest.raises(InvalidConfig, match=r"inputs=.* is not one of 'auto', 'compare', 'keep'"):
            job.stage("clean", landing.frame(), inputs=word)  # type: ignore[arg-type]
        assert landing.rows(job) == [1, 2], "the uid is not used up"
