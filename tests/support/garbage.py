"""Deleting as a process does that nobody shares its coordinator with. Runs anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider.coordinator import garbage
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from tests.support.histories import at


def expire(coordinator: Coordinator, now: str = at(1)) -> tuple[int, ...]:
    return garbage.expire(garbage.unshared(coordinator), now)


def remove_orphans(coordinator: Coordinator) -> int:
    return garbage.remove_orphans(garbage.unshared(coordinator))


def orphans(coordinator: Coordinator) -> tuple[str, ...]:
    """Return what a dry run names."""
    folders = garbage.folders_of(coordinator.store, coordinator.keys)
    return garbage.plan(coordinator.state, at(1), folders).orphans
