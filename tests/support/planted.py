"""What somebody else planted: an object in a directory, an entry in a journal, the stub of a savepoint. Runs anywhere."""

from __future__ import annotations

from pathlib import Path

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.savepoint_target import DisposedStub
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.storage import LocalStore


def plant_3_gib(store: LocalStore, key: str) -> None:
    """Write an object of 3 GiB. The file is sparse, so it takes no disk; a reader of all of it needs the memory."""
    path = Path(store.root, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as planted:
        planted.truncate(3 * 1024**3)


STUB = canonical(DisposedStub(by="x", at="2026-01-01T00:00:00Z").to_json())


def append(coordinator: Coordinator, *events: e.Event) -> None:
    """Write an entry that no decision allowed, as somebody with access to the store can."""
    assert coordinator.journal._put_next(events)
    coordinator.journal.catch_up()


def planted(target: str, nonce: str) -> e.CheckpointTriggered:
    """Return the trigger of savepoint 1 at ``target``."""
    request = e.Request(token="planted", kind="savepoint", folder=target.rpartition("/")[0], nonce=nonce)
    return e.CheckpointTriggered(
        id=1, epochs=(1,), branch=0, plan=("",), request=request, timeout_s=600.0, target=target
    )
