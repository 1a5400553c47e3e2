"""The files that a seal names: whether they are as they were written, and which of them to copy. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from airflow_checkpoint_provider.errors import Damaged
from airflow_checkpoint_provider.protocol.keys import Keys, file_set_path
from airflow_checkpoint_provider.protocol.metadata import File, FileSet, Measures, StateSnapshot
from airflow_checkpoint_provider.storage.base import Store

Pairs = tuple[tuple[str, str], ...]
"""What to copy: key below the source's root, key below the target's."""


# -- comparing -----------------------------------------------------------------------------------------------------------


def verify(store: Store, keys: Keys, states: Iterable[StateSnapshot]) -> int:
    """Compare the files of ``states``, which lie at ``keys``, with a listing of each file set. Return the number of files.

    Raises ``Damaged`` with the first file that is missing or has another size.
    """
    file_sets = [file_set for state in states for file_set in state.file_sets]
    for file_set in {file_set.path: file_set for file_set in file_sets}.values():
        key = keys.file_set(file_set.path)
        sizes = {listed.key.removeprefix(f"{key}/"): listed.size for listed in store.list(key)}
        compare(key, sizes, file_set.files)
    return sum(len(file_set.files) for file_set in file_sets)


def compare(place: str, sizes: Mapping[str, int], files: Iterable[File]) -> None:
    """Compare the acknowledged ``files`` with the ``sizes`` in bytes of the files at ``place``. Other files do not matter.

    Raises ``Damaged`` with the first file that is missing or has another size.
    """
    for file in files:
        if file.name not in sizes:
            raise Damaged(f"{place}/{file.name} is missing")
        if sizes[file.name] != file.bytes:
            raise Damaged(f"{place}/{file.name} has {sizes[file.name]} bytes, {file.bytes} were acknowledged")


# -- copying -------------------------------------------------------------------------------------------------------------


def export_pairs(states: Iterable[StateSnapshot], history: Keys, savepoint: Keys) -> Pairs:
    """Return the files to copy before a savepoint of these states is acknowledged. Their relative paths do not change."""
    file_sets = {file_set.path: file_set for state in states for file_set in state.file_sets}
    return tuple(
        pair for path in sorted(file_sets) for pair in _pairs(file_sets[path], history, file_sets[path], savepoint)
    )


def import_state(
    state: StateSnapshot, elsewhere: Keys, history: Keys, epoch: int, nonce: Callable[[], str]
) -> tuple[StateSnapshot, Pairs]:
    """Return a state of another history as this history holds it, and the files to copy.

    References never leave a history: each file set becomes one of attempt ``epoch`` and keeps the origin of its rows.
    The ids of the other history are dropped: the state is new in the first checkpoint that holds it.
    """
    file_sets = tuple(
        replace(file_set, path=file_set_path(state.uid, epoch, nonce()), origin=file_set.identity)
        for file_set in state.file_sets
    )
    original = state.measures
    measures = Measures(barrier=original.barrier, work_s=original.work_s, new_bytes=state.bytes)
    pairs = (_pairs(old, elsewhere, new, history) for old, new in zip(state.file_sets, file_sets, strict=True))
    return replace(state, file_sets=file_sets, measures=measures), tuple(
        pair for file_set in pairs for pair in file_set
    )


def _pairs(old: FileSet, source: Keys, new: FileSet, target: Keys) -> Pairs:
    return tuple(
        (f"{source.file_set(old.path)}/{file.name}", f"{target.file_set(new.path)}/{file.name}") for file in old.files
    )
