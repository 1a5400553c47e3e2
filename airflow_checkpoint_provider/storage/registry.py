"""The store that a URI opens. Runs anywhere."""

from __future__ import annotations

import os
import re

from airflow_checkpoint_provider.errors import InvalidName, StoreMisconfigured
from airflow_checkpoint_provider.storage.base import Store, StoreBase
from airflow_checkpoint_provider.storage.local import LocalStore
from airflow_checkpoint_provider.storage.memory import named
from airflow_checkpoint_provider.storage.s3 import S3Store
from airflow_checkpoint_provider.storage.s3_credentials import S3Settings, settings_of

_URI = re.compile(r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):)?(?P<rest>.*)", re.DOTALL)
_ABSOLUTE = re.compile(r"(?://)?(/[^/].*)", re.DOTALL)  # after "file:"; Hadoop writes one slash
_BUCKET = re.compile(r"//([A-Za-z0-9._-]+)((?:/.*)?)", re.DOTALL)
_WRITE = "Write file:///absolute/path, a directory that driver and Airflow both see, or s3://bucket/prefix"


def open_store(uri: str, *, s3: S3Settings | None = None, create_root: bool = True) -> Store:
    """Return the store at ``file:///absolute/path``, at a plain path, at ``s3://bucket/prefix`` (or ``s3a://``, as in Hadoop),
    which is reached by ``s3``, or at ``memory://name`` (one per process and name). Nothing is read or written yet.

    A path is used as it is written, as in Hadoop: ``%20`` is no space. A relative path starts at the current directory. ``~``
    is refused, since driver and Airflow may run as different users. A directory is created by the first write, unless
    ``create_root`` is False. Raises ``StoreMisconfigured`` with what to write instead.
    """
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


def _open_beside(store: Store, uri: str) -> Store:
    return open_store(uri, s3=settings_of(store))


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
