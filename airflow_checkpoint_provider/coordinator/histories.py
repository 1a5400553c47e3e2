"""The jobs and histories of a store. Runs anywhere; reads only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from airflow_checkpoint_provider.coordinator.entry import READER
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.liveness import EarliestOffsets, read_beat
from airflow_checkpoint_provider.errors import CheckpointError, StoreDenied, StoreMisconfigured, StoreUnavailable
from airflow_checkpoint_provider.protocol.checkpoint_records import RETAINED, Checkpoint
from airflow_checkpoint_provider.protocol.keys import (
    ITEMS,
    JOBS,
    History,
    Keys,
    check_job_id,
    is_job_id,
    runs_folder,
    safe_token,
    time_in,
)
from airflow_checkpoint_provider.protocol.lifetime import last_moved
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage.base import Store

NEWEST = 5  # histories of a job that are read to find the one that moved last
ATTEMPTS = 5  # whose heartbeats are read


@dataclass(frozen=True)
class FoundHistory:
    """A history that exists, with its state as it was just read."""

    keys: Keys
    state: State

    @property
    def newest_run(self) -> str:
        return self.state.runs[-1].key if self.state.runs else self.state.scope

    def pointer(self, root: str, checkpoint: Checkpoint) -> str | None:
        """Return the pointer of a checkpoint below the store's root, a URI.

        Return None for a checkpoint that does not exist any more, and for a savepoint that is not published yet.
        """
        if checkpoint.status != RETAINED or (checkpoint.savepoint and not checkpoint.published):
            return None
        return checkpoint.target or str(self.keys.pointer(root, checkpoint.id))


@dataclass(frozen=True)
class Histories:
    """The histories of a job and of its items, the last changed first, closed ones last.

    ``not_read`` counts the runs that were left out because their names say that they are older. ``unreadable`` has an error
    for each history that cannot be read.
    """

    found: tuple[FoundHistory, ...]
    not_read: int
    unreadable: tuple[CheckpointError, ...]


def jobs(store: Store) -> list[str]:
    """Return the ids of all jobs, sorted. Folders that are no jobs, such as ``lost+found``, are passed over."""
    return sorted(job for job in store.folders(JOBS) if is_job_id(job))


def histories(store: Store, job: str, limit: int, item: str | None = None) -> Histories:
    """Read the history that all runs of a job share, and those of its newest runs, by the times in their names: of so many that they have
    ``limit`` histories. With them those of their items, or only those of ``item``.
    """
    found, unreadable = list[FoundHistory](), list[CheckpointError]()
    runs = list[str]()
    try:
        runs = run_prefixes(store, job)
    except (StoreDenied, StoreMisconfigured) as error:  # of this job alone: the store itself has just listed the jobs
        unreadable = [error]
    shared, count, seen = History(job).prefix, 0, 0
    for prefix in (shared, *runs):
        if prefix != shared and count >= limit:
            break
        of_prefix = _read_all(store, prefix, item, shared=prefix == shared)
        found += of_prefix.found
        unreadable += of_prefix.unreadable
        if prefix != shared:
            seen, count = seen + 1, count + max(1, len(of_prefix.found) + len(of_prefix.unreadable))
    found.sort(key=lambda history: last_moved(history.state), reverse=True)
    return Histories(tuple(found), len(runs) - seen, tuple(unreadable))


def run_histories(store: Store, job: str, run: str) -> Histories:
    """Read the history of a run, or the histories of its items."""
    return _read_all(store, History(job, run).prefix, None, shared=False)


def _read_all(store: Store, prefix: str, item: str | None, *, shared: bool) -> Histories:
    """Read the history at ``prefix``, and those of its items: a run has the one or the others, runs may share both."""
    found, unreadable = list[FoundHistory](), list[CheckpointError]()

    def read_one(where: str) -> None:
        try:
            history = read(store, where)
        except StoreUnavailable:
            raise
        except CheckpointError as error:
            unreadable.append(error)
        else:
            found.extend([history] if history else [])

    if item is not None:
        read_one(f"{prefix}/{ITEMS}/{safe_token(item)}")
        return Histories(tuple(found), 0, tuple(unreadable))
    read_one(prefix)
    if shared or not (found or unreadable):
        try:
            for where in item_prefixes(store, prefix):
                read_one(where)
        except (StoreDenied, StoreMisconfigured) as error:
            unreadable.append(error)
    return Histories(tuple(found), 0, tuple(unreadable))


def item_prefixes(store: Store, prefix: str) -> list[str]:
    """Return the prefixes of the histories of the items of a run, or of all runs, by their names."""
    return [f"{prefix}/{ITEMS}/{token}" for token in sorted(store.folders(f"{prefix}/{ITEMS}"))]


def all_prefixes(store: Store, job: str) -> Iterator[str]:
    """Yield the prefixes of all histories that a job may have."""
    for prefix in (History(job).prefix, *run_prefixes(store, job)):
        yield prefix
        yield from item_prefixes(store, prefix)


def run_prefixes(store: Store, job: str) -> list[str]:
    """Return the prefixes of the histories of a job's runs, the newest first, by the times in their names. A run without a time may be
    the newest, too, so one of them stands before each run with a time."""
    base = runs_folder(check_job_id(job))
    runs = sorted(store.folders(base), key=lambda run: time_in(run) or run, reverse=True)
    dated, undated = ([run for run in runs if bool(time_in(run)) is has_time] for has_time in (True, False))
    return [f"{base}/{run}" for pair in zip_longest(undated, dated) for run in pair if run is not None]


def read(store: Store, prefix: str) -> FoundHistory | None:
    """Read the history at ``prefix``; None if there is none."""
    state = Journal(store, Keys(prefix), READER).catch_up()
    return FoundHistory(Keys(prefix), state) if state.n >= 0 else None


def reads_kafka(checkpoint: Checkpoint) -> bool:
    """Return whether somebody may go back to the checkpoint, and its queries would read Kafka again."""
    return checkpoint.status == RETAINED and any(state.sources for state in checkpoint.states)


def earliest_offsets(store: Store, found: FoundHistory) -> Sequence[EarliestOffsets]:
    """Return the offsets of Kafka in the newest heartbeat that has some. An attempt that ended early has none."""
    attempts = reversed(found.state.attempts[-ATTEMPTS:]) if any(map(reads_kafka, found.state.checkpoints)) else ()
    beats = (read_beat(store, found.keys.attempt_beat(attempt.epoch)) for attempt in attempts)
    return next((beat.earliest for beat in beats if beat and beat.earliest), ())
