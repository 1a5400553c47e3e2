"""The jobs and histories of a store, and the history that the arguments name. Runs anywhere; reads only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from airflow_checkpoint_provider.cli import LIMIT
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.liveness import EarliestOffsets, Liveness, beats_of, read_beat
from airflow_checkpoint_provider.errors import (
    CheckpointError,
    CheckpointNotFound,
    StoreDenied,
    StoreMisconfigured,
    StoreUnavailable,
)
from airflow_checkpoint_provider.protocol.keys import History, Keys, check_job_id, is_job_id, safe_token, time_in
from airflow_checkpoint_provider.protocol.lifetime import last_moved
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import Store
from airflow_checkpoint_provider.text.replay import reads_kafka

ATTEMPTS = 5  # whose heartbeats are read


@dataclass(frozen=True)
class FoundHistory:
    """A history that exists, with its state as it was just read."""

    keys: Keys
    state: State

    @property
    def newest_run(self) -> str:
        return self.state.runs[-1].key if self.state.runs else self.state.scope


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
    return sorted(job for job in store.folders("jobs") if is_job_id(job))


def histories(store: Store, job: str, limit: int) -> Histories:
    """Read the history that all runs of a job share, and those of its newest ``limit`` runs, by the times in their names."""
    base = f"jobs/{safe_token(check_job_id(job))}"
    found, unreadable = list[FoundHistory](), list[CheckpointError]()
    try:
        runs = sorted(store.folders(f"{base}/runs"), key=_position, reverse=True)
    except (StoreDenied, StoreMisconfigured) as error:  # of this job alone: the store itself has just listed the jobs
        runs, unreadable = [], [error]
    for prefix in (f"{base}/job", *(f"{base}/runs/{run}" for run in runs[:limit])):
        try:
            history = _read(store, prefix)
        except StoreUnavailable:
            raise
        except CheckpointError as error:
            unreadable.append(error)
        else:
            found += [history] if history else []
    found.sort(key=lambda history: last_moved(history.state), reverse=True)
    return Histories(tuple(found), len(runs[limit:]), tuple(unreadable))


def _position(token: str) -> tuple[bool, str]:
    """Return the key to sort runs by. A run without a time in its name may be the newest."""
    time = time_in(token)
    return (time is None, time or token)


def _read(store: Store, prefix: str) -> FoundHistory | None:
    state = Journal(store, Keys(prefix), By("cli", "", "")).catch_up()
    return FoundHistory(Keys(prefix), state) if state.n >= 0 else None


def newest(store: Store, job: str, limit: int) -> FoundHistory:
    """Return the history of a job that changed last. Raises ``CheckpointNotFound``, or why it cannot be read."""
    all_of = histories(store, job, limit)
    if all_of.found:
        return all_of.found[0]
    if all_of.unreadable:
        raise all_of.unreadable[0]
    raise CheckpointNotFound(f"there is no job {job!r} under {store.uri}. `jobs` lists all jobs")


def earliest_offsets(store: Store, found: FoundHistory) -> Sequence[EarliestOffsets]:
    """Return the offsets of Kafka in the newest heartbeat that has some. An attempt that ended early has none."""
    attempts = reversed(found.state.attempts[-ATTEMPTS:]) if any(map(reads_kafka, found.state.checkpoints)) else ()
    beats = (read_beat(store, found.keys.attempt_beat(attempt.epoch)) for attempt in attempts)
    return next((beat.earliest for beat in beats if beat and beat.earliest), ())


def find_run(store: Store, job: str, run: str) -> tuple[FoundHistory, str]:
    """Return the history of a run, and the run's key in it. ``run`` is the scope of a history, or a run in a shared history.

    Raises ``CheckpointNotFound``.
    """
    own = _read(store, History(check_job_id(job), run).prefix)
    if own:
        return own, run if own.state.run(run) else own.newest_run
    shared = _read(store, History(job).prefix)
    if shared and shared.state.run(run):
        return shared, run
    newest(store, job, limit=1)  # raises if there is no such job
    raise CheckpointNotFound(f"job {job!r} has no run {run!r} under {store.uri}. `list {job}` prints its newest runs")


def find_history(store: Store, job: str, run: str | None) -> tuple[FoundHistory, str | None]:
    """Return the history that the arguments name, and the run's key in it; without a run the newest history, and None."""
    if run is None:
        return newest(store, job, LIMIT), None
    return find_run(store, job, run)


def not_beating(store: Store, found: Iterable[FoundHistory], on_wait: Callable[[], object]) -> set[str]:
    """Return the prefixes of the histories whose driver is on record as alive and does not beat.

    Drivers elsewhere are watched for up to half a minute, all at the same time; ``on_wait`` is called before.
    """
    drivers = {tuple(beats_of(history.keys, history.state)): history.keys.prefix for history in found}
    alive = Liveness(store).wait_for_each(drivers, on_wait)
    return {prefix for keys, prefix in drivers.items() if keys and alive[keys] is False}
