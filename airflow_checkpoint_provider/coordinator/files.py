"""Whether what a seal names is there: names and sizes of all files. Runs anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider.errors import Damaged
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.protocol.metadata import Group, Seal
from airflow_checkpoint_provider.storage.base import Store


def verify_files(store: Store, keys: Keys, seal: Seal) -> int:
    """How many files there are. One listing per group. Raises ``Damaged`` with the first that is missing or of another size."""
    return sum(verify_group(store, keys, group) for state in seal.states.values() for group in state.groups)


def verify_group(store: Store, keys: Keys, group: Group) -> int:
    """How many files the group has; else as ``verify_files``."""
    key = keys.group(group.path)
    there = {one.key.removeprefix(f"{key}/"): one.size for one in store.list(key)}
    for file in group.files:
        if file.name not in there:
            raise Damaged(f"{key}/{file.name} is missing")
        if there[file.name] != file.bytes:
            raise Damaged(f"{key}/{file.name} has {there[file.name]} bytes, {file.bytes} were acknowledged")
    return len(group.files)
