"""The jobs and histories of a store. Runs anywhere; reads only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_checkpoint_provider.coordinator.entry import READER
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.liveness import EarliestOffsets, read_beat
from airflow_checkpoint_provider.errors import CheckpointError, StoreDenied, StoreMisconfigured, StoreUnavailable
from airflow_checkpoint_provider.protocol.checkpoint_records import RETAINED, Checkpoint
from airflow_checkpoint_provider.protocol.keys import JOBS, History, Keys, check_job_id, is_job_id, runs_folder, time_in
from airflow_checkpoint_provider.protocol.lifetime import last_moved
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage.base import Store

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
    """The histories of a job, the last changed first, closed ones last.

    ``not_read`` counts the runs that were left out because their names say that they are older. ``unreadable`` has an error
    for each history that cannot be read.
    """

    found: tuple[FoundHistory, ...]
    not_read: int
    unreadable: tuple[CheckpointError, ...]


def jobs(store: Store) -> list[str]:
    """Return the ids of all jobs, sorted. Folders that are no jobs, such as ``lost+found``, are passed over."""
    return sorted(job for job in store.folders(JOBS) if is_job_id(job))


def histories(store: Store, job: str, limit: int) -> Histories:
    """Read the history that all runs of a job share, and those of its newest ``limit`` runs, by the times in their names."""
    found, unreadable = list[FoundHistory](), list[CheckpointError]()
    runs = list[str]()
    try:
        runs = run_prefixes(store, job)
    except (StoreDenied, StoreMisconfigured) as error:  # of this job alone: the store itself has just listed the jobs
        unreadable = [error]
    for prefix in (History(job).prefix, *runs[:limit]):
        try:
            history = read(store, prefix)
        except StoreUnavailable:
            raise
        except CheckpointError as error:
            unreadable.append(error)
        else:
            found += [history] if history else []
    found.sort(key=lambda history: last_moved(history.state), reverse=True)
    return Histories(tuple(found), len(runs[limit:]), tuple(unreadable))


def run_prefixes(store: Store, job: str) -> list[str]:
    """Return the prefixes of the histories of a job's runs, the newest first, by the times in their names."""
    base = runs_folder(check_job_id(job))
    return [f"{base}/{run}" for run in sorted(store.folders(base), key=_position, reverse=True)]


def _position(token: str) -> tuple[bool, str]:
    """Return the key to sort runs by. A run without a time in its name may be the newest."""
    time = time_in(token)
    return (time is None, time or token)


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
