"""The proof of a stage's rows, without a Spark session. Runs anywhere."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from airflow_checkpoint_provider.protocol.file_records import File
from airflow_checkpoint_provider.spark.stages import parquet_files, proof
from airflow_checkpoint_provider.spark.stages.inputs import Listing
from airflow_checkpoint_provider.spark.stages.plan import Plan
from airflow_checkpoint_provider.spark.stages.proof import Proof
from airflow_checkpoint_provider.spark.state import snapshot
from airflow_checkpoint_provider.storage import LocalStore

FOLDER = "jobs/daily/job/state/clean/1-n0nce"
PLAN = Plan(digest="", read="", text="", leaves=(), python=False, local_rows=False, inputs=(), sorted=False)


def test_rows_are_durable_before_they_are_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark does not sync what it writes: after a power cut, an acknowledged checkpoint would lack rows."""
    names = ("part-0.parquet", "part-1.parquet")
    folder = tmp_path / FOLDER
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_bytes(b"rows")
    synced: list[str] = []
    fsync = os.fsync

    def watched(handle: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{handle}"), tmp_path))
        fsync(handle)

    def counted(*_: object) -> tuple[File, ...]:
        monkeypatch.setattr(os, "fsync", fsync)
        return ()

    monkeypatch.setattr(os, "fsync", watched)
    monkeypatch.setattr(proof, "read_footers", lambda *_: {})
    monkeypatch.setattr(parquet_files, "count_rows", counted)
    attempt, written = MagicMock(store=LocalStore(tmp_path)), MagicMock(sizes=dict.fromkeys(names, 4))
    assert Proof(MagicMock(), attempt, "clean", FOLDER, written, PLAN, Listing()).files(lambda: None) == ()
    above = ["jobs", "jobs/daily", "jobs/daily/job", "jobs/daily/job/state", "jobs/daily/job/state/clean", FOLDER]
    assert synced == [*(f"{FOLDER}/{name}" for name in names), *above]


def test_count_of_spark_is_read_before_the_footers(monkeypatch: pytest.MonkeyPatch) -> None:
    """While they are read the JVM may die. Its count is here by then."""
    read: list[str] = []

    class Counted(MagicMock):
        @property
        def rows(self) -> int:
            read.append("rows")
            return 3

    monkeypatch.setattr(proof, "read_footers", lambda *_: read.append("footers"))
    monkeypatch.setattr(parquet_files, "count_rows", lambda *_: ())
    Proof(MagicMock(), MagicMock(), "clean", FOLDER, Counted(sizes={}), PLAN, Listing()).files(lambda: None)
    assert read == ["rows", "footers"]


def test_checkpoint_does_not_wait_for_the_text_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, free = threading.Event(), threading.Event()

    def overwrite(*_: object) -> None:
        begun.set()
        assert free.wait(60)

    monkeypatch.setattr(snapshot, "CHECK_EVERY", 0.01)
    monkeypatch.setattr(proof, "read_footers", lambda *_: {})
    monkeypatch.setattr(parquet_files, "count_rows", lambda *_: ())
    attempt, unwanted = MagicMock(), MagicMock(side_effect=AssertionError("the rows are proved"))
    attempt.store.overwrite = overwrite
    proved = Proof(MagicMock(), attempt, "clean", FOLDER, MagicMock(sizes={}), PLAN, Listing())
    storing = threading.Thread(target=proved.begin, daemon=True)
    storing.start()
    assert begun.wait(10)
    assert proved.files(unwanted) == ()
    assert storing.is_alive()
    free.set()
    storing.join(10)
