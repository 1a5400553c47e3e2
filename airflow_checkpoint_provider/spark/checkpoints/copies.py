"""Copy the files of states: into a savepoint, into a full checkpoint, and from where they were restored. Runs in the Spark driver.

A copied file set belongs to the attempt that copies it. It is verified by a listing before anybody refers to it.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from airflow_checkpoint_provider.coordinator.assignment import rename_states_in
from airflow_checkpoint_provider.coordinator.files import Pairs, export_pairs, import_state, verify
from airflow_checkpoint_provider.coordinator.savepoint import target_of
from airflow_checkpoint_provider.errors import CheckpointError, StoreError
from airflow_checkpoint_provider.protocol.checkpoint_records import PENDING, Checkpoint
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.protocol.kinds import DECLINED, EXPIRED, STORE_FAILED
from airflow_checkpoint_provider.protocol.metadata import Seal, StateSnapshot
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.state.snapshot import AttemptEnds, Check, NotWanted
from airflow_checkpoint_provider.storage import Store, copy_all
from airflow_checkpoint_provider.text import messages

LOG_EVERY = 30.0  # seconds between two lines about one copy


class TooLate(Exception):
    """The checkpoint's timeout has passed. The text names the step that was not done."""


def still_wanted(
    attempt: Attempt,
    number: int,
    closing: threading.Event,
    deadline: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Raise ``NotWanted`` unless checkpoint ``number`` is pending, as far as the attempt's watch has seen.

    Raise ``TooLate`` past the ``deadline``, a moment of ``clock``, and ``AttemptEnds`` if ``closing`` is set. End the process if the attempt
    is over.
    """
    attempt.leaving.if_over()
    checkpoint = attempt.journal.state.checkpoint(number)
    if checkpoint is None or checkpoint.status != PENDING:
        raise NotWanted
    if clock() > deadline:
        raise TooLate("its files were not copied")
    if closing.is_set():
        raise AttemptEnds


def in_time(attempt: Attempt, number: int, deadline: float, clock: Callable[[], float] = time.monotonic) -> None:
    """Raise ``NotWanted`` unless checkpoint ``number`` is pending, and ``TooLate`` past the ``deadline``."""
    checkpoint = attempt.journal.state.checkpoint(number)
    if checkpoint is None or checkpoint.status != PENDING:
        raise NotWanted
    if clock() > deadline:
        raise TooLate("the storage did not answer")


def abort_reason(error: Exception, checkpoint: Checkpoint) -> tuple[str, str]:
    """Return the reason and the text for aborting a checkpoint whose states could not be written."""
    if isinstance(error, TooLate):
        return EXPIRED, f"within {checkpoint.timeout_s:g} s, {error}. Set a longer timeout"
    if isinstance(error, CheckpointError):
        return STORE_FAILED if isinstance(error, StoreError) else DECLINED, error.message
    return DECLINED, f"{type(error).__name__}: {error}"


# -- where files are copied to -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CopyTarget:
    """A folder of a store that holds file sets: a history, or a savepoint."""

    store: Store
    keys: Keys

    @classmethod
    def of(cls, attempt: Attempt) -> CopyTarget:
        """Return the history of the attempt."""
        return cls(attempt.store, attempt.keys)


class _Copying:
    """Copies between two locations. All copies together print how far they are, twice a minute."""

    def __init__(self, label: str, source: CopyTarget, target: CopyTarget, total: int) -> None:
        self._label, self.source, self.target, self._total = label, source, target, total
        self._lock = threading.Lock()
        self._done, self._logged = 0, time.monotonic()

    def copy_files(self, record: StateSnapshot, pairs: Pairs, check: Check) -> StateSnapshot:
        """Copy ``pairs`` of keys, compare the copies with the list of ``record``, and return ``record``."""

        def on_done(_: str, size: int) -> None:
            check()
            self._log_progress(size)

        if pairs:
            copy_all(self.source.store, self.target.store, pairs, on_done)
        verify(self.target.store, self.target.keys, [record])
        return record

    def _log_progress(self, size: int) -> None:
        with self._lock:
            self._done += size
            due = time.monotonic() - self._logged >= LOG_EVERY
            if due:
                self._logged = time.monotonic()
        if due:
            say(messages.copied(self._label, self._done, self._total))


class SavepointTarget(_Copying):
    """The directory of a savepoint. Paths stay as they are in the history."""

    def __init__(self, attempt: Attempt, savepoint: Checkpoint, total: int) -> None:
        pointer = target_of(savepoint)
        target = CopyTarget(attempt.store.beside(pointer.root), pointer.keys)
        super().__init__(messages.savepoint(savepoint), CopyTarget.of(attempt), target, total)
        if not total:  # check that the target can be written: else a job without files could stop with no savepoint
            target.store.overwrite(f"{pointer.name}/tried", b"")
            target.store.delete([f"{pointer.name}/tried"])

    def copy(self, record: StateSnapshot, check: Check) -> StateSnapshot:
        return self.copy_files(record, export_pairs((record,), self.source.keys, self.target.keys), check)


class NewFileSets(_Copying):
    """New file sets of this attempt. They share no file with the file sets that are copied."""

    def __init__(self, attempt: Attempt, label: str, source: CopyTarget, total: int) -> None:
        self._attempt = attempt
        super().__init__(label, source, CopyTarget.of(attempt), total)

    def copy(self, record: StateSnapshot, check: Check) -> StateSnapshot:
        copied, pairs = import_state(
            record, self.source.keys, self.target.keys, self._attempt.epoch, lambda: secrets.token_hex(8)
        )
        for file_set in copied.file_sets:
            self._attempt.file_sets.copy(file_set.path)
        return self.copy_files(copied, pairs, check)


# -- restored states ---------------------------------------------------------------------------------------


def renamed(attempt: Attempt) -> Seal | None:
    """Return the restored seal, with the uids that the restore gave to its states."""
    seal, branch = attempt.restored.seal, attempt.journal.state.branch
    if seal is None or not branch.rename or attempt.restored.point != branch.base:
        return seal
    return rename_states_in(seal, branch.rename, attempt.record.application)


def import_states(attempt: Attempt, kept: Mapping[str, StateSnapshot]) -> dict[str, StateSnapshot]:
    """Copy the restored states from another history or savepoint into this one, before the script runs. Return them."""
    restored = attempt.restored
    if restored.store is None or restored.keys is None:
        return dict(kept)
    source = CopyTarget(restored.store, restored.keys)
    if source.store.uri == attempt.store.uri and source.keys == attempt.keys:
        return dict(kept)
    total = total_bytes(kept.values())
    files = sum(len(file_set.files) for state in kept.values() for file_set in state.file_sets)
    if files and restored.point:
        say(messages.copying_from_elsewhere(restored.point, files, total))
    with attempt.activity.copying(str(restored.point)):
        folder = NewFileSets(attempt, str(restored.point), source, total)
        return {uid: folder.copy(record, attempt.leaving.if_over) for uid, record in kept.items()}


def total_bytes(records: Iterable[StateSnapshot]) -> int:
    return sum(record.bytes for record in records)
