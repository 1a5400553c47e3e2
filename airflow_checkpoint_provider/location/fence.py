"""The fence of a query's checkpoint location: no later batch can begin there. Runs anywhere.

Spark begins a batch by writing ``offsets/N``: it looks whether the name is free, writes a temporary file, looks again, and renames the
file, which replaces what is there. So an old driver that was suspended may still be about to begin a batch. The *fence* is an entry of the
same name that no Spark can read. It takes the number of the next batch:

1. put it at the first free number, if that is absent;
2. delete temporary files: a driver that has already looked has its file there, and then finds nothing to rename;
3. look again: the fence must be the newest entry, else a batch was faster, and step 1 follows again.

The fence is never deleted, also not with the location: a driver that was suspended for a year still finds it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

from airflow_checkpoint_provider.errors import CommitStateUnknown, Damaged
from airflow_checkpoint_provider.location.files import NOTHING, OFFSETS, UNREADABLE, Location, Position
from airflow_checkpoint_provider.location.foreign import loads
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.storage.base import Put, Store, put

MAGIC = "fenced by airflow-checkpoint-provider"
TEMPORARY = ".tmp"  # how the names of Spark's temporary files end
LATE_COPY = 10.0  # seconds for which S3 may still carry out a copy that it had begun before the location was fenced


@dataclass(frozen=True)
class FenceEntry:
    """The entry that fences a location. It names, for people, the history, the query and the process. No two are equal."""

    incarnation: str
    uid: str
    nonce: str
    by: str

    def to_bytes(self) -> bytes:
        """Return the entry. Its first line is a version that no Spark knows, which gives a clear error."""
        return UNREADABLE + canonical({"magic": MAGIC, **vars(self)}) + b"\n"


def fence_entry_in(body: bytes | None) -> FenceEntry | None:
    """Return an entry of ``offsets`` as a fence, of any history; None if the entry is a batch."""
    if body is None or not body.startswith(UNREADABLE):
        return None
    try:
        about = loads(body.removeprefix(UNREADABLE))
    except (ValueError, RecursionError):
        return None
    if not isinstance(about, dict) or about.get("magic") != MAGIC:
        return None
    return FenceEntry(*(str(about.get(known.name, "")) for known in fields(FenceEntry)))


def newest_batch(location: Location) -> tuple[int, bool]:
    """Return the newest started batch, and whether the location is closed to later batches. Raises ``Damaged``."""
    numbers = location.batches(OFFSETS)
    if not numbers:
        return NOTHING, False
    before = location.key_of(f"{OFFSETS}/{numbers[-1] - 1}")
    # The listing of a folder may lack a batch that began meanwhile
    if numbers[-2:-1] not in ([], [numbers[-1] - 1]) and location.store.read(before) is None:
        raise Damaged(
            f"{location.key_of(OFFSETS)}/{numbers[-1]} follows {numbers[-2]}, and Spark leaves out no batch. If somebody put it there, delete it"
        )
    fenced = fence_entry_in(location.store.read(location.key_of(f"{OFFSETS}/{numbers[-1]}"))) is not None
    return (numbers[-1] - 1 if fenced else numbers[-1]), fenced


def fence_entry_of(location: Location) -> FenceEntry | None:
    """Return the fence after the newest batch; None if the location is not fenced."""
    begun, _ = newest_batch(location)
    return fence_entry_in(location.store.read(location.key_of(f"{OFFSETS}/{begun + 1}")))


def reached(location: Location) -> Position:
    """Return how far the query has come in a location."""
    begun, _ = newest_batch(location)
    return Position(begun, location.committed(begun))


def fence(location: Location, entry: FenceEntry, check: Callable[[], object]) -> int:
    """Fence a location. Return the newest batch that has begun there, -1 if none; no other will ever begin.

    ``check`` raises if this process may not go on; it is called after the fence was put and before anything is deleted. May be
    repeated, by this process or another one, also after a process that was killed here. Raises ``CommitStateUnknown``.
    """
    while True:
        begun, fenced = newest_batch(location)
        if not fenced and not _put(location, begun + 1, entry):
            continue  # a batch has just begun
        check()
        delete_temporary_entries(location)
        if newest_batch(location) == (begun, True):
            return begun


def stays_fenced(location: Location, begun: int, since: float) -> bool:
    """Return True if no batch later than ``begun`` appeared after the location was fenced at ``since``.

    In S3 such a batch may appear some seconds later, so this function waits there.
    """
    if not _copies_late(location.store):
        return True
    time.sleep(max(since + LATE_COPY - time.monotonic(), 0.0))
    return newest_batch(location) == (begun, True)


def _copies_late(store: Store) -> bool:
    return store.uri.startswith("s3:")


def _put(location: Location, number: int, entry: FenceEntry) -> bool:
    """Put the fence at ``number``. Return False if a batch or another fence has that number."""
    key = location.key_of(f"{OFFSETS}/{number}")
    outcome, _ = put(location.store, key, entry.to_bytes())
    if outcome is Put.UNKNOWN:
        raise CommitStateUnknown(
            f"the store did not say whether {key} was written, so nobody knows whether the old attempt can still begin a batch;"
            " nothing else was done. Start the job again"
        )
    return outcome is Put.STORED


def delete_temporary_entries(location: Location) -> None:
    """Delete the temporary files of batches that are about to begin."""
    hidden = location.store.hidden(location.key_of(OFFSETS))
    location.store.delete([key for key in hidden if key.endswith(TEMPORARY)])


def delete_location(location: Location) -> None:
    """Delete a location that nothing needs any more, except for the fence."""
    store, offsets = location.store, location.key_of(OFFSETS)
    newest = next((f"{offsets}/{number}" for number in reversed(location.numbers(OFFSETS))), None)
    kept = newest if newest and fence_entry_in(store.read(newest)) else None
    for folder in store.folders(location.key):
        if folder != OFFSETS:
            store.delete_under(location.key_of(folder))
    beside = (*(listed.key for listed in store.list(location.key)), *store.hidden(offsets), *store.hidden(location.key))
    store.delete([key for key in beside if key != kept])


def not_deleted(store: Store, key: str) -> Iterator[str]:
    """Yield the names of the locations below ``key`` that hold more than the fence. Cost: a listing.

    A single entry of ``offsets`` is taken for the fence: to read it would cost a request for each location that was ever made. A driver
    that was suspended in the middle of a copy may leave an entry of another kind there, of a few bytes.
    """
    files: dict[str, list[str]] = {}
    for listed in store.list(key):
        name, _, file = listed.key.removeprefix(f"{key}/").partition("/")
        files.setdefault(name, []).append(file)
    yield from (name for name, found in files.items() if len(found) > 1 or not found[0].startswith(f"{OFFSETS}/"))
