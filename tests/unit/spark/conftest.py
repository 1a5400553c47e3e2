"""A driver without a Spark session, over a store that fails on demand. Runs anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import pytest

from airflow_checkpoint_provider.spark.attempt import ending, leaving, watch
from airflow_checkpoint_provider.spark.checkpoints import savepoints
from airflow_checkpoint_provider.spark.checkpoints import task as checkpoint_task
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.faults import FaultyStore, served
from tests.support.saved import memory
from tests.unit.spark.driver import Driver, Left


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
def running(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setattr(checkpoint_task, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(savepoints, "RETRY_PAUSE", 0.01)
    running = Driver(store)
    yield running
    store.plan = served
    running.checkpointer.close()


@pytest.fixture
def impatient(running: Driver) -> Driver:
    """The driver, whose journal waits 0.05 s for a store that does not answer."""
    running.coordinator.journal.patience = 0.05
    return running


@pytest.fixture
def target() -> MemoryStore:
    """Return the store to which savepoints are copied."""
    return memory()


@pytest.fixture(autouse=True)
def _process_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise ``Left`` where the driver ends its process."""

    def leave(code: int, line: str) -> NoReturn:
        raise Left(code, line)

    monkeypatch.setattr(ending, "leave", leave)
    monkeypatch.setattr(leaving, "leave", leave)
    monkeypatch.setattr(watch, "leave", leave)
