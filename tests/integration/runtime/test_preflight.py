"""New versions of a script that are compared with a checkpoint, by Spark itself. Runs on Linux."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming.readwriter import DataStreamWriter

from airflow_checkpoint_provider.errors import InvalidConfig, WriteRefused
from airflow_checkpoint_provider.location.rescaling import PARTITIONS
from airflow_checkpoint_provider.protocol.preflight import PREFLIGHT_VARIABLE, PreflightRequest, PreflightResult
from airflow_checkpoint_provider.spark import CheckpointedJob
from airflow_checkpoint_provider.spark import preflight as spark_preflight
from tests.integration.runtime.conftest import Launch, Script
from tests.integration.runtime.preflights import preflight
from tests.integration.runtime.streams import holding, in_batch_one, running_forever, source, stop_with_savepoint
from tests.jobs.matrix import PROVIDER, ROCKSDB
from tests.support.launches import Launches
from tests.support.runs import Home
from tests.support.streams import add_files
from tests.support.waiting import wait_until
from tests.support.writes import with_writes

UID = "totals"


def totals(rows: DataFrame, key: str = "key", *also: Column) -> DataFrame:
    return rows.groupBy(F.window("at", "10 seconds"), key).agg(F.count("*").alias("n"), *also).drop("window")


class Version:
    """A version of a script, in a folder."""

    def __init__(self, script: Script, folder: Path, change: Callable[[DataFrame], DataFrame] = totals) -> None:
        self._script, self._folder, self._change = script, folder, change
        self.uid, self.source, self.sink, self.format, self.rescale = UID, "in", "out", "parquet", False

    def run(self) -> None:
        with self._script.attempt() as job:
            job.start_query(self.uid, self._written(self._change(self._rows(job))), rescale=self.rescale)

    def _rows(self, job: CheckpointedJob) -> DataFrame:
        rows = job.spark.readStream.schema("id long, key string, at timestamp").json(str(self._folder / self.source))
        return rows.withWatermark("at", "0 seconds")

    def _written(self, rows: DataFrame) -> DataStreamWriter:
        writer = rows.writeStream.format(self.format).option("path", str(self._folder / self.sink)).partitionBy("n")
        return writer.trigger(availableNow=True)

    def compared(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, ...]]:
        """Return what does not fit the newest checkpoint, by query. Exit code and copies are looked at, too."""
        before = files(self._script.root)
        with looking(self._script, self._folder, monkeypatch) as answer, pytest.raises(SystemExit) as ended:
            self.run()
        found = {fit.query: fit.differences for fit in PreflightResult.parse(answer.read_text()).queries}
        assert ended.value.code == (3 if any(found.values()) else 0)
        assert files(self._script.root) == before
        return found


@contextmanager
def looking(script: Script, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let each attempt of a script be a preflight. Yield where it answers."""
    answer = folder / "answer"
    with monkeypatch.context() as patch:
        ending_by_exception(patch)
        prefix = script.coordinator().keys.prefix
        request = PreflightRequest(f"file://{script.root}", prefix, "latest", str(answer))
        for name, value in request.to_environment().items():
            patch.setenv(name, value)
        yield answer


def ending_by_exception(patch: pytest.MonkeyPatch) -> None:
    """Let a preflight end by ``SystemExit``, after which PySpark writes again. A driver leaves its process there."""

    def leave(code: int, line: str) -> NoReturn:
        raise SystemExit(code)

    patch.setattr(spark_preflight, "leave", leave)
    with_writes(patch)


def files(folder: Path) -> set[tuple[Path, int]]:
    return {(file, file.stat().st_mtime_ns) for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def ran(script: Script, tmp_path: Path) -> Script:
    """A script whose query has a checkpoint. More files have arrived since."""
    add_files(tmp_path / "in", *range(3))
    Version(script, tmp_path).run()
    add_files(tmp_path / "in", 3)
    return script


def test_version_that_fits_is_ok(ran: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of columns may change, and what is done with the rows after the state."""
    assert Version(ran, tmp_path).compared(monkeypatch) == {UID: ()}
    other = Version(ran, tmp_path, lambda rows: totals(rows.withColumnRenamed("key", "name"), "name").where("n > 3"))
    assert other.compared(monkeypatch) == {UID: ()}
    Version(ran, tmp_path).run()  # it goes on as if nobody had looked


class Scoring(Version):
    """A version of a script that keeps files, too. ``written``: the uids of those that it wrote; ``read``: what it has found in each."""

    uids: tuple[str, ...] = ("model", "index")

    def run(self) -> None:
        self.written, self.read = list[str](), dict[str, str]()
        with self._script.attempt() as job:
            for uid in self.uids:
                local = uid != "model"
                path = Path(job.files(uid, partial(self._write, uid, local), local=local).removeprefix("file://"))
                self.read[uid] = next(file for file in path.iterdir() if file.name[0] == "p").read_text().strip()
            job.start_query(self.uid, self._written(self._change(self._rows(job))))

    def _write(self, uid: str, local: bool, path: str) -> None:
        self.written.append(uid)
        if local:
            Path(path, "part").write_text(uid)
        else:
            self._script.spark.range(1).coalesce(1).selectExpr(f"'{uid}' AS value").write.text(path)


def test_files_of_the_checkpoint_are_given_to_the_script(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of them: the job may run meanwhile. What the checkpoint does not hold is written to the disk of the driver."""
    add_files(tmp_path / "in", *range(3))
    version = Scoring(script, tmp_path)
    version.run()
    assert version.written == ["model", "index"]
    version.uids = ("model", "index", "names")
    assert version.compared(monkeypatch) == {UID: ()}
    assert (version.written, version.read) == (["names"], {uid: uid for uid in version.uids})


def test_table_by_key_begins_without_rows_and_numbers_are_those_of_no_run(
    ran: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with looking(ran, tmp_path, monkeypatch), pytest.raises(SystemExit):
        keep_a_table(ran)


def keep_a_table(script: Script) -> None:
    rows = script.spark.range(3).withColumn("n", F.lit(1))
    with script.attempt() as job:
        table = job.keyed_state("totals", key="id")
        assert job.keyed_state("declared", key="id", schema="id bigint").df.count() == 0
        table.upsert(rows)
        table.delete(script.spark.range(1))
        assert [row.id for row in table.df.orderBy("id").collect()] == [1, 2]
        assert job.txn("rows") == {"txnAppId": "preflight", "txnVersion": "1"}


DIFFERENT: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "another key": (lambda rows: totals(rows, "id"), "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE]"),
    "another column": (lambda rows: totals(rows, "key", F.max("id")), "[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE]"),
    "another operator": (
        lambda rows: rows.dropDuplicates(["key"]).withColumn("n", F.lit(1)),
        "[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA]",
    ),
    "more sources": (lambda rows: totals(rows.union(rows)), "There are [1] sources in the checkpoint offsets"),
}


@pytest.mark.parametrize(
    "name",
    [
        "another key",
        *(pytest.param(name, marks=pytest.mark.slow) for name in DIFFERENT if name != "another key"),  # as that one
    ],
)
def test_state_or_sources_that_do_not_fit_are_named_by_spark(
    ran: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    change, why = DIFFERENT[name]
    (told,) = Version(ran, tmp_path, change).compared(monkeypatch)[UID]
    assert why in told


@pytest.mark.slow  # test_version_that_fits_is_ok
def test_source_in_several_places_of_a_plan_fits(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has one log and several offsets, so the log of the other source has not the number of its offset."""

    def both(rows: DataFrame) -> DataFrame:
        read = rows.sparkSession.readStream.schema("id long, key string, at timestamp")
        return totals(rows.union(rows).union(read.json(f"{tmp_path}/more").withWatermark("at", "0 seconds")))

    for folder in ("in", "more"):
        add_files(tmp_path / folder, 0, 1)
    version = Version(script, tmp_path, both)
    version.run()
    assert version.compared(monkeypatch)[UID] == ()


def test_what_spark_goes_on_with_in_silence_is_named(
    ran: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = Version(ran, tmp_path)
    version.source, version.sink = "elsewhere", "other"
    add_files(tmp_path / "elsewhere", 0)
    monkeypatch.setattr(ran, "spark", ran.spark.newSession())
    before = ran.spark.conf.get(PARTITIONS)
    ran.spark.conf.set(PARTITIONS, "7")
    sink, conf, source = version.compared(monkeypatch)[UID]
    assert sink == f"it writes to file:{tmp_path}/other, and has written to file:{tmp_path}/out"
    assert conf == f"{PARTITIONS} is 7, and stays {before}. Set it so"  # Spark cannot divide a state in HDFS files
    assert source == f"source 0 reads {tmp_path}/elsewhere, and has read file://{tmp_path}/in/0002.json"
    version.source, version.sink, version.format = "in", "out", "json"
    assert version.compared(monkeypatch)[UID][0] == "it writes to json, and has written to parquet"
    version.format, version.rescale = "parquet", True
    assert "Spark can divide only that of RocksDB" in version.compared(monkeypatch)[UID][0]


@pytest.mark.slow
def test_other_number_of_partitions_fits_with_rescale(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "spark", script.spark.newSession())
    script.spark.conf.set(PROVIDER, ROCKSDB)
    add_files(tmp_path / "in", *range(3))
    version = Version(script, tmp_path)
    version.run()
    before = script.spark.conf.get(PARTITIONS)
    script.spark.conf.set(PARTITIONS, "7")
    told = f"{PARTITIONS} is 7, and stays {before}. Set it so, or start it with rescale=True"
    assert version.compared(monkeypatch)[UID] == (told,)
    version.rescale = True
    assert version.compared(monkeypatch)[UID] == ()


@pytest.mark.slow
def test_batch_that_was_broken_off_must_run_with_the_old_number(
    stream: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running_forever(stream, STREAM_STATE="1", STREAM_RESCALE="1")
    with in_batch_one(stream, holding(stream), {PROVIDER: ROCKSDB, PARTITIONS: "2"}) as running:
        savepoint = stop_with_savepoint(stream, running)
    assert preflight(stream, monkeypatch, "--from", savepoint, **{PARTITIONS: "5"}) == 3
    assert "has state in 2 partitions, and batch 1 has begun with that number" in capsys.readouterr().out


@pytest.mark.slow  # tests/unit/spark/test_preflight_run.py
def test_query_that_the_script_leaves_out_does_not_fit(
    ran: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = Version(ran, tmp_path)
    version.uid = "renamed"
    assert version.compared(monkeypatch) == {"renamed": (), UID: ("the script does not start it",)}


class Reporting(Version):
    """A version that writes a report beside its query."""

    def __init__(self, script: Script, folder: Path, *, first: bool) -> None:
        super().__init__(script, folder)
        self.first, self.report, self.after = first, folder / "report", folder / "after"

    def run(self) -> None:
        with self._script.attempt() as job:
            report = job.spark.range(3).write.mode("overwrite")
            if self.first:
                report.json(str(self.report))
            job.start_query(self.uid, self._written(totals(self._rows(job))))
            self.after.touch()
            report.json(str(self.report))


@pytest.mark.slow  # tests/unit/spark/test_preflight_run.py
def test_script_ends_where_its_last_query_is_compared(
    ran: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = Reporting(ran, tmp_path, first=False)
    assert version.compared(monkeypatch) == {UID: ()}
    assert not version.after.exists()
    assert not version.report.exists()


@pytest.mark.slow  # tests/integration/spark/test_read_only.py refuses each way to write
def test_report_that_the_old_version_has_written_stays(
    ran: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script ends at the line that writes it. The next attempt writes it again."""
    version, before = Reporting(ran, tmp_path, first=True), files(ran.root)
    version.report.mkdir()
    (version.report / "old.json").write_text("{}")
    refused = pytest.raises(WriteRefused, match=rf"{__file__}, line \d+: report\.json.*DataFrameWriter\.json may write")
    with looking(ran, tmp_path, monkeypatch) as answer, refused:
        version.run()
    assert not answer.exists()
    assert [file.name for file in version.report.iterdir()] == ["old.json"]
    assert files(ran.root) == before
    version.run()
    assert version.after.exists()


def test_preflight_that_is_over_asks_for_nothing(ran: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its variable is left over, in a shell perhaps."""
    before = files(ran.root)
    with looking(ran, tmp_path / "gone", monkeypatch), pytest.raises(InvalidConfig, match=r"is over\. Unset it"):
        Version(ran, tmp_path).run()
    assert files(ran.root) == before


@pytest.mark.parametrize("text", [None, pytest.param("{", marks=pytest.mark.slow)])  # the request is not read
def test_driver_of_a_task_is_never_a_preflight(
    ran: Script,
    launched: Launch,
    launches: Launches,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
) -> None:
    """The request is a good one, or none at all. The task fails for good, and is told what to remove."""
    with looking(ran, tmp_path, monkeypatch), monkeypatch.context() as patch:
        if text:
            patch.setenv(PREFLIGHT_VARIABLE, text)
        with pytest.raises(SystemExit) as ended:
            launched(launches.plan()).__enter__()
    assert (ended.value.code, launches.coordinator().state.attempts) == (3, ())
    assert f"REFUSED: {PREFLIGHT_VARIABLE} is in the environment of " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["disk", "S3"], indirect=True)
def test_command_compares_another_version_while_the_job_runs(
    stream: Home, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    running_forever(stream, STREAM_STATE="1", STREAM_INTERVAL="1 s")
    add_files(source(stream), 0, 1)
    with stream.started() as running:
        wait_until(lambda: bool(stream.coordinator().state.newest_first()), 120, running.said)
        assert preflight(stream, monkeypatch) == 0
        assert capfd.readouterr().out.split() == ["QUERY", "FITS", "DIFFERS", "rows", "ok"]
        del stream.env["STREAM_STATE"]
        assert preflight(stream, monkeypatch) == 3
        assert "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA" in capfd.readouterr().out
        report = stream.folder / "report"
        line = f"SparkSession.builder.getOrCreate().range(3).write.json({str(report)!r})"
        stream.script.write_text(stream.script.read_text().replace("SCHEMA = ", f"{line}\nSCHEMA = ", 1))
        assert preflight(stream, monkeypatch) == 1  # it writes before its `with` block
        said = capfd.readouterr().err
        assert f"{stream.script}, line " in said
        assert "DataFrameWriter.json may write" in said
        assert not report.exists()
        assert running.process.poll() is None
        assert stream.coordinator().state.last_epoch == 1
