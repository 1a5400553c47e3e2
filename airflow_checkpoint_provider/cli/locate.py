"""The histories of a store: which there are, and the one that was meant. Runs anywhere; reads only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from airflow_checkpoint_provider.cli.verbs import LIMIT
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.liveness import Liveness, beats_of
from airflow_checkpoint_provider.errors import CheckpointError, CheckpointNotFound, StoreError
from airflow_checkpoint_provider.protocol.keys import History, Keys, check_job_id, safe_token, time_in
from airflow_checkpoint_provider.protocol.lifetime import last_moved
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import Store


@dataclass(frozen=True)
class Found:
    """A history that exists, caught up."""

    keys: Keys
    state: State

    @property
    def newest_run(self) -> str:
        return self.state.runs[-1].key if self.state.runs else self.state.scope


@dataclass(frozen=True)
class Histories:
    """Those of one job, newest first by what last happened in them, closed ones last; those whose names say that they are older were not read, and
    ``unreadable`` ones have an error each."""

    found: tuple[Found, ...]
    not_read: int
    unreadable: tuple[CheckpointError, ...]


def jobs(store: Store) -> list[str]:
    """Job ids; each is its own token."""
    return sorted(store.folders("jobs"))


def histories(store: Store, job: str, limit: int) -> Histories:
    """All of a job in job scope; of its runs the newest ``limit``, as far as names tell: a run's often holds its time."""
    base = f"jobs/{safe_token(check_job_id(job))}"
    runs = sorted(store.folders(f"{base}/runs"), key=_position, reverse=True)
    found, unreadable = [], []
    for prefix in (f"{base}/job", *(f"{base}/runs/{run}" for run in runs[:limit])):
        try:
            one = _read(store, prefix)
        except StoreError:
            raise
        except CheckpointError as error:
            unreadable.append(error)
        else:
            found += [one] if one else []
    found.sort(key=lambda one: last_moved(one.state), reverse=True)
    return Histories(tuple(found), len(runs[limit:]), tuple(unreadable))


def _position(token: str) -> tuple[bool, str]:
    """A run without a time in its name may be as new as any."""
    time = time_in(token)
    return (time is None, time or token)


def _read(store: Store, prefix: str) -> Found | None:
    state = Journal(store, Keys(prefix), By("cli", "", "")).catch_up()
    return Found(Keys(prefix), state) if state.n >= 0 else None


def newest(store: Store, job: str, limit: int) -> Found:
    """The history of a job that was written to last. Raises ``CheckpointNotFound``, or why it cannot be read."""
    all_of = histories(store, job, limit)
    if all_of.found:
        return all_of.found[0]
    if all_of.unreadable:
        raise all_of.unreadable[0]
    raise CheckpointNotFound(f"there is no job {job!r} under {store.uri}; `jobs` lists those that are")


def of_run(store: Store, job: str, run: str) -> tuple[Found, str]:
    """The history that holds a run, and the run's key in it. A name means a history's scope, or a run in job scope."""
    own = _read(store, History(check_job_id(job), run).prefix)
    if own:
        return own, run if own.state.run(run) else own.newest_run
    shared = _read(store, History(job).prefix)
    if shared and shared.state.run(run):
        return shared, run
    newest(store, job, limit=1)  # is it the job that there is not?
    raise CheckpointNotFound(f"job {job!r} has no run {run!r} under {store.uri}; `list {job}` prints its newest runs")


def meant(store: Store, job: str, run: str | None) -> tuple[Found, str | None]:
    """The history that somebody means, and the run's key in it; without a run the newest one, and None."""
    if run is None:
        return newest(store, job, LIMIT), None
    return of_run(store, job, run)


def not_beating(store: Store, found: Iterable[Found], on_wait: Callable[[], object]) -> set[str]:
    """Return the prefixes of the histories whose driver is on record as alive and does not beat.

    Drivers elsewhere are watched for up to half a minute, all at the same time; ``on_wait`` is called before.
    """
    drivers = {tuple(beats_of(one.keys, one.state)): one.keys.prefix for one in found}
    alive = Liveness(store).wait_for_each(drivers, on_wait)
    return {prefix for keys, prefix in drivers.items() if keys and not alive[keys]}
