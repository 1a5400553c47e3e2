"""Sinks and the checkpoints that others ask for: gated ones, savepoints, and tasks that wait for the commits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.checkpoint import CheckpointConfig
from airflow_checkpoint_provider.errors import CheckpointFailed, CheckpointNotFound
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import Pointer
from airflow_checkpoint_provider.spark import CheckpointedJob, FileSink, open_checkpoint, read_sink
from airflow_checkpoint_provider.spark.stages.confs import overridden
from tests.integration.runtime.conftest import Launch, Script
from tests.support.launches import Launches
from tests.support.parts import parts
from tests.support.s3server import S3Server
from tests.support.waiting import wait_until

IGNORED = {"spark.sql.files.ignoredPathSegmentRegex": "^part"}  # Spark 4.3 then leaves out all files of a sink


def rows_of(spark: SparkSession, path: Path) -> list[int]:
    return sorted(row.id for row in spark.read.parquet(str(path)).collect()) if any(path.glob("*.parquet")) else []


def asked(script: Script, job: CheckpointedJob, *, token: str = "audit", **wishes: Any) -> int:
    """A task asks for a checkpoint, gated by default, and the driver's watch has seen it."""
    request = Request(**{"token": token, "timeout_s": 60.0, "gated": True, "origin": "task", **wishes})
    number = script.coordinator().trigger(request)
    state = parts(job).attempt.journal
    wait_until(lambda: number in {checkpoint.id for checkpoint in state.state.pending}, say="the watch has not seen it")
    return number


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_gated_sink_publishes_with_a_finalized_gated_checkpoint_alone(script: Script, out: Path) -> None:
    with script.attempt() as job:
        gated, free = job.sink("gated", FileSink(out / "gated"), gated=True), job.sink("free", FileSink(out / "free"))
        for sink in (gated, free):
            sink.write(job.spark.range(3))
        number = asked(script, job)
        job.checkpoint()
        assert rows_of(script.spark, out / "free") == [0, 1, 2]
        assert rows_of(script.spark, out / "gated") == []
        gated.write(job.spark.range(3, 5))
        job.checkpoint()
        script.coordinator().complete(number, finalize=True)
        wait_until(lambda: rows_of(script.spark, out / "gated") == [0, 1, 2], say="not published")
        last = asked(script, job, token="audit 2")
        job.checkpoint()
        script.coordinator().complete(last, finalize=True)
    assert rows_of(script.spark, out / "gated") == [0, 1, 2, 3, 4]


def test_audit_reads_the_rows_that_wait(script: Script, out: Path) -> None:
    with script.attempt() as job:
        job.sink("gated", FileSink(out, partition_by=["half"]), gated=True).write(
            job.spark.range(3).selectExpr("id", "id % 2 AS half")
        )
        number = asked(script, job)
        job.checkpoint()
        coordinator = script.coordinator()
        pointer = str(Pointer(coordinator.store.uri, coordinator.keys.prefix, number))
        with overridden(job.spark, IGNORED):
            rows = open_checkpoint(pointer, job.spark)["gated"]
        assert sorted((row.id, row.half) for row in rows.collect()) == [(0, 0), (1, 1), (2, 0)]
        coordinator.complete(number, finalize=True)


def test_retry_publishes_what_a_gated_checkpoint_has_published_and_no_more(script: Script, out: Path) -> None:
    def run(job: CheckpointedJob, writes: int) -> None:
        sink = job.sink("gated", FileSink(out), gated=True)
        for number in range(writes):
            sink.write(job.spark.range(number, number + 1))
            if number == 0 and job.restored is None:
                asked(script, job)
            job.checkpoint()

    with script.failing() as job:
        run(job, 2)
        parts(job)._sinks.opened["gated"].opened.commit = lambda transaction: never()  # type: ignore[method-assign]
        script.coordinator().complete(1, finalize=True)
    assert rows_of(script.spark, out) == []
    with script.attempt() as job:
        run(job, 2)
        assert rows_of(script.spark, out) == [0]


def never() -> bool:
    raise AssertionError("the driver is dead")


def test_run_that_ends_waits_for_its_gate_and_fails_without_one(
    script: Script, launched: Launch, launches: Launches, out: Path
) -> None:
    launches.checkpointing = CheckpointConfig(timeout="1 s")
    why = "no gated checkpoint has published the rows of gated within 1 s"
    with pytest.raises(CheckpointFailed, match=why), launched() as job:
        job.sink("gated", FileSink(out), gated=True).write(job.spark.range(3))
    assert launches.last().outcome == "failed"
    assert rows_of(script.spark, out) == []


def test_task_that_waits_for_commits_is_told_after_them(script: Script, out: Path) -> None:
    with script.attempt() as job:
        job.sink("report", FileSink(out)).write(job.spark.range(3))
        number = asked(script, job, gated=False, confirm_commits=True)
        job.stage("next", job.spark.range(1))
        wait_until(lambda: script.checkpoint(number).commits_confirmed, say="not confirmed")
        assert rows_of(script.spark, out) == [0, 1, 2]


def test_savepoint_publishes_too_and_another_history_commits_nothing_twice(script: Script, out: Path) -> None:
    with script.attempt() as job:
        job.sink("report", FileSink(out)).write(job.spark.range(3))
        number = asked(script, job, gated=False, kind="savepoint", folder=f"{out}-saved")
        job.checkpoint()
        parts(job).checkpointer.savepoints.wait_begun()
    target = script.checkpoint(number).target
    assert target
    assert rows_of(script.spark, out) == [0, 1, 2]
    with script.attempt(job_id="fork", restore=target) as job:
        job.sink("report", FileSink(out)).write(job.spark.range(3, 5))
    assert rows_of(script.spark, out) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("rows", [3, 0], ids=["the same rows", "no sink"])
def test_retry_of_a_fork_takes_no_write_of_the_first_job_for_its_own(script: Script, out: Path, rows: int) -> None:
    """Runs of both are called ``alone-1``."""
    with script.attempt() as job:
        job.sink("report", FileSink(out)).write(job.spark.range(3))
        job.checkpoint()
        assert rows_of(script.spark, out) == [0, 1, 2]
        job.value("count", 0).set(1)  # so a checkpoint says that the rows are committed
    coordinator = script.coordinator()
    newest = coordinator.state.newest_first()[0].id
    assert newest == 2
    fork = {"job_id": "fork", "restore": str(Pointer(coordinator.store.uri, coordinator.keys.prefix, newest))}
    with script.failing(**fork) as job:
        job.value("count", 0).set(2)
        job.checkpoint()
    with script.attempt(**fork) as job:
        job.value("count", 0).set(3)
        if rows:
            job.sink("report", FileSink(out)).write(job.spark.range(rows))
    assert rows_of(script.spark, out) == sorted([0, 1, 2, *range(rows)])


def test_exact_reader_reads_what_is_committed(script: Script, out: Path) -> None:
    with pytest.raises(CheckpointNotFound):
        read_sink(out, script.spark)
    for number in range(2):
        with script.attempt() as job:
            frame = job.spark.range(number, number + 2).selectExpr("id", "id % 2 AS half")
            job.sink("report", FileSink(out, mode="overwrite", partition_by=["half"])).write(frame)
    (out / "half=1" / "part-by-hand.parquet").write_bytes(b"not rows")
    with overridden(script.spark, IGNORED):
        rows = read_sink(out, script.spark)
    assert sorted((row.id, row.half) for row in rows.collect()) == [(1, 1), (2, 0)]


@pytest.fixture
def s3_target(spark: SparkSession, s3: S3Server, bucket: str) -> Iterator[str]:
    """A bucket whose keys the author of the job has given to S3A."""
    hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()
    settings = s3.settings()
    options = {
        "endpoint": settings.endpoint_url,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "access.key": settings.access_key_id,
        "secret.key": settings.secret_access_key,
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    }
    for name, value in options.items():
        hadoop.set(f"fs.s3a.bucket.{bucket}.{name}", value)
    yield f"s3a://{bucket}/report"
    for name in options:
        hadoop.unset(f"fs.s3a.bucket.{bucket}.{name}")


@pytest.mark.parametrize("mode", [pytest.param("append", marks=pytest.mark.slow), "overwrite"])  # and deletes
def test_sink_in_s3_has_the_keys_of_s3a_for_its_bucket(
    script: Script, s3_target: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "not-the-key")
    for number in range(2):
        with script.attempt() as job:
            job.sink("report", FileSink(s3_target, mode=mode)).write(job.spark.range(number, number + 1))
    assert sorted(row.id for row in read_sink(s3_target, script.spark).collect()) == (
        [1] if mode == "overwrite" else [0, 1]
    )
    assert script.spark.read.parquet(s3_target).count() == (1 if mode == "overwrite" else 2)
