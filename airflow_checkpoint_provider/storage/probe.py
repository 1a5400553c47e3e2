"""A check that a store can hold checkpoints, before anything is written to it. Runs anywhere."""

from __future__ import annotations

import secrets
from contextlib import suppress

from airflow_checkpoint_provider.errors import StoreError, StoreMisconfigured, StoreUnavailable
from airflow_checkpoint_provider.storage.base import Put, Store, put

SCRATCH = ".probe"
LISTED = ("once", "b", "c", "a")  # put in this order, which is neither that of a listing nor its reverse


def probe(store: Store) -> None:
    """Put twice at a new scratch key: only the first put may win, and a read must return it. Then list a few keys.

    Raises ``StoreMisconfigured``, which says what went wrong, ``StoreUnavailable`` without an answer, and what the store raises. A store
    that lets two writers win only *sometimes* is not detected; that would need a race.
    """
    scratch = f"{SCRATCH}-{secrets.token_hex(8)}"
    try:
        _put_twice(store, f"{scratch}/{LISTED[0]}")
        _list(store, scratch)
    finally:
        # A few bytes that no listing shows; checkpoints can be written without the right to delete
        with suppress(StoreError):
            store.delete_under(scratch)


def _put_twice(store: Store, key: str) -> None:
    first, second = b"first " + secrets.token_bytes(8), b"second " + secrets.token_bytes(8)
    if store.read(key) is not None or _put(store, key, first) != (Put.STORED, first):
        raise _broken(store, "a new key seemed to exist already")
    if store.read(key) != first:
        raise _broken(store, "an object that was stored could not be read")
    if _put(store, key, second) != (Put.EXISTS, first):
        raise _broken(store, "a second put of the same key was not refused, so two drivers could both win")


def _list(store: Store, scratch: str) -> None:
    for name in LISTED[1:]:
        _put(store, f"{scratch}/{name}", b"listed")
    names = [listed.key.removeprefix(f"{scratch}/") for listed in store.list(scratch)]
    if names != sorted(LISTED):
        raise _broken(store, f"a listing showed {', '.join(names) or 'nothing'} instead of {', '.join(sorted(LISTED))}")


def _put(store: Store, key: str, body: bytes) -> tuple[Put, bytes | None]:
    outcome, stored = put(store, key, body)
    if outcome is Put.UNKNOWN:
        raise StoreUnavailable(f"{store.uri} gave no clear answer to a put. Check the store, then try again")
    return outcome, stored


def _broken(store: Store, observation: str) -> StoreMisconfigured:
    return StoreMisconfigured(
        f"{store.uri} cannot hold checkpoints: {observation}. Checkpoints need a store with put-if-absent: a local or NFS directory,"
        " or object storage that supports If-None-Match: * (Ceph 16: in a bucket without versioning) and lists keys in order"
    )
