"""Reads of the checkpoint storages for the pages: each is shared by all viewers. Runs in Airflow (API server)."""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

from airflow_checkpoint_provider.coordinator import histories
from airflow_checkpoint_provider.coordinator.coordinator import open_history
from airflow_checkpoint_provider.coordinator.histories import FoundHistory
from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.coordinator.liveness import (
    Beat,
    EarliestOffsets,
    Liveness,
    beat_keys,
    follower_beat,
)
from airflow_checkpoint_provider.errors import (
    CheckpointError,
    CheckpointNotFound,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from airflow_checkpoint_provider.hooks.connections import SELDOM, where
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.protocol.metadata import INLINE, Seal
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import Store
from airflow_checkpoint_provider.text import deferral
from airflow_checkpoint_provider.text.job_list import at_work
from airflow_checkpoint_provider.ui.threads import Turns

EVERY = 3.0  # seconds for which an answer is good
FORGOTTEN = 60.0  # seconds after which an answer is kept no longer: a page of files holds many
LIMIT = 3.0  # seconds for which the pages wait for one answer
THREADS = 4  # for each connection: a store that hangs holds no others
KEPT = 3000  # histories, and answers: enough for two pages of jobs with all their questions
UNDER_WAY = 8  # questions of one user to one store that wait for an answer

T = TypeVar("T")


@dataclass(frozen=True)
class HistoryReading:
    """A history as it was just read.

    ``beat`` is the newest heartbeat of its driver, ``alive`` whether that lives (None: no driver, or not known yet). ``missing``
    has the applications that a pending checkpoint waits for, by its id. ``not_followed`` says since when no triggerer follows the driver
    of a deferred task.
    """

    found: FoundHistory
    root: str
    beat: Beat | None = None
    alive: bool | None = None
    missing: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    earliest: tuple[EarliestOffsets, ...] = ()
    not_followed: str = ""


class Reader:
    """Reads one history again and again: each poll costs one request, and one for each pending checkpoint and heartbeat."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._keys = store, Keys(prefix)
        self.where = where(store)
        self._coordinator = open_history(store, prefix)
        self._liveness = Liveness(store)
        self._earliest: tuple[int, tuple[EarliestOffsets, ...]] = (-1, ())
        self._follower: Beat | None = None
        self._follower_read = float("-inf")

    def poll(self) -> HistoryReading:
        """Read the new entries. Raise ``CheckpointNotFound`` if there is no such history, and the errors of the store."""
        state = self._coordinator.journal.poll()
        if state.n < 0:
            raise CheckpointNotFound(f"there is no history at {self._store.uri}/{self._keys.prefix}")
        found = FoundHistory(self._keys, state)
        keys, beat = beat_keys(self._keys, state), None
        with suppress(StoreError):  # without a heartbeat, the rest is shown
            beat = self._liveness.observe(keys)
        return HistoryReading(
            found,
            self._store.uri,
            beat,
            self._liveness.alive(keys) if keys else None,
            {checkpoint.id: self._coordinator.missing(checkpoint) for checkpoint in state.pending},
            beat.earliest if beat else self._last_offsets(found),
            self._not_followed(state) if keys else "",
        )

    def seal(self, number: int) -> Seal:
        """Read the metadata of a checkpoint, which lists its files. Raise ``CheckpointNotFound`` if it holds none any more."""
        checkpoint = self._coordinator.journal.poll().checkpoint(number)
        if checkpoint is None or not checkpoint.completed_at or checkpoint.over:
            raise CheckpointNotFound(f"chk-{number} holds no files: it is not complete, or was deleted")
        return self._coordinator.read_seal(checkpoint)

    def _not_followed(self, state: State) -> str:
        """Say since when no triggerer follows the driver. Most tasks are not deferred, so this is read seldom."""
        if time.monotonic() - self._follower_read >= SELDOM:
            self._follower_read = time.monotonic()
            with suppress(StoreError):
                self._follower = follower_beat(self._store, self._keys, state)
        return deferral.not_followed(state, self._follower, utc_now()) or ""

    def _last_offsets(self, found: FoundHistory) -> tuple[EarliestOffsets, ...]:
        """Return the offsets in the newest heartbeats. No driver runs, so they change with the journal only."""
        if self._earliest[0] != found.state.n:
            self._earliest = (found.state.n, tuple(histories.earliest_offsets(self._store, found)))
        return self._earliest[1]


class Polls:
    """The questions of the pages to the stores. A question is asked once in ``every`` seconds, however many viewers wait for its answer.

    ``open_store`` opens the store of a connection. Questions run in threads of their own, a few for each connection. A page waits until a
    question is ``limit`` seconds old. Then the question goes on, and its answer serves a later page. A user asks a store few questions at
    once. Further questions wait, and are not asked if that takes ``limit`` seconds. Use it from one event loop.
    """

    def __init__(self, open_store: Callable[[str], Store], *, every: float = EVERY, limit: float = LIMIT) -> None:
        self._open_store, self._every, self.limit = open_store, every, limit
        self._lock = threading.Lock()  # of the next two: several threads answer
        self._stores: dict[str, tuple[float, Store]] = {}  # and when it was opened
        self._readers: OrderedDict[tuple[str, str], Reader] = OrderedDict()
        self._answers: OrderedDict[tuple[Any, ...], _Asked] = OrderedDict()
        self._limiters: dict[str, CapacityLimiter] = {}  # of connections
        self._turns = Turns(UNDER_WAY)

    async def history(self, connection: str, prefix: str, *, within: float = 0.0) -> HistoryReading:
        """Return a history, as it was at most ``within`` seconds ago. Raise ``CheckpointError``."""
        question = ("history", prefix)
        return await self._ask(connection, question, lambda: self._poll(connection, prefix), within)

    async def listed(self, connection: str, prefix: str) -> HistoryReading:
        """Return a history for a list. A history without a driver at work is read seldom. Raise ``CheckpointError``."""
        last = self._answers.get((connection, "history", prefix))
        return await self.history(connection, prefix, within=SELDOM if last and last.rests() else 0.0)

    async def seal(self, connection: str, prefix: str, number: int) -> Seal:
        """Return the metadata of a checkpoint. Raise ``CheckpointError``."""
        # In a reader of its own: one reader serves one thread.
        return await self._ask(
            connection, ("seal", prefix, number), lambda: Reader(self._store(connection), prefix).seal(number)
        )

    async def values(self, connection: str, prefix: str, number: int) -> dict[str, Any]:
        """Return the values and the states of registered objects in a checkpoint, by uid. They never change. Raise ``CheckpointError``."""
        return await self._ask(
            connection,
            ("values", prefix, number),
            lambda: _values(Reader(self._store(connection), prefix).seal(number)),
            math.inf,
        )

    async def jobs(self, connection: str) -> list[str]:
        """Return the ids of all jobs. Raise ``CheckpointError``."""
        return await self._ask(connection, ("jobs",), lambda: histories.jobs(self._store(connection)), SELDOM)

    async def runs(self, connection: str, job: str) -> list[str]:
        """Return the prefixes of a job's histories of one run each, the newest first. Raise ``CheckpointError``."""
        return await self._ask(
            connection, ("runs", job), lambda: histories.run_prefixes(self._store(connection), job), SELDOM
        )

    async def items(self, connection: str, prefix: str) -> list[str]:
        """Return the prefixes of the histories of the items of a run, or of all runs. Raise ``CheckpointError``."""
        store = functools.partial(self._store, connection)
        return await self._ask(connection, ("items", prefix), lambda: histories.item_prefixes(store(), prefix), SELDOM)

    # -- in a thread -------------------------------------------------------------------------------------------------

    def _poll(self, connection: str, prefix: str) -> HistoryReading:
        key, store = (connection, prefix), self._store(connection)
        reader = self._reader(key, store)
        try:
            reading = reader.poll()
        except StoreUnavailable:
            raise
        except CheckpointError as error:
            # Begin anew next time: the history may have been replaced, the connection may have new keys.
            with self._lock:
                self._readers.pop(key, None)
                if isinstance(error, StoreDenied):
                    self._stores.pop(connection, None)
            raise
        with self._lock:
            self._readers[key] = reader
            self._readers.move_to_end(key)
            while len(self._readers) > KEPT:
                self._readers.popitem(last=False)
        return reading

    def _reader(self, key: tuple[str, str], store: Store) -> Reader:
        """Return the reader of a history. A reader that an old poll has left there may read another store, which the connection named then."""
        with self._lock:
            kept = self._readers.get(key)
        return kept if kept and kept.where == where(store) else Reader(store, key[1])

    def _store(self, connection: str) -> Store:
        """Return the store of a connection, which is looked up again now and then: somebody may have changed it."""
        now = time.monotonic()
        with self._lock:
            opened, store = self._stores.get(connection, (now, None))
        if store is None or now - opened >= SELDOM:
            fresh = self._open_store(connection)
            with self._lock:
                # A later look-up of another thread stays: this one may have taken long.
                if self._stores.get(connection, (now, None))[0] <= now:
                    self._stores[connection] = (now, fresh)
                store = self._stores[connection][1]
        return store

    # -- on the event loop -------------------------------------------------------------------------------------------

    async def _ask(self, connection: str, question: tuple[Any, ...], answer: Callable[[], T], within: float = 0.0) -> T:
        """Return the answer to a question, asked now or up to ``every`` or ``within`` seconds ago. Raise what ``answer`` raises."""
        key = (connection, *question)
        try:
            asked = self._known(key, within) or await self._ask_in_turn(key, answer, within)
            answered: T = await asyncio.wait_for(
                asyncio.shield(asked.task), asked.began + self.limit - time.monotonic()
            )
        except TimeoutError:
            raise StoreUnavailable(
                f"the checkpoint storage of connection {connection!r} has not answered for {self.limit:g} s. Look again later;"
                " if it lasts, check that the API server reaches it"
            ) from None
        return answered

    def _known(self, key: tuple[Any, ...], within: float) -> _Asked | None:
        """Return the answer to a question that was asked lately, or is under way."""
        asked = self._answers.get(key)
        if asked is None or asked.older_than(self._every if asked.failed else max(self._every, within)):
            return None
        return asked

    async def _ask_in_turn(self, key: tuple[Any, ...], answer: Callable[[], Any], within: float) -> _Asked:
        """Ask when the user has few questions under way. Raise ``TimeoutError`` if that takes too long."""
        turn = self._turns.of_user(key[0])
        async with asyncio.timeout(self.limit):
            await turn.acquire()
        if known := self._known(key, within):  # somebody else has asked meanwhile
            turn.release()
            return known
        asked = self._ask_now(key, answer)
        asked.task.add_done_callback(lambda _: turn.release())
        return asked

    def _ask_now(self, key: tuple[Any, ...], answer: Callable[[], Any]) -> _Asked:
        self._forget_old()
        limiter = self._limiters.setdefault(key[0], CapacityLimiter(THREADS))
        task = asyncio.create_task(anyio.to_thread.run_sync(answer, limiter=limiter, abandon_on_cancel=True))
        self._answers.pop(key, None)
        self._answers[key] = asked = _Asked(task)
        task.add_done_callback(asked.end)
        return asked

    def _forget_old(self) -> None:
        """Forget answers to old questions; if there are still many, the oldest questions first."""
        asked_long_ago = itertools.takewhile(
            lambda entry: time.monotonic() - entry[1].began >= FORGOTTEN, self._answers.items()
        )
        for key in [key for key, answer in asked_long_ago if answer.ended is not None]:
            del self._answers[key]
        over = len(self._answers) - KEPT
        if over >= 0:
            ended = [key for key, answer in self._answers.items() if answer.ended is not None]
            for key in ended[: over + 1]:
                del self._answers[key]


def _values(seal: Seal) -> dict[str, Any]:
    return {uid: state.value for uid, state in seal.states.items() if state.kind in INLINE}


@dataclass
class _Asked:
    """The answer to a question, which is perhaps still under way. Times are monotonic."""

    task: asyncio.Task[Any]
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    failed: bool = False  # the store, which may soon answer again

    def end(self, task: asyncio.Task[Any]) -> None:
        self.ended = time.monotonic()
        self.failed = task.cancelled() or isinstance(task.exception(), StoreError)

    def rests(self) -> bool:
        """Return whether it is a history without a driver at work."""
        if self.ended is None or self.task.cancelled() or self.task.exception():
            return False
        return not at_work(self.task.result().found)

    def older_than(self, seconds: float) -> bool:
        """Return whether it ended so long ago; not while it is under way."""
        return self.ended is not None and time.monotonic() - self.ended >= seconds
