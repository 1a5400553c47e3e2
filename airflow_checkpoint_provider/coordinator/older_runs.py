"""What a run of a job does for the histories of the runs before it: collect their garbage, and close them. Runs anywhere.

Nobody builds a DAG that cleans up, and a run that failed for good has no process left that could. So each start looks at a
few of the older runs' histories: the oldest, as far as their names tell, and others at random, since those that are kept would
keep the rest from ever being looked at. One LIST says which are closed already; what it says is a hint, and each history is read
before anything is done to it.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from airflow_checkpoint_provider.coordinator.closing import close_if_due
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.garbage import collect, unshared
from airflow_checkpoint_provider.coordinator.journal import Journal, utc_now
from airflow_checkpoint_provider.coordinator.liveness import Liveness, beats_of
from airflow_checkpoint_provider.coordinator.savepoint import publish_due
from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.deletion import policy_of
from airflow_checkpoint_provider.protocol.keys import FOLDER_KINDS, SEGMENT, Keys, safe_token, time_in
from airflow_checkpoint_provider.protocol.lifetime import over_for_good, quiet
from airflow_checkpoint_provider.storage.base import Store

LOOKED_AT = 20  # histories at one start that hold checkpoints, and as many that hold none any more
LISTED = 100_000  # keys at one start: some 50,000 closed histories

_KEY = re.compile(
    r"(?P<history>jobs/[^/]+/runs/[^/]+(?:/items/[^/]+)?)/"
    rf"(?P<part>journal|heartbeat|{'|'.join(FOLDER_KINDS)}|chk-\d+)/(?P<rest>.+)"
)


@dataclass(frozen=True)
class OlderRun:
    """What became of one history: the ids that were deleted, how many leftovers, whether it was closed; or why not."""

    run: str
    deleted: tuple[int, ...] = ()
    leftovers: int = 0
    closed: bool = False
    error: CheckpointError | None = None
    undecided: bool = False  # a driver may live there; a second look tells

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
    """Collect the garbage of the job's runs, and close what is due, but not in ``own``, a prefix. ``stop`` is asked between two
    of them. Raises only where they cannot be listed; one that cannot be read is told with its error.

    A heartbeat that may be a living driver's is read twice: when its history is looked at, and after a ``pause`` of a minute,
    which may return early. A driver is lost only if its beat stood still for all of that minute.
    """
    now = now or utc_now()
    liveness, undecided = Liveness(store), list[Coordinator]()
    for histories in _left(store, job, own):
        for prefix in _some(histories):
            if stop():
                return
            coordinator = Coordinator(Journal(store, Keys(prefix), by))
            done = _collected(coordinator, now, liveness)
            if done.undecided:
                undecided.append(coordinator)
            yield done
    if undecided:
        pause(liveness.beats.still)
    for coordinator in undecided:
        yield _collected(coordinator, now, liveness)


def _collected(coordinator: Coordinator, now: str, liveness: Liveness) -> OlderRun:
    try:
        return _collect(coordinator, now, liveness)
    except CheckpointError as error:
        return OlderRun(coordinator.keys.prefix.rsplit("/", 1)[1], error=error)


def _left(store: Store, job: str, own: str) -> tuple[list[str], list[str]]:
    """Histories that are not closed, oldest first, and last those whose names tell no time: those that hold checkpoints or files of
    them, and the others."""
    boundaries: dict[str, int] = {}
    parts: dict[str, set[str]] = {}
    for one in islice(store.list(f"jobs/{safe_token(job)}/runs"), LISTED):
        found = _KEY.fullmatch(one.key)
        if not found or found["history"] == own:
            continue
        seen = parts.setdefault(found["history"], set())
        if found["part"] == "journal" and found["rest"].isdecimal() and int(found["rest"]) % SEGMENT == 0:
            boundaries[found["history"]] = boundaries.get(found["history"], 0) + 1
        else:
            seen.add(found["part"])
    left = sorted(
        (one for one in parts if parts[one] or boundaries.get(one) == 1), key=lambda one: (time_in(one) or "~", one)
    )
    holding = [one for one in left if parts[one] - {"journal", "heartbeat"}]
    return holding, [one for one in left if one not in set(holding)]


def _some(histories: list[str]) -> list[str]:
    """Half of them the oldest."""
    half = LOOKED_AT // 2
    oldest, others = histories[:half], histories[half:]
    return [*oldest, *random.sample(others, min(half, len(others)))]


def _collect(coordinator: Coordinator, now: str, liveness: Liveness) -> OlderRun:
    """Collect the garbage of a history that is over for good, and close it once its table, too, was kept for long enough."""
    moment = datetime.fromisoformat(now)
    state = coordinator.journal.catch_up()
    if state.closing is not None:
        return OlderRun(state.scope, closed=close_if_due(coordinator, now))
    if state.n < 0 or state.suspended or not quiet(state, moment):
        return OlderRun(state.scope)
    keys = beats_of(coordinator.keys, state)
    liveness.look(keys)
    alive = liveness.alive(keys)
    if alive is not False:
        return OlderRun(state.scope, undecided=alive is None)
    if _lost(coordinator) or not over_for_good(state, policy_of(state), moment):
        return OlderRun(state.scope)
    with contextlib.suppress(CheckpointError):  # what cannot be published keeps the history open, nothing else
        publish_due(coordinator)
    gone = collect(unshared(coordinator), now)  # before it is closed: nobody would know of leftovers then
    return OlderRun(state.scope, gone.ids, gone.leftovers, close_if_due(coordinator, now))


def _lost(coordinator: Coordinator) -> bool:
    """End the attempts of a driver that is dead, and whose task was lost with it; return whether there were any. What it
    left is kept from now on as that of any that failed."""
    living = [attempt.epoch for attempt in coordinator.state.living()]
    for epoch in living:
        coordinator.journal.append(c.EndAttempt(epoch=epoch, how="lost", said_by="a later run"))
    return bool(living)
