"""A connection to a folder, and a job that runs there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from airflow.sdk.bases.operator import ExecutorSafeguard

from airflow_checkpoint_provider.storage import Store, open_store
from tests.support.acting import Job
from tests.unit.lifecycle import stage


@pytest.fixture(autouse=True)
def _outside_of_a_task_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExecutorSafeguard, "test_mode", True)
    stage.STORES.clear()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return the store of the default connection."""
    connection = {"conn_type": "checkpoint_storage", "extra": {"root": str(tmp_path / "checkpoints")}}
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", json.dumps(connection))
    return open_store(str(tmp_path / "checkpoints"))


@pytest.fixture
def job(store: Store) -> Job:
    """Return a running job."""
    job = Job(store)
    job.start()
    return job
