"""The store that a URI opens. Runs anywhere."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from airflow_checkpoint_provider.errors import InvalidName, StoreMisconfigured
from airflow_checkpoint_provider.storage.base import Store, StoreBase, resolved
from airflow_checkpoint_provider.storage.local import LocalStore
from airflow_checkpoint_provider.storage.memory import MemoryStore, named
from airflow_checkpoint_provider.storage.s3 import S3Store
from airflow_checkpoint_provider.storage.s3_credentials import S3Settings, settings_of

_URI = re.compile(r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):)?(?P<rest>.*)", re.DOTALL)
_ABSOLUTE = re.compile(r"(?://)?(/[^/].*)", re.DOTALL)  # after "file:"; Hadoop writes one slash
_BUCKET = re.compile(r"//([A-Za-z0-9._-]+)((?:/.*)?)", re.DOTALL)
_WRITE = "Write file:///absolute/path, a directory that driver and Airflow both see, or s3://bucket/prefix"


def open_store(
    uri: str,
    *,
    s3: S3Settings | None = None,
    create_root: bool = True,
    savepoint_roots: Sequence[str] | None = None,
) -> Store:
    """Return the store at ``file:///absolute/path``, at a plain path, at ``s3://bucket/prefix`` (or ``s3a://``, as in Hadoop),
    which is reached by ``s3``, or at ``memory://name`` (one per process and name). Nothing is read or written yet.

    A path is used as it is written, as in Hadoop: ``%20`` is no space. A relative path starts at the current directory. ``~`` is refused,
    since driver and Airflow may run as different users. A directory is created by the first write, unless ``create_root`` is False. Raises
    ``StoreMisconfigured``, which says what to write instead.

    With ``savepoint_roots``, URIs or absolute paths, the store leads to savepoints below them and below itself only.
    """
    store = _open(uri, s3, create_root)
    if savepoint_roots is not None:
        places = (_open(root, s3, create_root=False).uri for root in savepoint_roots)
        store.savepoint_roots = tuple(dict.fromkeys((store.uri, *places)))
    return store


def _open(uri: str, s3: S3Settings | None, create_root: bool) -> LocalStore | MemoryStore | S3Store:
    if not uri.strip().isprintable():
        raise StoreMisconfigured(f"{uri!r} contains a line break or another character that cannot be printed. {_WRITE}")
    match = _URI.fullmatch(uri.strip())
    assert match  # the pattern matches every text
    scheme, rest = (match["scheme"] or "").lower(), match["rest"]
    if not scheme:
        return LocalStore(_plain_path(rest), create_root=create_root)
    if scheme == "file":
        return LocalStore(_file_path(uri, rest), create_root=create_root)
    if scheme == "memory":
        return named(_memory_name(uri, rest))
    if scheme in ("s3", "s3a"):
        return _bucket(rest, s3)
    raise StoreMisconfigured(
        f"{uri}: checkpoints on {scheme} are not supported. {_WRITE}"
        " (begin a relative path that contains a colon with ./)"
    )


def _open_beside(store: StoreBase, uri: str, limited: bool) -> Store:
    other = _below_a_root(store, _open(uri, settings_of(store), create_root=True))
    _check_kind(store, other)
    if store.savepoint_roots is not None:
        if limited:
            _check_roots(store.savepoint_roots, other)
        other.savepoint_roots = store.savepoint_roots
    return other


def _below_a_root(store: StoreBase, other: LocalStore | MemoryStore | S3Store) -> LocalStore | MemoryStore | S3Store:
    """Return ``other``, opened from the root of ``store`` or a savepoint root if it lies below: its rights are theirs, and no
    link that somebody puts there is followed."""
    if not isinstance(other, LocalStore):
        return other
    own = (f"file://{store.root}",) if isinstance(store, LocalStore) else ()
    for root in store.savepoint_roots or own:
        if other.uri.startswith(f"{root}/"):
            return LocalStore(root.removeprefix("file://"), below=other.uri.removeprefix(f"{root}/"), private=False)
    return LocalStore(other.root, private=False)


def _check_kind(store: StoreBase, other: StoreBase) -> None:
    """Refuse a folder beside a store in S3, unless the connection lists it.

    A journal in S3 can name any folder, and the same path is another folder on each host.
    """
    if (
        isinstance(store, S3Store)
        and not isinstance(other, S3Store)
        and not lies_within(store.savepoint_roots or (), other.uri)
    ):
        raise StoreMisconfigured(
            f"{other.uri} is not a place for savepoints of {store.uri}, because each host has its own folder there. Nothing was read or"
            " changed there. Name a place in S3. A folder that all hosts share must be listed in savepoint_roots of the connection"
        )


def _check_roots(roots: Sequence[str], other: StoreBase) -> None:
    if not lies_within(roots, other.uri):
        raise StoreMisconfigured(
            f"{other.uri} is not a place for savepoints: the connection allows {', '.join(roots)}. Nothing was read or changed there."
            " Name a place below them, or add this place to savepoint_roots of the connection"
        )


def lies_within(roots: Sequence[str], uri: str) -> bool:
    """Return whether the store at ``uri`` is one of ``roots``, or lies below one; all are URIs. Symbolic links in paths are followed."""
    path = f"{resolved(uri)}/"
    return any(path.startswith(f"{resolved(root)}/") for root in roots)


StoreBase.open_beside = _open_beside


def _plain_path(path: str) -> str:
    if path.startswith("~"):
        raise StoreMisconfigured(f"{path}: ~ is a different directory for each user. Write {os.path.expanduser(path)}")
    if not path.strip("/"):
        raise StoreMisconfigured(f"{path!r} is not a directory for checkpoints. {_WRITE}")
    return path


def _file_path(uri: str, rest: str) -> str:
    match = _ABSOLUTE.fullmatch(rest)
    if not match:
        raise StoreMisconfigured(f"{uri} is not a directory of this machine. {_WRITE}")
    return match[1]


def _bucket(rest: str, settings: S3Settings | None) -> S3Store:
    match = _BUCKET.fullmatch(rest)
    if not match:  # not shown: some people write their keys there
        raise StoreMisconfigured("the root has no bucket, or more than bucket and prefix. Write s3://bucket/prefix")
    try:
        return S3Store(match[1], match[2].strip("/"), settings)
    except InvalidName as error:
        raise StoreMisconfigured(f"s3:{rest}: {error.message}") from error


def _memory_name(uri: str, rest: str) -> str:
    name = rest.removeprefix("//")
    if not name or "/" in name:
        raise StoreMisconfigured(f"{uri}: the name of a store in memory is invalid. Write memory://name")
    return name
