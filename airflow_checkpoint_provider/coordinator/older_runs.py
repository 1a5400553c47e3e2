"""The histories of older runs: a run of a job collects their garbage and closes them. Runs anywhere.

A run that failed for good has no process left that could delete its state. So each start looks at a few histories of
older runs: the oldest, as far as their names tell, and others at random. Without the random choice, histories that
are kept would hide the rest for ever. A listing tells which histories are closed; it is a hint, and each history is
read before anything is done to it.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice

from airflow_checkpoint_provider.coordinator import indexes
from airflow_checkpoint_provider.coordinator.closing import close_if_due, collect_and_close
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator, open_history
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import age_now
from airflow_checkpoint_provider.coordinator.liveness import Liveness, beat_keys
from airflow_checkpoint_provider.coordinator.savepoint import publish_due
from airflow_checkpoint_provider.errors import CheckpointError, StoreError, as_checkpoint_error
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.deletion import policy_of
from airflow_checkpoint_provider.protocol.keys import (
    HISTORY,
    INDEXES,
    ITEMS,
    JOBS,
    SEGMENT,
    STATE,
    runs_folder,
    time_in,
)
from airflow_checkpoint_provider.protocol.lifetime import over_for_good, quiet
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage.base import Store

LOOKED_AT = 20  # histories at one start that hold checkpoints, and as many without any
NAMED = 1_000_000  # runs at one start whose names are listed, 1,000 with one request
LISTED = 100_000  # keys at one start: some 50,000 closed histories
LISTED_OF_ONE = 1000  # of them keys of one folder: enough to tell whether a history is closed

_FOLDER = re.compile(f"{HISTORY}/")
_INDEXES = re.compile(rf"({JOBS}/[^/]+/runs/[^/]+)/{INDEXES}/")
_KEY = re.compile(rf"(?P<history>{HISTORY})/(?P<part>journal|heartbeat|{STATE}|chk-\d+)/(?P<rest>.+)")


@dataclass(frozen=True)
class OlderRun:
    """The result for one history: the deleted ids, the number of leftovers, whether it was closed; or the error."""

    run: str
    deleted: tuple[int, ...] = ()
    leftovers: int = 0
    closed: bool = False
    error: CheckpointError | None = None
    undecided: bool = False  # a driver may live there; a second look decides

    @property
    def changed(self) -> bool:
        return bool(self.deleted or self.leftovers or self.closed)


def collect_older_runs(
    store: Store,
    job: str,
    by: By,
    *,
    own: str,
    stop: Callable[[], bool] = lambda: False,
    pause: Callable[[float], object] = time.sleep,
    now: str = "",
) -> Iterator[OlderRun]:
    """Collect the garbage of the job's runs, and close histories that are due, except ``own``, a prefix.

    ``stop`` is called between two histories. Raises only if the histories cannot be listed; a history that cannot be
    read, or registrations that cannot be deleted, are reported with their error.

    A heartbeat that may be a living driver's is read twice: with its history, and after a ``pause`` of a minute,
    which may return early. A driver is lost only if its beat stood still for all of that minute.
    """
    now = now or age_now()
    liveness, undecided = Liveness(store), list[Coordinator]()
    listed = _listed(store, job, own)
    for run in listed.closed_runs:
        try:
            indexes.forget(store, run)
        except StoreError as error:  # it must not keep the histories from being collected
            yield OlderRun(run.removeprefix(f"{runs_folder(job)}/"), error=error)
    for histories in (listed.holding, listed.others):
        for prefix in _sample(histories):
            if stop():
                return
            coordinator = open_history(store, prefix, by)
            result = _collect_or_report(coordinator, now, liveness)
            if result.undecided:
                undecided.append(coordinator)
            yield result
    if undecided:
        pause(liveness.beats.still)
    for coordinator in undecided:
        yield _collect_or_report(coordinator, now, liveness)


def _collect_or_report(coordinator: Coordinator, now: str, liveness: Liveness) -> OlderRun:
    try:
        return _collect(coordinator, now, liveness)
    except Exception as error:  # noqa: BLE001 - an error in one history must not keep the others from being collected
        prefix = coordinator.keys.prefix
        return OlderRun(
            prefix.removeprefix(f"{runs_folder(prefix.split('/')[1])}/"), error=as_checkpoint_error(error, prefix)
        )


def _name(state: State) -> str:
    """Return the run of a history, with its item."""
    return state.scope + (f", item {state.item}" if state.item else "")


@dataclass(frozen=True)
class _OlderRuns:
    """The prefixes of the histories that are not closed: those that hold checkpoints or files, and the others. Both begin with the oldest;
    names without a time come last. ``closed_runs`` have registrations of map indexes, and no such history.
    """

    holding: list[str]
    others: list[str]
    closed_runs: list[str]


def _listed(store: Store, job: str, own: str) -> _OlderRuns:
    boundaries: dict[str, int] = {}
    parts: dict[str, set[str]] = {}
    registered = list[str]()
    listings = _some_keys(store, runs_folder(job))
    for key in chain.from_iterable(listings):
        if (found := _INDEXES.match(key)) and found[1] not in registered[-1:]:
            registered.append(found[1])
        match = _KEY.fullmatch(key)
        if not match or match["history"] == own:
            continue
        names = parts.setdefault(match["history"], set())
        if match["part"] == "journal" and match["rest"].isdecimal() and int(match["rest"]) % SEGMENT == 0:
            boundaries[match["history"]] = boundaries.get(match["history"], 0) + 1
        else:
            names.add(match["part"])
    histories = sorted(
        (history for history in parts if parts[history] or boundaries.get(history) == 1),
        key=lambda history: (time_in(history) or "~", history),
    )
    holding = [history for history in histories if parts[history] - {"journal", "heartbeat"}]
    others = [history for history in histories if history not in set(holding)]
    # Of the last run of a listing, a history may be open that was not listed. A run without any history is just beginning.
    ends = [keys[-1] for keys in listings if keys]
    cut = {run for run in registered if any(key.startswith(f"{run}/") for key in ends)}
    busy = {*cut, _run_of(own), *map(_run_of, histories)}
    closed = set(map(_run_of, parts)) - busy
    return _OlderRuns(holding, others, [each for each in registered if each in closed])


def _run_of(prefix: str) -> str:
    """Return the prefix of the run to which a history belongs, which is perhaps that of an item."""
    return prefix.partition(f"/{ITEMS}/")[0]


def _some_keys(store: Store, prefix: str) -> list[list[str]]:
    """Return the first ``LISTED`` keys below ``prefix``. If there are more, return as many from a random later run on, too: else closed
    histories would hide the later ones for ever.
    """
    first = [*islice(_keys(store, prefix), LISTED)]
    if len(first) < LISTED:
        return [first]
    return [first, [*islice(_keys(store, prefix, _random_run(store, prefix, first[-1])), LISTED)]]


def _random_run(store: Store, prefix: str, after: str) -> str:
    """Return the prefix of a random run that is greater than ``after``; ``after`` if there is none."""
    later = (f"{prefix}/{name}" for name in islice(store.folders(prefix), NAMED))
    chosen = after
    for count, run in enumerate((run for run in later if run > after), 1):
        if random.randrange(count) == 0:  # so each of them is chosen with the same probability
            chosen = run
    return chosen


def _keys(store: Store, prefix: str, begin: str = "") -> Iterator[str]:
    """Yield the keys below ``prefix`` after ``begin``, of one folder only the first ``LISTED_OF_ONE``: many hide no other folder."""
    after: str | None = begin
    while after is not None:
        keys = (listed.key for listed in store.list(prefix, after=after))
        after, folder, count = None, "", 0
        for key in keys:
            folder, count = (folder, count + 1) if _folder(key) == folder else (_folder(key), 1)
            if count > LISTED_OF_ONE:
                items = f"{folder}{ITEMS}"
                after = items if key < items else f"{folder.removesuffix('/')}0"  # "0" follows "/"
                break
            yield key


def _folder(key: str) -> str:
    match = _FOLDER.match(key)
    return match[0] if match else key


def _sample(histories: list[str]) -> list[str]:
    """Return the oldest histories and a random choice of the others, half of each."""
    half = LOOKED_AT // 2
    oldest, others = histories[:half], histories[half:]
    return [*oldest, *random.sample(others, min(half, len(others)))]


def _collect(coordinator: Coordinator, now: str, liveness: Liveness) -> OlderRun:
    """Collect the garbage of a history that is over for good. Close it if its table has been kept for long enough."""
    moment = datetime.fromisoformat(now)
    state = coordinator.journal.catch_up()
    if state.closing:
        return OlderRun(_name(state), closed=close_if_due(coordinator, now))
    if state.n < 0 or state.suspended or not quiet(state, moment):
        return OlderRun(_name(state))
    keys = beat_keys(coordinator.keys, state)
    liveness.observe(keys)
    alive = liveness.alive(keys)
    if alive is not False:
        return OlderRun(_name(state), undecided=alive is None)
    if _end_lost_attempts(coordinator) or not over_for_good(state, policy_of(state), moment):
        return OlderRun(_name(state))
    with contextlib.suppress(CheckpointError):  # a savepoint that cannot be published only keeps the history open
        publish_due(coordinator)
    collected, closed = collect_and_close(coordinator, now)
    return OlderRun(_name(state), collected.ids, collected.leftovers, closed)


def _end_lost_attempts(coordinator: Coordinator) -> bool:
    """End the attempts of a dead driver whose task was lost too; return whether there were any.

    From then on their state is kept as that of any failed run.
    """
    living = [attempt.epoch for attempt in coordinator.state.living()]
    for epoch in living:
        coordinator.end_attempt(c.EndAttempt(epoch=epoch, outcome="lost", reported_by="a later run"))
    return bool(living)
