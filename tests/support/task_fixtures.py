"""Fixtures of the rooms whose tests run tasks: a connection to a folder, and a job that runs there. Runs where Airflow is.

The ``conftest.py`` of a room imports those that its tests take.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.bases.operator import ExecutorSafeguard

from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.storage import Store, open_store
from tests.support import tasks
from tests.support.acting import Job
from tests.support.faults import FaultyStore


@pytest.fixture(autouse=True)
def outside_of_a_task_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test call ``execute``. No task of an earlier test has left a state."""
    monkeypatch.setattr(ExecutorSafeguard, "test_mode", True)
    tasks.STORES.clear()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return the store of the default connection."""
    connection = {"conn_type": "checkpoint_storage", "extra": {"root": str(tmp_path / "checkpoints")}}
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", json.dumps(connection))
    return open_store(str(tmp_path / "checkpoints"))


@pytest.fixture
def faulty(store: Store, monkeypatch: pytest.MonkeyPatch) -> FaultyStore:
    """Return the store of the connection, with planned faults."""
    made = FaultyStore(store)
    monkeypatch.setattr(CheckpointStorageHook, "_connected", lambda _: made)
    return made


@pytest.fixture
def job(store: Store) -> Job:
    """Return a running job."""
    job = Job(store)
    job.start()
    return job


@pytest.fixture
def asked(job: Job) -> dict[str, Any]:
    """Return the XCom of a trigger."""
    answer: dict[str, Any] = tasks.run(tasks.trigger())
    return answer
