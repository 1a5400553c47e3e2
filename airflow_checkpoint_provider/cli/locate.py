"""The history that the arguments of a verb name. Runs anywhere; reads only."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from airflow_checkpoint_provider.cli import LIMIT
from airflow_checkpoint_provider.coordinator.histories import (
    FoundHistory,
    Histories,
    histories,
    jobs,
    read,
    run_histories,
)
from airflow_checkpoint_provider.coordinator.liveness import Liveness, beat_keys, follower_beat
from airflow_checkpoint_provider.errors import CheckpointNotFound, InvalidName, StoreError
from airflow_checkpoint_provider.protocol.keys import JOBS, History, check_item, check_job_id, is_job_id
from airflow_checkpoint_provider.protocol.wording import Name, command, list_of, nearest
from airflow_checkpoint_provider.storage import LocalStore, Store
from airflow_checkpoint_provider.text import deferral
from airflow_checkpoint_provider.text.units import some

SHOWN = 30  # items that an error names
ALL = "1000"  # lines of ``list``, which hold more items than a run has


def newest(store: Store, job: str, limit: int, item: str | None = None) -> FoundHistory:
    """Return the history of a job, or of an item of it, that changed last. Raises ``CheckpointNotFound``, or the error with which it
    cannot be read."""
    all_of = histories(store, job, limit, item)
    if all_of.found:
        return all_of.found[0]
    if all_of.unreadable:
        raise all_of.unreadable[0]
    if item is not None:
        raise _no_item(store, job, None, item)
    raise no_job(store, job, f"there is no job {job!r} under {store.uri}")


def _no_item(store: Store, job: str, run: str | None, item: str) -> CheckpointNotFound:
    """Return the error for an item that has no history. It names the one that was perhaps meant. Raises the error for an unknown job."""
    newest(store, job, limit=1)
    known = histories(store, job, LIMIT) if run is None else run_histories(store, job, run)
    items = sorted(history.state.item for history in known.found if history.state.item)
    where = f"job {job!r}" + (f", run {run}," if run else "")
    its = f" Its items: {_some_items(job, run, items)}" if items else ""
    return CheckpointNotFound(f"{where} has no item {item!r} under {store.uri}.{nearest(item, items)}{its}")


def _some_items(job: str, run: str | None, items: Sequence[str]) -> str:
    """Return the items that an error names, and the command that prints them all, if there are more."""
    names = [Name(job), *([Name(run)] if run else [])]
    return some(items, SHOWN) + (
        f" (`{command('list', *names, '--limit', ALL)}` prints all)" if len(items) > SHOWN else ""
    )


def no_job(store: Store, job: str, what: str) -> CheckpointNotFound:
    """Return the error for a job that does not exist. It names the job that was perhaps meant, or says that its journal is missing."""
    meant = ""
    with contextlib.suppress(StoreError):
        known = jobs(store)
        meant = nearest(job, known)
        if job in known and not histories(store, job, LIMIT).found:
            meant = " Its folder is there, but holds no journal."
    return CheckpointNotFound(f"{what}.{meant} `{command('jobs')}` lists all jobs")


def all_jobs(store: Store) -> list[str]:
    """Return the ids of all jobs, sorted, and those of folders that somebody has replaced by a link: to read them raises an error."""
    links = store.links(JOBS) if isinstance(store, LocalStore) else []
    return sorted({*jobs(store), *filter(is_job_id, links)})


def find_run(store: Store, job: str, run: str, item: str | None = None) -> tuple[FoundHistory, str]:
    """Return the history of a run, or of an item in it, and the run's key there. ``run`` is the scope of a history, or a run in a shared
    history.

    Raises ``CheckpointNotFound``, and ``InvalidName`` if an item must be named.
    """
    own = read(store, History(check_job_id(job), run, item).prefix)
    if own:
        return own, run if own.state.run(run) else own.newest_run
    shared = read(store, History(job, None, item).prefix)
    if shared and shared.state.run(run):
        return shared, run
    if item is not None:
        raise _no_item(store, job, run, item)
    newest(store, job, limit=1)  # raises if there is no such job
    _refuse_several(job, run, items_of_run(store, job, run).found)
    known = {key.key for history in histories(store, job, LIMIT).found for key in history.state.runs}
    raise CheckpointNotFound(
        f"job {job!r} has no run {run!r} under {store.uri}.{nearest(run, known)} `{list_of(job)}` prints its newest runs"
    )


def items_of_run(store: Store, job: str, run: str) -> Histories:
    """Return the histories of the items of a run: its own ones, or those of them that runs share and that the run was in."""
    own = run_histories(store, job, run)
    if own.found or own.unreadable:
        return own
    shared = histories(store, job, 0)
    of_run = (history for history in shared.found if history.state.item and history.state.run(run))
    return Histories(tuple(of_run), 0, shared.unreadable)


def _refuse_several(job: str, run: str, found: Sequence[FoundHistory]) -> None:
    """Raise ``InvalidName`` if a job has a history for each item, and none of them is named."""
    items = sorted(history.state.item for history in found if history.state.item)
    if items:
        option = shlex.quote(f"--item={items[0]}")
        raise InvalidName(
            f"job {job!r}, run {run}, has a history for each item: {_some_items(job, run, items)}. Name one, as in {option}"
        )


def find_history(store: Store, job: str, run: str | None, item: str | None = None) -> tuple[FoundHistory, str | None]:
    """Return the history that the arguments name, and the run's key in it; without a run the newest history, and None.

    Raises ``CheckpointNotFound``, and ``InvalidName`` if the newest run has several items and none is named.
    """
    if item is not None:
        check_item(item)
    if run is not None:
        return find_run(store, job, run, item)
    found = newest(store, job, LIMIT, item)
    if item is None and found.state.item:
        _refuse_several(job, found.newest_run, items_of_run(store, job, found.newest_run).found)
    return found, None


def find_all(store: Store, job: str, run: str | None, limit: int, item: str | None) -> tuple[Histories, str | None]:
    """Return the histories that the arguments name, and the key of the run in them, if one is named: those of all its items, too."""
    if item is not None:
        check_item(item)
    if run is None:
        all_of = histories(store, job, limit, item)
        return (all_of if all_of.found else replace(all_of, found=(newest(store, job, limit, item),))), None
    with contextlib.suppress(InvalidName):
        found, key = find_run(store, check_job_id(job), run, item)
        return Histories((found,), 0, ()), key
    return items_of_run(store, job, run), run


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
