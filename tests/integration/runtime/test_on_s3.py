"""Checkpoints in S3 with their rows: access of driver and Spark, the job's own buckets, and the cost."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.errors import StoreDenied
from airflow_checkpoint_provider.file_sink.log import FileSinkLog
from airflow_checkpoint_provider.file_sink.rewinding import all_aside, put_back
from airflow_checkpoint_provider.file_sink.store_folder import StoreFolder
from airflow_checkpoint_provider.location.files import location_at
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import History, Keys
from airflow_checkpoint_provider.spark import batch_sink, open_checkpoint
from airflow_checkpoint_provider.spark.queries.sinks.files import FileStreamSink
from airflow_checkpoint_provider.spark.queries.writer import Target
from airflow_checkpoint_provider.storage import S3Store, s3_credentials
from tests.integration.runtime.conftest import Launch, Script
from tests.support.launches import Launches
from tests.support.parts import parts
from tests.support.s3server import Key, S3Server
from tests.support.sinks import saved_at, way_back


@pytest.fixture
def root(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """As a script without Airflow finds it: by the usual variables."""
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{bucket}/ckp"


class Confs:
    """What the job's author says of S3 in the session, until the end of a test."""

    def __init__(self, spark: SparkSession) -> None:
        self._hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()
        self._said: list[str] = []

    def say(self, prefix: str, values: dict[str, str]) -> None:
        for name, value in values.items():
            self._said.append(f"{prefix}.{name}")
            self._hadoop.set(self._said[-1], value)

    def get(self, name: str) -> str | None:
        value: str | None = self._hadoop.get(name)
        return value

    def forget(self) -> None:
        for name in self._said:
            self._hadoop.unset(name)


@pytest.fixture
def confs(spark: SparkSession) -> Iterator[Confs]:
    confs = Confs(spark)
    yield confs
    confs.forget()


# -- a script alone ------------------------------------------------------------------------------------------------------


def test_script_without_airflow_continues_its_run(spark: SparkSession, script: Script, root: str) -> None:
    with script.failing(root=root) as job:
        job.value("seen").set(["a"])
        job.stage("clean", job.spark.range(3))
    again = script.recomputes("clean")
    with script.attempt(root=root) as job:
        rows = job.stage("clean", job.spark.range(3))
        assert sorted(row["id"] for row in rows.collect()) == [0, 1, 2]
        assert {path.partition(":")[0] for path in rows.inputFiles()} == {"s3a"}
        assert job.restored
        assert job.restored.pointer == f"{root}/jobs/job/job/chk-1"
        pointer = job.restored.pointer
        assert open_checkpoint(pointer, spark)["clean"].count() == 3
    assert not again()
    assert not script.root.exists(), "nothing lies in a directory"


@pytest.mark.slow  # the one below starts another job from another bucket
def test_job_starts_from_a_checkpoint_in_another_bucket(
    spark: SparkSession, script: Script, root: str, s3: S3Server
) -> None:
    """Reached as the store in hand is."""
    s3.make_bucket(f"{root[5:-4]}-other")
    other = f"s3a://{root[5:-4]}-other"
    with script.attempt(root=other) as job:
        job.value("seen").set(["a"])
        job.stage("clean", job.spark.range(3))
    pointer = f"{other}/jobs/job/job/chk-1"
    with script.attempt(root=root, restore=pointer) as job:
        assert job.value("seen").get() == ["a"]
    assert open_checkpoint(pointer, spark)["clean"].count() == 3


def test_savepoint_is_written_to_another_bucket(spark: SparkSession, script: Script, root: str, s3: S3Server) -> None:
    """The service copies it there; and another history starts from it when its own is gone."""
    bucket = root.split("/")[2]
    s3.make_bucket(f"{bucket}-saved")
    store = S3Store(bucket, "ckp", s3.settings())
    asking = Coordinator(Journal(store, Keys(History("job").prefix), By("test", "", "")))
    with script.attempt(root=root) as job:
        job.value("seen").set(["a"])
        number = asking.trigger(
            Request(token="a person", kind="savepoint", folder=f"s3a://{bucket}-saved/of jobs", origin="task")
        )
        s3.requests.clear()
        job.stage("clean", job.spark.range(3))
        job.checkpoint()
        parts(job).checkpointer.savepoints.wait_begun()
        assert s3.requests["COPY"] == 4 + 2, "Spark renames each of two files twice; then the service copies it"
    asking.journal.catch_up()
    saved = asking.state.checkpoint(number)
    assert saved
    assert saved.published
    assert saved.target
    assert saved.target.startswith(f"s3://{bucket}-saved/of jobs/savepoint-job-{number}-")
    store.delete_under("jobs")
    opened = open_checkpoint(saved.target, spark)
    assert (opened["seen"], opened["clean"].count()) == (["a"], 3)
    with script.attempt(root=root, job_id="other", restore=saved.target) as job:
        assert job.value("seen").get() == ["a"]
        assert job.restored
        assert job.restored.pointer == saved.target


@pytest.mark.slow  # test_sink_going_back.py in a folder; test_sink_gates.py writes to a sink in S3
def test_sink_in_s3_goes_back_and_its_rows_are_put_back(script: Script, root: str, s3: S3Server) -> None:
    """The driver reaches it by Spark, and the command line by the store."""
    bucket = root.split("/")[2]
    out, store = f"s3a://{bucket}/sinks/out", S3Store(bucket, "ckp", s3.settings())
    with script.attempt(root=root) as job:
        spark = job.spark

        def ids(folder: str = out) -> list[int]:
            return sorted(row["id"] for row in spark.read.parquet(folder).collect())

        for batch in range(3):
            batch_sink(out)(spark.range(batch, batch + 1, 1, 1), batch)
        sink = FileStreamSink(spark, "rows", Target("parquet", out))
        gone_back = sink.plan_rewind(replace(saved_at(store, 0, None), path=sink.path), allowed=True)
        for _ in range(2):
            sink.rewind(way_back(gone_back, 29))
            assert (ids(), ids(f"{out}/_rewound-2-def")) == ([0], [1, 2])
        log = FileSinkLog(StoreFolder(location_at(store, out)))
        (aside,) = all_aside(log.files_of)
        assert put_back(log, aside, "ann", aside.manifest.at) is None
        assert ids() == [0, 1, 2]


# -- launched by a task --------------------------------------------------------------------------------------------------

KEY_ID, SECRET, TOKEN = "AKIAHANDEDOVER", "the-secret-of-the-store", "the-token-of-the-session"


@pytest.fixture
def launches(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Launches:
    """As a task hands them over that has keys in its connection."""
    s3.keys[KEY_ID] = Key(SECRET, token=TOKEN)
    launches = Launches(S3Store(bucket, "ckp", s3.settings(KEY_ID)))
    for name, value in s3_credentials.keys(launches.store).items():
        monkeypatch.setenv(name, value)
    return launches


def test_launched_driver_reaches_s3_with_the_keys_of_its_task(
    launched: Launch, launches: Launches, spark: SparkSession
) -> None:
    look = udf(lambda: " ".join(f"{name}={value}" for name, value in os.environ.items()))
    with launched() as job:
        left = [name for name in os.environ if name.startswith("CHECKPOINT_")]
        rows = job.stage("looks", job.spark.range(2).select(look().alias("environment"))).collect()
        pointer = f"{launches.store.uri}/{launches.keys.prefix}/chk-1"
        assert open_checkpoint(pointer, spark)["looks"].count() == 2
    assert left == []
    for row in rows:
        assert "PATH=" in row["environment"]
        assert SECRET not in row["environment"]
        assert TOKEN not in row["environment"]
    assert launches.ends() == [("finished", 0)]
    assert "~3a" in History("etl.totals", launches.history.run).prefix, "keys that are more than letters"


def test_bucket_of_the_job_keeps_its_own_service_and_keys(
    launched: Launch, launches: Launches, spark: SparkSession, confs: Confs, s3: S3Server
) -> None:
    """Though all that the job says of its own is for each bucket that nobody says anything of."""
    with S3Server() as theirs:
        theirs.keys["THEIRS"] = Key("their-secret")
        theirs.make_bucket("orders")
        place = {"endpoint": theirs.url, "endpoint.region": "eu-central-1", "path.style.access": "true"}
        confs.say("fs.s3a", {**place, "access.key": "THEIRS", "secret.key": "their-secret"})
        spark.range(5).write.parquet("s3a://orders/new")
        with launched() as job:
            job.stage("clean", job.spark.read.parquet("s3a://orders/new"))
            job.spark.range(7).write.parquet("s3a://orders/more")
        assert spark.read.parquet("s3a://orders/more").count() == 7
        assert {object_["Key"].partition("/")[0] for object_ in theirs.client.list_objects_v2(Bucket="orders")["Contents"]} == {
            "new", "more",
        }  # fmt: skip
    assert launches.ends() == [("finished", 0)]


def test_confs_of_the_job_for_the_bucket_win(
    launched: Launch, launches: Launches, confs: Confs, s3: S3Server, bucket: str
) -> None:
    seen: Counter[str] = Counter()
    s3.keys["SPARKS"] = Key("sparks-secret", may=lambda method, path: bool(seen.update([method]) or True))
    confs.say(f"fs.s3a.bucket.{bucket}", {"access.key": "SPARKS", "secret.key": "sparks-secret"})
    with launched() as job:
        job.stage("clean", job.spark.range(3))
    assert seen["PUT"] >= 2, "the rows"
    assert confs.get(f"fs.s3a.bucket.{bucket}.session.token") is None


def test_keys_that_s3a_cannot_use_are_refused(launched: Launch, launches: Launches, confs: Confs, bucket: str) -> None:
    confs.say(f"fs.s3a.bucket.{bucket}", {"access.key": "NOBODY", "secret.key": "x"})
    with pytest.raises(StoreDenied, match=r"S3A cannot read s3://.*, though boto3 can: .*Check the job's confs"):
        launched().__enter__()
    assert launches.state().attempts == (), "no epoch was taken"


# -- what it costs -------------------------------------------------------------------------------------------------------


def test_stage_on_s3_costs_known_requests(script: Script, root: str, s3: S3Server) -> None:
    """Of two files: written by two tasks, renamed twice, listed, their footers read; and one checkpoint."""
    with script.attempt(root=root) as job:
        s3.requests.clear()
        job.stage("clean", job.spark.range(3))
        parts(job).checkpointer.wait()
        asked = Counter(s3.requests)
    spark = {kind: asked[kind] for kind in ("HEAD", "LIST", "COPY", "DELETE", "POST")}
    assert spark == {"HEAD": 42, "LIST": 42, "COPY": 4, "DELETE": 4, "POST": 1}
    assert 11 <= asked["PUT"] <= 13, "two files, four markers of folders, the plan, four of the checkpoint; a heartbeat"
    assert 8 <= asked["GET"] <= 20, "the checkpoint's, the footers, and one of the journal each second"
