"""The file sets of one attempt, and which of them are no longer needed. Runs in the Spark driver.

The journal tells which file sets checkpoints refer to. Only the attempt itself knows which ones its DataFrames read and its next
acknowledgement may name. So, while it lives, no other process deletes the file sets that it wrote or restored.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from airflow_checkpoint_provider.protocol.checkpoint_records import ABORTED, PENDING
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.state import State


class FileSets:
    """The file sets that this attempt has written or restored and not deleted. All paths are relative to the history.

    A file set that was given up is never needed again: every later checkpoint of the history refers to file sets of retained checkpoints,
    to current states, or to new file sets. So it may be deleted at any later time, and twice.
    """

    def __init__(self, restored: Collection[str] = ()) -> None:
        self._lock = threading.Lock()
        self._kept = set(restored)
        self._read = set[str]()  # by DataFrames that the script was given: they stay until the attempt is over
        self._of_frames: dict[
            str, deque[tuple[str, ...]]
        ] = {}  # uid of a frame -> its newest rows, and those before them
        self._in_stage = set[str]()  # file sets that the stage which runs now may read or writes
        self._acknowledged: dict[int, set[str]] = {}  # checkpoint without an outcome -> its file sets
        self._unneeded = set[str]()  # folders that are not deleted yet

    @contextmanager
    def stage(self, uid: str, current: Mapping[str, StateSnapshot]) -> Iterator[None]:
        """Keep, inside this block, the file sets of the stage as it is now, and those that it writes."""
        with self._lock:
            self._in_stage = _paths(filter(None, [current.get(uid)]))
        try:
            yield
        finally:
            with self._lock:
                self._in_stage = set()

    def write(self, path: str) -> None:
        """Note that the stage which runs now writes a file set at ``path``."""
        with self._lock:
            self._kept.add(path)
            self._in_stage.add(path)

    def copy(self, path: str) -> None:
        """Note that a file set is copied to ``path``. The copy must end before the next ``mark_unneeded``."""
        with self._lock:
            self._kept.add(path)

    def read(self, path: str) -> None:
        """Note that a DataFrame of the script reads the file set at ``path``."""
        with self._lock:
            self._read.add(path)

    def read_frame(self, uid: str, paths: tuple[str, ...]) -> None:
        """Note that a frame of the script has the rows of the file sets at ``paths`` now. Those before them stay once more."""
        with self._lock:
            rows = self._of_frames.setdefault(uid, deque(maxlen=2))
            if paths not in rows:
                rows.append(paths)

    def read_no_more(self, paths: Collection[str]) -> None:
        """Note that no DataFrame of the script reads these file sets any more."""
        with self._lock:
            self._read.difference_update(paths)

    def acknowledge(self, number: int, states: Iterable[StateSnapshot]) -> None:
        """Keep the file sets of ``states`` until checkpoint ``number`` has its outcome. Call it before the acknowledgement."""
        with self._lock:
            self._acknowledged.setdefault(number, set()).update(_paths(states))

    def mark_unneeded(self, state: State, current: Iterable[StateSnapshot]) -> bool:
        """Give up the file sets that neither a checkpoint nor this attempt needs. Return whether there are folders to delete.

        Call it while no checkpoint and no savepoint is being written. ``current``: the states as they are now.
        """
        with self._lock:
            self._unneeded |= {f"chk-{number}" for number in self._ended(state)}
            read = self._read.union(self._in_stage, *(paths for rows in self._of_frames.values() for paths in rows))
            needed = read.union(_paths(current), _retained(state), *self._acknowledged.values())
            given_up = self._kept - needed
            self._kept -= given_up
            self._unneeded |= given_up
            return bool(self._unneeded)

    def _ended(self, state: State) -> list[int]:
        """Take out the checkpoints that have their outcome. Return those that were aborted: their files are not needed."""
        over = [(number, state.checkpoint(number)) for number in self._acknowledged]
        aborted = [number for number, listed in over if listed is None or listed.status == ABORTED]
        for number, listed in over:
            if listed is None or listed.status != PENDING:
                del self._acknowledged[number]
        return aborted

    def unneeded(self) -> tuple[str, ...]:
        """Return the folders to delete."""
        with self._lock:
            return tuple(sorted(self._unneeded))

    def deleted(self, folders: Iterable[str]) -> None:
        """Note that ``folders`` are deleted."""
        with self._lock:
            self._unneeded.difference_update(folders)


def _paths(states: Iterable[StateSnapshot]) -> set[str]:
    return {file_set.path for state in states for file_set in state.file_sets}


def _retained(state: State) -> set[str]:
    paths = state.paths()
    return {paths[number] for checkpoint in state.retained for number in checkpoint.file_sets if number in paths}
