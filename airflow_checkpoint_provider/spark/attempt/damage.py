"""Finds out whether a stored file that an error of the script names is damaged, or the storage failed. Runs in the Spark driver.

Spark reads rows long after they were verified, and reports a damaged file as it reports a storage that fails for a moment. So
the driver reads that file once more, alone. A damaged file fails each retry, so it is named and no retry follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_checkpoint_provider.coordinator.files import check_again
from airflow_checkpoint_provider.coordinator.restore import holds, unusable
from airflow_checkpoint_provider.errors import CheckpointError, Damaged, StoreError
from airflow_checkpoint_provider.protocol.file_records import File
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.java_errors import texts_of
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.text import state_messages


@dataclass(frozen=True)
class StoredFile:
    """A file of a state. ``file_set`` is the path of its file set."""

    uid: str
    file_set: str
    file: File


def damage_of(error: BaseException | None, attempt: Attempt, states: Iterable[StateSnapshot]) -> Damaged | None:
    """Return the error to end with, if ``error`` comes from a damaged file of ``states`` that a retry would read again.

    Otherwise log what was found, if ``error`` names a stored file at all. The script itself decides about ``sys.exit`` and signals, so
    these are not examined.
    """
    stored = _named_file(error, states) if isinstance(error, Exception) else None
    if stored is None:
        return None
    folder = attempt.keys.file_set(stored.file_set)
    where = f"{folder}/{stored.file.name}"
    try:
        check_again(attempt.store, folder, stored.file)
        say(state_messages.file_is_whole(stored.uid, where))
    except Damaged as damage:
        return _unusable(attempt, stored, damage)
    except StoreError as trouble:
        say(state_messages.file_is_out_of_reach(stored.uid, where, trouble.message))
    return None


def _unusable(attempt: Attempt, stored: StoredFile, damage: Damaged) -> Damaged | None:
    """Return the error that names the checkpoint, unless a retry starts without the file: then log it."""
    named = Damaged(f"state '{stored.uid}': {damage.message}")
    try:
        coordinator = attempt.writer.second_reader()
        point = coordinator.state.restore_point()
        checkpoint = coordinator.state.checkpoint(point.id) if point and point.id else None
        if checkpoint and holds(coordinator.contents(checkpoint)[0], stored.file_set):
            return unusable(coordinator, checkpoint, named, file_set=stored.file_set)
    except CheckpointError as trouble:  # of the journal or of the restore point's seal: a retry says more
        say(str(named))
        say(str(trouble))
        return None
    say(state_messages.file_is_not_needed(named.message))
    return None


def _named_file(error: Exception, states: Iterable[StateSnapshot]) -> StoredFile | None:
    """Return the first stored file whose path stands in ``error`` or its causes."""
    text = "\n".join(texts_of(error))
    for state in states:
        for file_set in state.file_sets:
            if file_set.path in text:
                for file in file_set.files:
                    if f"{file_set.path}/{file.name}" in text:
                        return StoredFile(state.uid, file_set.path, file)
    return None
