"""Copying objects between stores. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

from airflow_checkpoint_provider.storage.base import Store
from airflow_checkpoint_provider.storage.local import LocalStore
from airflow_checkpoint_provider.storage.s3 import S3Store

AT_ONCE, AT_ONCE_ON_DISK = 8, 4


def copy(source: Store, source_key: str, target: Store, key: str) -> int:
    """Replace or create ``key`` with what ``source`` holds, whole or not at all. Returns its bytes.

    Within one S3 service it copies by itself; else few bytes are held at a time. Raises ``Damaged`` if there is nothing
    to copy, and what the stores raise.
    """
    if isinstance(target, S3Store) and target.copies_from(source):
        return target.copy_from(source, source_key, key)
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
) -> int:
    """Copy each pair of keys (from, to), several at a time. Returns the bytes.

    ``on_done`` hears of each in this thread: its new key and its bytes. An error, of a store or of ``on_done``, ends all:
    what was not begun is left, what was begun ends first, and what was copied stays.
    """
    threads = ThreadPoolExecutor(AT_ONCE_ON_DISK if isinstance(target, LocalStore) else AT_ONCE)
    try:
        copies = {threads.submit(copy, source, old, target, new): new for old, new in pairs}
        for one in as_completed(copies):
            if one.exception():
                break
            on_done(copies[one], one.result())
    finally:
        threads.shutdown(cancel_futures=True)
    # They begin in their order: of several that cannot be copied, the first has always been tried, and is the one to tell of.
    return sum(one.result() for one in copies if not one.cancelled())
