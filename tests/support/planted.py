"""Objects that somebody else planted in a directory. Runs anywhere."""

from __future__ import annotations

from pathlib import Path

from airflow_checkpoint_provider.storage import LocalStore


def plant_3_gib(store: LocalStore, key: str) -> None:
    """Write an object of 3 GiB. The file is sparse, so it takes no disk; a reader of all of it needs the memory."""
    path = Path(store.root, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as planted:
        planted.truncate(3 * 1024**3)
