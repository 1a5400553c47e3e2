"""Whether what a seal names is there: names and sizes of all files. Runs anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider.errors import Damaged
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.protocol.metadata import FileSet, Seal
from airflow_checkpoint_provider.storage.base import Store


def verify_files(store: Store, keys: Keys, seal: Seal) -> int:
    """How many files there are. One listing per file set. Raises ``Damaged`` with the first that is missing or of another size."""
    return sum(verify_file_set(store, keys, file_set) for state in seal.states.values() for file_set in state.file_sets)


def verify_file_set(store: Store, keys: Keys, file_set: FileSet) -> int:
    """How many files the file set has; else as ``verify_files``."""
    key = keys.file_set(file_set.path)
    there = {one.key.removeprefix(f"{key}/"): one.size for one in store.list(key)}
    for file in file_set.files:
        if file.name not in there:
            raise Damaged(f"{key}/{file.name} is missing")
        if there[file.name] != file.bytes:
            raise Damaged(f"{key}/{file.name} has {there[file.name]} bytes, {file.bytes} were acknowledged")
    return len(file_set.files)
