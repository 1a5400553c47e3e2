"""Each call of a local store at a key. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable

from airflow_checkpoint_provider.storage import LocalStore

ACTS: dict[str, Callable[[LocalStore, str], object]] = {
    "create": lambda store, key: store.create(key, b"ours"),
    "overwrite": lambda store, key: store.overwrite(key, b"ours"),
    "assemble": lambda store, key: store.assemble(key, [b"ours"]),
    "read": lambda store, key: store.read(key),
    "read_range": lambda store, key: store.read_range(key, 0, 4),
    "parts": lambda store, key: list(store.parts(key)),
    "delete": lambda store, key: store.delete([key]),
    "delete_under": lambda store, key: store.delete_under(key),
    "list": lambda store, key: list(store.list(key)),
    "folders": lambda store, key: list(store.folders(key)),
}
