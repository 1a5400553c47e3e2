"""Deleting as a process does that nobody shares its coordinator with. Runs anywhere."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.coordinator import garbage
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.errors import StoreDenied
from airflow_checkpoint_provider.storage import Store
from tests.support.histories import at


def retire(coordinator: Coordinator, now: str = at(1)) -> tuple[int, ...]:
    return garbage.retire(garbage.unshared(coordinator), now)


def remove_orphans(coordinator: Coordinator) -> int:
    return garbage.remove_orphans(garbage.unshared(coordinator))


def refuse_to_delete(store: Store, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``store`` delete no folder that has ``part`` in its key, as if another user had written it."""
    delete_under = store.delete_under

    def refusing(prefix: str) -> None:
        if part in prefix:
            raise StoreDenied(f"{prefix} has files of another user")
        delete_under(prefix)

    monkeypatch.setattr(store, "delete_under", refusing)


def orphans(coordinator: Coordinator) -> tuple[str, ...]:
    """Return what a dry run names."""
    folders = garbage.folders_of(coordinator.store, coordinator.keys)
    return garbage.plan(coordinator.state, at(1), folders).orphans
