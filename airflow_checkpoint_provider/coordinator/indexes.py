"""The map indexes of a mapped task and the items that they have now: an object for each try. Runs anywhere.

A map index is a position in a list, and the list may change between two tries. So an instance registers its item at the start of each try,
before it plans a launch. An instance that finds the newest launch of its item made by another index asks with which item that index is
registered now.

Each try writes an object of its own, once, and the greatest try of an index counts. So an older try that wakes up late changes nothing.
Of two instances with one item, each registers before it plans, and the journal puts their plans in an order: the second one sees what the
first one has registered.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_checkpoint_provider.errors import CommitStateUnknown, OneItemTwice, Superseded
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.fields import Size, Time
from airflow_checkpoint_provider.protocol.keys import INDEXES, History, safe_token
from airflow_checkpoint_provider.protocol.records import VERSION, Record, checked
from airflow_checkpoint_provider.storage.base import Put, Store, put

DIGITS = 6  # of a try, so that tries sort


@dataclass(frozen=True, kw_only=True)
class Registration(Record):
    """The item of a map index in one try. ``generation`` is that of the index: it changes when a person clears it."""

    item: str
    generation: Size
    at: Time
    v: int = VERSION


class Indexes:
    """The registrations of one mapped task in one run. ``token`` is that of any of its instances."""

    def __init__(self, store: Store, history: History, token: Token) -> None:
        self._store = store
        self._runs = f"{History(history.job, history.run).prefix}/{INDEXES}"
        self._run = safe_token(token.run)
        self._folder = f"{self._runs}/{self._run}/{safe_token(f'{token.dag}.{token.task}')}"

    def register(self, index: int, try_number: int, registration: Registration) -> None:
        """Register the item of an index. Does nothing if this try has registered it before.

        Raises ``Superseded`` if a later try of the index has registered, and ``OneItemTwice`` if this try has another item: a try that was
        deferred meets a list that was changed meanwhile. Also deletes the registrations of other runs in a history that runs share.
        """
        newest, _ = self._newest(index)
        if newest > try_number:
            raise Superseded(
                f"item {registration.item!r}: try {newest} of map index {index} has begun; this try ends, without retry. If the DAG run was"
                " deleted and made again: give it another run id"
            )
        key = self._key(index, try_number)
        outcome, body = put(self._store, key, checked(registration))
        if body is None:
            raise CommitStateUnknown.of(f"{key} was written")
        if outcome is Put.EXISTS and (known := Registration.from_bytes(body, key)).item != registration.item:
            raise OneItemTwice(
                f"map index {index} began try {try_number} with item {known.item!r}, and has item {registration.item!r} now: the list was"
                " changed meanwhile. The next try takes the item that it then has"
            )
        self._forget_other_runs()

    def registered(self, index: int) -> Registration | None:
        """Return what an index has registered newest; None if it has registered nothing."""
        _, key = self._newest(index)
        body = self._store.read(key) if key else None
        return Registration.from_bytes(body, key) if body is not None else None

    def _newest(self, index: int) -> tuple[int, str]:
        """Return the greatest try that has registered, and its key; -1 and no key if there is none."""
        tries = [listed.key for listed in self._store.list(f"{self._folder}/{index}")]
        newest = max((key for key in tries if key.rsplit("/", 1)[1].isdecimal()), default="")
        return (int(newest.rsplit("/", 1)[1]) if newest else -1), newest

    def _key(self, index: int, try_number: int) -> str:
        return f"{self._folder}/{index}/{try_number:0{DIGITS}d}"

    def _forget_other_runs(self) -> None:
        """Delete the registrations of other runs: a launch of another run is never compared by its map index."""
        for run in [run for run in self._store.folders(self._runs) if run != self._run]:
            self._store.delete_under(f"{self._runs}/{run}")


def forget(store: Store, run: str) -> None:
    """Delete the registrations of a run, a prefix, whose histories are all closed."""
    store.delete_under(f"{run}/{INDEXES}")
