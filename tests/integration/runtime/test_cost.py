"""The requests of a driver to its store (docs/inside/properties.md), counted in its own threads."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.checkpoint import CheckpointConfig, KeepAll
from airflow_checkpoint_provider.spark.attempt.settings import Settings
from airflow_checkpoint_provider.storage import LocalStore
from tests.integration.runtime.conftest import Script
from tests.support.faults import Call, Fault, FaultyStore
from tests.support.parts import parts
from tests.support.waiting import wait_until

CHECKPOINT, STAGE = "checkpoint-0", "MainThread"


class Counted:
    """The requests of each thread, as ``create chk-1/_metadata``; of the journal only its name."""

    def __init__(self) -> None:
        self.of: dict[str, list[str]] = {CHECKPOINT: [], STAGE: []}

    def __call__(self, call: Call) -> Fault:
        name = call.key.removeprefix("jobs/job/job/")
        what = "journal" if name.startswith("journal/") else name
        self.of.setdefault(threading.current_thread().name, []).append(f"{call.kind} {what}")
        return Fault.NONE

    def clear(self) -> None:
        for requests in self.of.values():
            requests.clear()


@pytest.fixture
def counted(script: Script, monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted()
    monkeypatch.setattr(Settings, "open_store", lambda _: FaultyStore(LocalStore(script.root), counted))
    return counted


def test_stage_costs_three_requests_and_its_checkpoint_seven(script: Script, counted: Counted) -> None:
    with script.attempt(checkpointing=CheckpointConfig(retention=KeepAll())) as job:
        for number, uid in enumerate(("first", "second", "third"), 1):
            job.value(f"value of {uid}").set(uid)
            counted.clear()
            job.stage(uid, job.spark.range(3))
            asked = list(counted.of[STAGE])
            parts(job).checkpointer.wait()
            assert counted.of[CHECKPOINT][-7:] == [
                "create journal",  # triggered
                "read journal",
                f"create chk-{number}/acks/-",
                f"create chk-{number}/_metadata",
                f"read chk-{number}/_metadata",
                "create journal",  # completed
                "read journal",
            ]
            assert len(counted.of[CHECKPOINT]) == 7 or number == 1, "at the start there is the sweep besides"
            file_set = parts(job).states.snapshots[uid].file_sets[0].path
            assert asked == ["read journal", "read journal"], "whether it stands; what moved"
            writers = (name for name in counted.of if name.startswith("snapshot"))
            assert [request for name in writers for request in counted.of[name]] == [f"overwrite {file_set}/plan.json"]


def test_reused_stage_only_reads_the_journal(script: Script, counted: Counted) -> None:
    with script.failing() as job:
        job.stage("clean", job.spark.range(3))
    with script.attempt() as job:
        counted.clear()
        job.stage("clean", job.spark.range(3))
        assert counted.of[STAGE] == ["read journal", "read journal"]


def jobs(spark: SparkSession) -> int:
    """Return how many jobs Spark has started. The listeners that count them come after the jobs."""
    context: Any = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    return int(context.statusStore().jobsList(None).size())


def test_stage_starts_only_the_job_that_writes_its_rows_and_a_reused_stage_none(script: Script) -> None:
    before = jobs(script.spark)
    with script.failing() as job:
        job.stage("clean", job.spark.range(0, 100, 1, 7))
    assert jobs(script.spark) == before + 1
    with script.attempt() as job:
        job.stage("clean", job.spark.range(0, 100, 1, 7))
    assert jobs(script.spark) == before + 1


def test_idle_driver_reads_the_journal_once_a_second(script: Script, counted: Counted) -> None:
    with script.attempt() as job:
        job.checkpoint()
        counted.clear()
        began = time.monotonic()
        wait_until(lambda: len(counted.of.get("checkpoint-watch", ())) >= 3, say=lambda: str(counted.of))
        seconds = time.monotonic() - began
        polls = Counter(counted.of["checkpoint-watch"])
    assert polls.keys() == {"read journal"}
    assert seconds > 1.5, "the third comes two seconds after the first"
