"""The history that the arguments of a verb name. Runs anywhere; reads only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from airflow_checkpoint_provider.cli import LIMIT
from airflow_checkpoint_provider.coordinator.histories import FoundHistory, histories, jobs, read
from airflow_checkpoint_provider.coordinator.liveness import Liveness, beat_keys, follower_beat
from airflow_checkpoint_provider.errors import CheckpointNotFound, StoreError
from airflow_checkpoint_provider.protocol.keys import History, check_job_id
from airflow_checkpoint_provider.protocol.wording import command, list_of, nearest
from airflow_checkpoint_provider.storage import Store
from airflow_checkpoint_provider.text import deferral


def newest(store: Store, job: str, limit: int) -> FoundHistory:
    """Return the history of a job that changed last. Raises ``CheckpointNotFound``, or the error with which it cannot be read."""
    all_of = histories(store, job, limit)
    if all_of.found:
        return all_of.found[0]
    if all_of.unreadable:
        raise all_of.unreadable[0]
    raise no_job(store, job, f"there is no job {job!r} under {store.uri}")


def no_job(store: Store, job: str, what: str) -> CheckpointNotFound:
    """Return the error for a job that does not exist. It names the job that was perhaps meant."""
    meant = ""
    with contextlib.suppress(StoreError):
        meant = nearest(job, jobs(store))
    return CheckpointNotFound(f"{what}.{meant} `{command('jobs')}` lists all jobs")


def find_run(store: Store, job: str, run: str) -> tuple[FoundHistory, str]:
    """Return the history of a run, and the run's key in it. ``run`` is the scope of a history, or a run in a shared history.

    Raises ``CheckpointNotFound``.
    """
    own = read(store, History(check_job_id(job), run).prefix)
    if own:
        return own, run if own.state.run(run) else own.newest_run
    shared = read(store, History(job).prefix)
    if shared and shared.state.run(run):
        return shared, run
    newest(store, job, limit=1)  # raises if there is no such job
    known = {key.key for history in histories(store, job, LIMIT).found for key in history.state.runs}
    raise CheckpointNotFound(
        f"job {job!r} has no run {run!r} under {store.uri}.{nearest(run, known)} `{list_of(job)}` prints its newest runs"
    )


def find_history(store: Store, job: str, run: str | None) -> tuple[FoundHistory, str | None]:
    """Return the history that the arguments name, and the run's key in it; without a run the newest history, and None."""
    if run is None:
        return newest(store, job, LIMIT), None
    return find_run(store, job, run)


def not_beating(store: Store, found: Iterable[FoundHistory], on_wait: Callable[[], object]) -> set[str]:
    """Return the prefixes of the histories whose driver is on record as alive and does not beat.

    Drivers elsewhere are watched for up to half a minute, all at the same time; ``on_wait`` is called before.
    """
    drivers = {tuple(beat_keys(history.keys, history.state)): history.keys.prefix for history in found}
    alive = Liveness(store).wait_for_each(drivers, on_wait)
    return {prefix for keys, prefix in drivers.items() if keys and alive[keys] is False}


def not_followed(store: Store, found: FoundHistory, now: str) -> str | None:
    """Say since when no triggerer follows the driver of a deferred task; None if one does, or if it cannot be known."""
    with contextlib.suppress(StoreError):
        return deferral.not_followed(found.state, follower_beat(store, found.keys, found.state), now)
    return None
