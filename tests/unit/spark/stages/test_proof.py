"""The proof of a stage's rows, without a Spark session. Runs anywhere."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from airflow_checkpoint_provider.protocol.metadata import File
from airflow_checkpoint_provider.spark.stages import parquet_files, proof
from airflow_checkpoint_provider.spark.stages.inputs import Listing
from airflow_checkpoint_provider.spark.stages.plan import Plan
from airflow_checkpoint_provider.spark.stages.proof import Proof
from airflow_checkpoint_provider.storage import LocalStore

FOLDER = "jobs/daily/job/state/clean/1-n0nce"


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
    plan = Plan(digest="", read="", text="", leaves=(), python=False, local_rows=False, inputs=(), sorted=False)
    assert Proof(MagicMock(), attempt, "clean", FOLDER, written, plan, Listing()).files(lambda: None) == ()
    above = ["jobs", "jobs/daily", "jobs/daily/job", "jobs/daily/job/state", "jobs/daily/job/state/clean", FOLDER]
    assert synced == [*(f"{FOLDER}/{name}" for name in names), *above]
