"""The files that a seal names: compared with what was acknowledged, and listed for copying. Runs anywhere."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from airflow_checkpoint_provider.coordinator import parquet
from airflow_checkpoint_provider.errors import Damaged
from airflow_checkpoint_provider.protocol.file_records import File, FileSet, Footer
from airflow_checkpoint_provider.protocol.keys import Keys, file_set_path
from airflow_checkpoint_provider.protocol.metadata import Measures, StateSnapshot
from airflow_checkpoint_provider.storage.base import Store

Pairs = tuple[tuple[str, str], ...]
"""The files to copy: key below the source's root, key below the target's."""

AT_ONCE = 16  # files that are read at once


# -- comparing -----------------------------------------------------------------------------------------------------------


def verify(store: Store, keys: Keys, states: Iterable[StateSnapshot], *, deep: bool = False) -> int:
    """Compare the files of ``states``, which lie at ``keys``, with what was acknowledged: names, sizes and footers. Return
    the number of files. Cost: a listing for each file set, and a read of the footer for each file.

    ``deep``: read all of each file, too. Raises ``Damaged`` with the state and the first file that is missing or differs.
    """
    stored = {file_set.path: (state.uid, file_set.files) for state in states for file_set in state.file_sets}

    def compare_sizes(path: str, uid: str, files: Iterable[File]) -> None:
        with _prefixed(f"state '{uid}': "):
            compare(keys.file_set(path), sizes_in(store, keys.file_set(path)), files)

    def compare_content(uid: str, folder: str, file: File) -> None:
        with _prefixed(f"state '{uid}': "):
            compare_footer(store, folder, file)
            if deep:
                compare_body(store, folder, file)

    each = [(uid, keys.file_set(path), file) for path, (uid, files) in stored.items() for file in files]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(lambda path: compare_sizes(path, *stored[path]), stored))
        list(threads.map(lambda about: compare_content(*about), [about for about in each if deep or about[2].footer]))
    return len(each)


def sizes_in(store: Store, folder: str) -> dict[str, int]:
    """Return the sizes in bytes of the files in ``folder``, by name."""
    return {listed.key.removeprefix(f"{folder}/"): listed.size for listed in store.list(folder)}


def compare(folder: str, sizes: Mapping[str, int], files: Iterable[File]) -> None:
    """Compare the acknowledged ``files`` with the ``sizes`` in bytes of the files in ``folder``. Other files do not matter.

    Raises ``Damaged`` with the first file that is missing or has another size.
    """
    for file in files:
        if file.name not in sizes:
            raise Damaged(f"{folder}/{file.name} is missing")
        if sizes[file.name] != file.bytes:
            raise Damaged(f"{folder}/{file.name} has {sizes[file.name]} bytes, {file.bytes} were acknowledged")


def compare_footer(store: Store, folder: str, file: File) -> None:
    """Compare the footer of ``file`` with its acknowledged checksum, if it has one. Raises ``Damaged``.

    Checksums of pages do not cover the footer, and a flipped bit there can become wrong rows without an error.
    """
    if file.footer is None:
        return
    with _prefixed(f"{folder}/{file.name} "):
        length = min(file.footer.bytes, file.bytes)
        checksum = parquet.crc_at(_reader(store, folder, file.name), file.bytes - length, length)
        if f"{checksum:08x}" != file.footer.checksum:
            raise Damaged("has another footer than was acknowledged; somebody or something changed it")


def compare_pages(store: Store, folder: str, file: File) -> None:
    """Read all of ``file``, and compare each page with its checksum. Raises ``Damaged``. Other files than Parquet are passed over."""
    if not file.name.endswith(".parquet"):
        return
    with _prefixed(f"{folder}/{file.name} "):
        parquet.check_pages(_reader(store, folder, file.name), file.bytes, file.rows)


def compare_body(store: Store, folder: str, file: File) -> None:
    """Read all of ``file``, and compare it with its acknowledged checksum, or each page of Parquet with the page's own. Raises ``Damaged``."""
    if file.checksum is None:
        compare_pages(store, folder, file)
    elif sha256_of(store, f"{folder}/{file.name}") != file.checksum:
        raise Damaged(f"{folder}/{file.name} has other bytes than were acknowledged; somebody or something changed it")


def sha256_of(store: Store, key: str) -> str:
    """Return the SHA-256 in hex of an object, of which few bytes are in memory at a time. Raises ``Damaged`` if it is absent."""
    sha = hashlib.sha256()
    for part in store.parts(key):
        sha.update(part)
    return sha.hexdigest()


def with_checksums(store: Store, folder: str, files: Iterable[File]) -> tuple[File, ...]:
    """Return ``files`` with the SHA-256 of each. Cost: a read of each file. Raises ``Damaged`` if one is missing."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return tuple(threads.map(lambda file: replace(file, checksum=sha256_of(store, f"{folder}/{file.name}")), files))


def compare_all(store: Store, folder: str, files: Iterable[File]) -> None:
    """Compare all bytes of the acknowledged ``files`` that have a checksum, and their names: no other file may lie in ``folder``.

    Whoever opens such a folder reads all that is there. Raises ``Damaged``.
    """
    expected, sizes = list(files), sizes_in(store, folder)
    compare(folder, sizes, expected)
    if foreign := sizes.keys() - {file.name for file in expected}:
        raise Damaged(f"{folder}/{min(foreign)} was not acknowledged; somebody or something put it there")
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(lambda file: compare_body(store, folder, file), expected))


def check_again(store: Store, folder: str, file: File) -> None:
    """Compare all of one file with what was acknowledged: size, footer and bytes. Raises ``Damaged``."""
    compare(folder, sizes_in(store, folder), [file])
    compare_footer(store, folder, file)
    compare_body(store, folder, file)


def read_footers(store: Store, folder: str, sizes: Mapping[str, int]) -> dict[str, tuple[Footer, int | None]]:
    """Return the footer of each Parquet file in ``folder``, and its rows, None if it is encrypted.

    ``sizes`` are the bytes of the files by name. Cost: a read for each file. Raises ``Damaged``.
    """

    def footer(name: str) -> tuple[Footer, int | None]:
        with _prefixed(f"{folder}/{name} "):
            return parquet.footer_of(_reader(store, folder, name), sizes[name])

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return dict(zip(sizes, threads.map(footer, sizes), strict=True))


def _reader(store: Store, folder: str, name: str) -> parquet.Read:
    def read(start: int, length: int) -> bytes:
        body = store.read_range(f"{folder}/{name}", start, length)
        if body is None:
            raise Damaged("is missing")
        return body

    return read


@contextlib.contextmanager
def _prefixed(prefix: str) -> Iterator[None]:
    """Put the name of the damaged file or state before the text of ``Damaged``."""
    try:
        yield
    except Damaged as error:
        raise Damaged(f"{prefix}{error.message}") from None


# -- copying -------------------------------------------------------------------------------------------------------------


def export_pairs(states: Iterable[StateSnapshot], history: Keys, savepoint: Keys) -> Pairs:
    """Return the files to copy before a savepoint of these states is acknowledged. Their relative paths do not change."""
    file_sets = {file_set.path: file_set for state in states for file_set in state.file_sets}
    return tuple(
        pair for path in sorted(file_sets) for pair in _pairs(file_sets[path], history, file_sets[path], savepoint)
    )


def import_state(
    state: StateSnapshot, elsewhere: Keys, history: Keys, epoch: int, nonce: Callable[[], str]
) -> tuple[StateSnapshot, Pairs]:
    """Return a state of another history as this history holds it, and the files to copy.

    References never leave a history: each file set becomes one of attempt ``epoch`` and keeps the origin of its rows.
    The ids of the other history are dropped: the state is new in the first checkpoint that holds it.
    """
    file_sets = tuple(
        replace(file_set, path=file_set_path(state.uid, epoch, nonce()), origin=file_set.identity)
        for file_set in state.file_sets
    )
    original = state.measures
    measures = Measures(barrier=original.barrier, work_s=original.work_s, new_bytes=state.bytes)
    pairs = (_pairs(old, elsewhere, new, history) for old, new in zip(state.file_sets, file_sets, strict=True))
    return replace(state, file_sets=file_sets, measures=measures), tuple(
        pair for file_set in pairs for pair in file_set
    )


def _pairs(old: FileSet, source: Keys, new: FileSet, target: Keys) -> Pairs:
    return tuple(
        (f"{source.file_set(old.path)}/{file.name}", f"{target.file_set(new.path)}/{file.name}") for file in old.files
    )
