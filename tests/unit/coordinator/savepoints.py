"""Savepoints that a driver has completed or published, and what lies there. Runs anywhere."""

from __future__ import annotations

import itertools

from airflow_checkpoint_provider.coordinator import savepoint
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.files import export_pairs
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import SavepointPointer
from airflow_checkpoint_provider.storage import copy_all, open_store
from tests.support.acknowledgements import acknowledgement, file_set, stage, take, upload

_numbers = itertools.count(1)


def target() -> str:
    return f"memory://savepoints-{next(_numbers)}"


def completed(coordinator: Coordinator, below: str | None = None) -> SavepointPointer:
    """Complete a savepoint as a driver does, without publishing it."""
    number = coordinator.trigger(
        Request(
            token=f"savepoint {coordinator.state.next_id}", origin="task", kind="savepoint", folder=below or target()
        )
    )
    (checkpoint,) = coordinator.state.pending
    pointer = savepoint.target_of(checkpoint)
    new = stage(f"s{number}", number, made_of=file_set(f"s{number}", coordinator.epoch or 1))
    upload(coordinator.store, coordinator, new.file_sets)
    copy_all(
        coordinator.store, coordinator.store.beside(pointer.root), export_pairs([new], coordinator.keys, pointer.keys)
    )
    coordinator.acknowledge(acknowledgement(number, new, epoch=coordinator.epoch or 1))
    coordinator.complete(number)
    return pointer


def published(coordinator: Coordinator) -> SavepointPointer:
    """Publish a savepoint that is no longer the restore point."""
    pointer = completed(coordinator)
    savepoint.publish_due(coordinator)
    take(coordinator)
    return pointer


def left(pointer: SavepointPointer) -> list[str]:
    """Return the names directly below the savepoint."""
    return sorted({listed.key.split("/")[1] for listed in open_store(pointer.root).list(pointer.name)})
