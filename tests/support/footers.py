"""Files with the checksums of their footers, as a driver acknowledges them. Runs anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from airflow_checkpoint_provider.coordinator.files import read_footers
from airflow_checkpoint_provider.protocol.file_records import File
from airflow_checkpoint_provider.storage import Store


def with_footers(store: Store, folder: str, files: Iterable[File]) -> tuple[File, ...]:
    """Return ``files`` with the checksums of their footers, as they are in ``folder`` now."""
    listed = tuple(files)
    footers = read_footers(store, folder, {file.name: file.bytes for file in listed})
    return tuple(replace(file, footer=footers[file.name][0]) for file in listed)
