"""Does this store keep its promises? Asked once, before anything is entrusted to it. Runs anywhere."""

from __future__ import annotations

import secrets
from contextlib import suppress

from airflow_checkpoint_provider.errors import StoreError, StoreMisconfigured, StoreUnavailable
from airflow_checkpoint_provider.storage.base import Put, Store, put

SCRATCH = ".probe"


def probe(store: Store) -> None:
    """Look for one scratch key and put at it twice: "absent", then only the first may win, and it must be read.

    Raises ``StoreMisconfigured`` with what was seen if the promise is broken, ``StoreUnavailable`` if no answer came,
    and what the store itself raises. A store that only *sometimes* lets two win is not found out: that takes a race.
    """
    scratch = f"{SCRATCH}/{secrets.token_hex(8)}"
    try:
        _put_twice(store, f"{scratch}/once")
    finally:
        with suppress(StoreError):  # few bytes that no listing shows; who may not delete may still write checkpoints
            store.delete_under(scratch)


def _put_twice(store: Store, key: str) -> None:
    first, second = b"first " + secrets.token_bytes(8), b"second " + secrets.token_bytes(8)
    if store.read(key) is not None or _settled(store, key, first) != (Put.STORED, first):
        raise _broken(store, "a new key was taken to exist already")
    if store.read(key) != first:
        raise _broken(store, "what was stored could not be read back")
    if _settled(store, key, second) != (Put.EXISTS, first):
        raise _broken(store, "a second put of one key was not refused, so two drivers could both believe that they won")


def _settled(store: Store, key: str, body: bytes) -> tuple[Put, bytes | None]:
    outcome, found = put(store, key, body)
    if outcome is Put.UNKNOWN:
        raise StoreUnavailable(f"{store.uri} gave no clear answer to a put. Look at the store; trying again may help")
    return outcome, found


def _broken(store: Store, seen: str) -> StoreMisconfigured:
    return StoreMisconfigured(
        f"{store.uri} cannot hold checkpoints: {seen}. They need a store where a key can be put if it is absent:"
        " a local or NFS directory, or object storage that obeys If-None-Match: * (Ceph 16: in a bucket without versioning)"
    )
