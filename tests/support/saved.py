"""A checkpoint of a history, copied to the target of a savepoint. Runs anywhere."""

from __future__ import annotations

import itertools

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.files import export_pairs
from airflow_checkpoint_provider.coordinator.savepoint_target import (
    DISPOSAL,
    Savepoint,
    delete_savepoint,
    open_savepoint,
    put_claim,
    put_metadata,
)
from airflow_checkpoint_provider.errors import CheckpointNotFound, SavepointDisposed
from airflow_checkpoint_provider.protocol.keys import SavepointPointer, savepoint_name
from airflow_checkpoint_provider.storage import MemoryStore, Store, copy_all, open_store
from tests.support.acknowledgements import driver, take
from tests.support.histories import at

MINE, OTHER = "1ncarnation", "another 1ncarnation"
_numbers = itertools.count(1)


class Saved:
    """A checkpoint of a history, copied to the target of a savepoint; not published yet."""

    def __init__(self, target: Store) -> None:
        self.history: Store = MemoryStore()
        self.coordinator: Coordinator = driver(self.history)
        number = take(self.coordinator)
        (self.checkpoint,) = self.coordinator.state.retained
        self.seal_key = self.coordinator.keys.seal(number)
        self.target = target
        self.pointer = SavepointPointer(target.uri, savepoint_name("flights.delays", number, "9f3c"))
        states = self.coordinator.read_seal(self.checkpoint).states.values()
        copy_all(self.history, target, export_pairs(states, self.coordinator.keys, self.pointer.keys))

    def publish(self, target: Store | None = None) -> None:
        put_metadata(self.history, self.seal_key, self.checkpoint.digest, target or self.target, self.pointer)

    def claim(self, owner: str = MINE, target: Store | None = None) -> None:
        put_claim(target or self.target, self.pointer, owner, f"who claims for {owner}", at(5))

    def dispose(self, target: Store | None = None, *, by: str = "ann") -> None:
        delete_savepoint(target or self.target, self.pointer, DISPOSAL, by, at(6))

    def open(self) -> Savepoint:
        return open_savepoint(self.pointer, self.target)

    def left(self) -> list[str]:
        return sorted(
            listed.key.removeprefix(f"{self.pointer.name}/") for listed in self.target.list(self.pointer.name)
        )

    def is_(self) -> str:
        """What anybody finds who comes now. That it is torn is no answer."""
        try:
            self.open().verify()
        except SavepointDisposed:
            return "disposed"
        except CheckpointNotFound:
            return "none"
        return "whole"


def memory() -> MemoryStore:
    store = open_store(f"memory://target-{next(_numbers)}")
    assert isinstance(store, MemoryStore)
    return store
