"""Copies of objects between stores. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

from airflow_checkpoint_provider.storage.base import Store
from airflow_checkpoint_provider.storage.local import LocalStore
from airflow_checkpoint_provider.storage.s3 import S3Store

AT_ONCE, AT_ONCE_ON_DISK = 8, 4


def copy(source: Store, source_key: str, target: Store, key: str, *, linked: bool = False) -> int:
    """Copy an object to ``key``, completely or not at all. Return its size in bytes.

    Within one S3 service, the service copies; else few bytes are in memory at a time. ``linked``: on one local file system, the
    copy may be a second name of the same file, which nobody may change in place. Raises ``Damaged`` if there is nothing
    to copy, and what the stores raise.
    """
    if isinstance(target, S3Store) and target.copies_from(source):
        return target.copy_from(source, source_key, key)
    if linked and isinstance(target, LocalStore) and isinstance(source, LocalStore):
        size = target.link_from(source, source_key, key)
        if size is not None:
            return size
    passed = 0

    def counted() -> Iterator[bytes]:
        nonlocal passed
        for piece in source.parts(source_key):
            passed += len(piece)
            yield piece

    target.assemble(key, counted())
    return passed


def copy_all(
    source: Store,
    target: Store,
    pairs: Iterable[tuple[str, str]],
    on_done: Callable[[str, int], object] = lambda key, size: None,
    *,
    linked: bool = False,
) -> int:
    """Copy each pair of keys (from, to), several at a time. Return the bytes of all.

    ``on_done`` is called in this thread after each copy, with the new key and its bytes. After an error of a store or of
    ``on_done`` no further copy begins, copies that have begun end first, and finished copies stay.
    """
    threads = ThreadPoolExecutor(AT_ONCE_ON_DISK if isinstance(target, LocalStore) else AT_ONCE)
    try:
        copies = {threads.submit(copy, source, key, target, new_key, linked=linked): new_key for key, new_key in pairs}
        for done in as_completed(copies):
            if done.exception():
                break
            on_done(copies[done], done.result())
    finally:
        threads.shutdown(cancel_futures=True)
    # Copies begin in order, so of several that fail the first has always been tried: its error is raised here.
    return sum(done.result() for done in copies if not done.cancelled())
