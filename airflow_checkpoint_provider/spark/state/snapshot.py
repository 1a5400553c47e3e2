"""Snapshots of states at a barrier: the script's thread pins them, other threads write them. Runs in the Spark driver.

Every kind of state takes part in checkpoints through ``Snapshot``. The rows of a stage are written before its barrier is
reached, so its snapshot only proves them (``stages/proof.py``).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, wait
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from airflow_checkpoint_provider.protocol.file_records import File
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot

Check = Callable[[], object]
"""Raises if the checkpoint is no longer wanted. A long write calls it between two files."""

CHECK_EVERY = 1.0  # seconds between two questions whether the checkpoint that waits is still wanted


class NotWanted(Exception):
    """The checkpoint has its outcome, or the job ends, so its files are not needed."""


class AttemptEnds(NotWanted):
    """The attempt ends. What the script has made already is stored all the same; what can be made again is given up."""


Records = tuple[StateSnapshot, ...]
"""The records of an acknowledgement, one for each state, in the order of the uids."""


class FileSetFolder(Protocol):
    """A folder that gets all files of a snapshot: a savepoint's target, or new file sets of this history."""

    def copy(self, record: StateSnapshot, check: Check) -> StateSnapshot:
        """Copy the files of a record that is written already. Return the record of the copies."""


Made = TypeVar("Made")


class Once(Generic[Made]):
    """The result of a long step by which something that the script has made is stored: the first thread that asks takes the step.

    It is taken to its end though the attempt ends meanwhile: else hours of work would be lost. A step that fails is taken again.
    """

    def __init__(self, step: Callable[[], Made]) -> None:
        self._step, self._lock = step, threading.Lock()
        self._made: list[Made] = []

    def get(self, check: Check) -> Made:
        """Return the result. Raises what the step raises, and what ``check`` raises while another thread takes it."""
        while not self._lock.acquire(timeout=CHECK_EVERY):
            with contextlib.suppress(AttemptEnds):
                check()
        try:
            if not self._made:
                self._made.append(self._step())
            return self._made[0]
        finally:
            self._lock.release()


class Snapshot(Protocol):
    """One state at one barrier."""

    def write(self, check: Check, folder: FileSetFolder | None = None) -> StateSnapshot:
        """Return the record of the state when all its files are there and verified.

        Runs in the asynchronous part, beside the script and beside the writes of other snapshots. Without a ``folder`` the record may refer
        to files that older checkpoints hold. With a ``folder``, all its files are written there. Called once without a folder, and again
        for each folder. May raise what ``check`` raises, and leaves half-written files to the removal of orphans.
        """

    def discard(self) -> None:
        """Give up what the pin holds. Called once, when no checkpoint will be written from this snapshot any more."""


@dataclass(frozen=True)
class StoredSnapshot:
    """A state whose record is complete when it is pinned: a value, a stage that is proved, or a state that was restored."""

    record: StateSnapshot

    def write(self, check: Check, folder: FileSetFolder | None = None) -> StateSnapshot:
        if folder is None or not self.record.file_sets:
            return self.record
        return folder.copy(self.record, check)

    def discard(self) -> None:
        """Do nothing: the pin holds nothing."""


class FilesProof(Protocol):
    """Proves that new files hold the rows that were written."""

    def files(self, check: Check) -> tuple[File, ...]:
        """Return the files with their rows, once they are proved. Raises what ``check`` raises, and ``StoreError``."""


@dataclass(frozen=True)
class ProvedSnapshot:
    """A frame that was written in this attempt. ``record`` lists the files of some file sets without their rows.

    ``proofs`` gives them, by the path of the file set.
    """

    record: StateSnapshot
    proofs: Mapping[str, FilesProof]

    def write(self, check: Check, folder: FileSetFolder | None = None) -> StateSnapshot:
        file_sets = tuple(
            replace(file_set, files=self.proofs[file_set.path].files(check))
            if file_set.path in self.proofs
            else file_set
            for file_set in self.record.file_sets
        )
        return StoredSnapshot(replace(self.record, file_sets=file_sets)).write(check, folder)

    def discard(self) -> None:
        """Do nothing: the rows stay."""


class BarrierSnapshots:
    """The snapshots of one barrier, for every checkpoint and savepoint that is taken of it. ``barrier`` is its name."""

    def __init__(self, snapshots: Sequence[Snapshot], writers: Executor, barrier: str) -> None:
        self._snapshots, self._writers, self.barrier = snapshots, writers, barrier
        self._written: Records | None = None
        self.newest: Mapping[str, StateSnapshot] | None = None
        """The states in the newest completed checkpoint, perhaps none; None if no checkpoint has completed."""

    def records(self, check: Check, folder: FileSetFolder | None = None) -> Records:
        """Write all snapshots, several at once, and return their records. Raises the first error, and stops the others."""
        if folder is not None:
            return self._as_completed(self._write(check, folder))
        if self._written is None:
            self._written = self._write(check, None)
        return self._as_completed(self._written)

    def _write(self, check: Check, folder: FileSetFolder | None) -> Records:
        writes = [self._writers.submit(snapshot.write, check, folder) for snapshot in self._snapshots]
        try:
            return tuple(write.result() for write in writes)
        finally:
            for write in writes:
                write.cancel()
            wait(writes)

    def completed(self, states: Mapping[str, StateSnapshot]) -> None:
        """Remember the states in a completed checkpoint: they are not new in a later one."""
        self.newest = states

    def _as_completed(self, records: Collection[StateSnapshot]) -> Records:
        newest = self.newest or {}
        return tuple(
            known if (known := newest.get(record.uid)) and _same_content(known, record) else record
            for record in records
        )

    def discard(self) -> None:
        for snapshot in self._snapshots:
            snapshot.discard()


def _same_content(known: StateSnapshot, record: StateSnapshot) -> bool:
    return (known.file_sets, known.value, known.query, known.sink, known.loop) == (
        record.file_sets,
        record.value,
        record.query,
        record.sink,
        record.loop,
    )
