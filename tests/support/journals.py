"""Journals over a store, and what others do to it meanwhile. Runs anywhere."""

from __future__ import annotations

import itertools
from typing import Any

from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.protocol.keys import SEGMENT, Keys
from airflow_checkpoint_provider.protocol.records import checked, parse
from airflow_checkpoint_provider.storage import MemoryStore
from airflow_checkpoint_provider.storage.base import Store
from tests.support.histories import at, launch

KEYS = Keys("jobs/flights.delays/job")
SHORT = 4  # entries in a segment, where 64 would only cost time

_nonces = itertools.count()


def open_journal(store: Store, *, segment: int = SEGMENT, place: str = "task") -> Journal:
    """A reader and writer that knows nothing yet."""
    return Journal(
        store,
        KEYS,
        By(place, "flights.delays", "host"),
        segment=segment,
        nonce=lambda: f"nonce {next(_nonces)}",
        clock=lambda: at(1),
    )


def write(journal: Journal, entries: int = 1, **other: Any) -> None:
    """So many entries: each a launch that replaces the one before."""
    for _ in range(entries):
        journal.append(lambda state: launch(try_number=state.next_launch, **other))


def written(entries: int, *, segment: int = SEGMENT) -> MemoryStore:
    """A store that holds a journal of so many entries."""
    store = MemoryStore()
    write(open_journal(store, segment=segment), entries)
    return store


def numbers(store: MemoryStore) -> list[int]:
    """Which entries are there."""
    return [int(key.rsplit("/", 1)[1]) for key in sorted(store.objects) if "/journal/" in key]


def raw(store: MemoryStore, n: int) -> dict[str, Any]:
    """Entry ``n`` as it is stored, without its checksum."""
    return parse(store.objects[KEYS.entry(n)], KEYS.entry(n))


def rewrite(store: MemoryStore, n: int, /, **fields: Any) -> None:
    """Change entry ``n`` as no writer ever does."""
    store.objects[KEYS.entry(n)] = checked(raw(store, n) | fields)


def prune(store: MemoryStore, *, segment: int, stubs: bool = False) -> None:
    """As who wrote the newest boundary does: what is not a boundary goes, up to the segment before the previous one.

    With ``stubs`` boundaries before the last are stubs; a real pruner keeps the last four.
    """
    there = numbers(store)
    last = max(there) // segment
    for n in there:
        if n % segment and n // segment < last:
            del store.objects[KEYS.entry(n)]
        if stubs and n % segment == 0 and n // segment < last:
            store.objects[KEYS.entry(n)] = checked({"v": 1, "inc": raw(store, n)["inc"], "n": n, "stub": True})
