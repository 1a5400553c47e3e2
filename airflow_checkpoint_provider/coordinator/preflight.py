"""Copies of the queries and the folders of files in a checkpoint, for a preflight. Runs anywhere.

The job may run meanwhile, and delete the checkpoint. So all of them are copied at once.

In its copy a query runs one empty batch: batch N+1 gets the offsets of batch N. Spark takes it for an interrupted batch and compares
sources, operators and state schemas as at every start, but reads no row.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import unquote

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.restore import open_pointer, resolve
from airflow_checkpoint_provider.errors import CheckpointNotFound, Damaged, InvalidConfig, NothingToCompare
from airflow_checkpoint_provider.location.copying import copy_saved
from airflow_checkpoint_provider.location.files import OFFSETS, Location
from airflow_checkpoint_provider.location.source_files import newest_path
from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.keys import Keys, pointer_of, safe_token
from airflow_checkpoint_provider.protocol.metadata import Seal, StateSnapshot
from airflow_checkpoint_provider.storage.copy import copy_all

TRIES = 3


def checkpoint_of(coordinator: Coordinator, source: str) -> str:
    """Return the URI of the checkpoint that ``source`` names now. Raises ``CheckpointNotFound``, and ``InvalidConfig`` for "none"."""
    if source == "none":
        raise InvalidConfig(
            '"none" holds no query, so nothing can be compared: write latest, an id such as chk-7, or a pointer'
        )
    state = coordinator.journal.catch_up()
    point = resolve(source, state, coordinator.store)
    if point and point.pointer:
        return point.pointer
    number = point.id if point else next((checkpoint.id for checkpoint in state.newest_first()), None)
    if number is None:
        raise CheckpointNotFound(
            f"job {state.job!r} has no checkpoint yet. `{wording.command('trigger', state.job, *wording.item_option(state), state=state)}` takes one"
        )
    return str(coordinator.keys.pointer(coordinator.store.uri, number))


def refuse_without_query(pointer: str, seal: Seal) -> None:
    """Raise ``NothingToCompare`` if the checkpoint at ``pointer`` holds no query."""
    if not any(state.query for state in seal.states.values()):
        raise NothingToCompare(
            f"{pointer} holds no streaming query, so nothing can be compared. The script was not started. A preflight compares queries"
            " only: whether a stage is reused is decided when the job runs"
        )


def copy_queries(coordinator: Coordinator, source: str, folder: Location) -> tuple[str, Seal]:
    """Copy the queries and the folders of a checkpoint. Return its URI and its content. If it is deleted meanwhile, the newest one is tried again.

    Raises what ``open_pointer`` raises, ``NothingToCompare``, and ``Damaged``.
    """
    tries = 0
    while True:
        tries += 1
        pointer = checkpoint_of(coordinator, source)
        try:
            opened = open_pointer(pointer_of(pointer), coordinator.store)
            refuse_without_query(pointer, opened.seal)
            for uid, saved in opened.seal.states.items():
                if saved.query:
                    copy_saved(saved, opened.store, opened.keys, copy_at(folder, uid))
                elif saved.files:
                    copy_all(opened.store, folder.store, _pairs(saved, opened.keys, copy_at(folder, uid)))
        except (CheckpointNotFound, Damaged):
            folder.store.delete_under(folder.key)
            if tries == TRIES or pointer == checkpoint_of(coordinator, source):
                raise
        else:
            return pointer, opened.seal


def _pairs(saved: StateSnapshot, keys: Keys, copy: Location) -> list[tuple[str, str]]:
    """Return the files of a folder to copy: key in the checkpoint's store, key of the copy."""
    file_set = saved.file_sets[0]
    return [(f"{keys.file_set(file_set.path)}/{file.name}", copy.key_of(file.name)) for file in file_set.files]


def copy_at(folder: Location, uid: str, kind: str = "files") -> Location:
    """Return the place of the copy of a query or a folder."""
    return Location(folder.store, folder.key_of(f"{safe_token(uid)}/{kind}"))


def begin_again(own: Location, batch: int) -> None:
    """Write the offsets of ``batch`` for the next batch, too."""
    own.store.overwrite(own.key_of(f"{OFFSETS}/{batch + 1}"), own.read(f"{OFFSETS}/{batch}"))


def newest_files(own: Location, folders: Collection[int]) -> dict[int, str]:
    """Return the newest file that each file source has read, by the number of its folder. Raises ``Damaged``."""
    newest = {folder: newest_path(own, folder) for folder in folders}
    return {folder: unquote(path) for folder, path in newest.items() if path is not None}
