"""The metadata of an operator with state: which stores it has, and which files describe their rows. Pure. Runs anywhere.

Spark 4.2 writes it in one of two formats:

* ``state/<operator>/_metadata/metadata``: once, by the first batch;
* ``state/<operator>/_metadata/v2/N``, of ``transformWithState``: by batch N, the first one after each start of the query. It names
  files below ``state/<operator>/_stateSchema`` by their whole paths, those of the location in which batch N ran. So it is written
  anew where the location is copied.

Spark reads the newest metadata of an earlier batch, and never replaces metadata that is there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from airflow_checkpoint_provider.location.foreign import NUMBER, loads, readable

_METADATA = re.compile(rf"state/({NUMBER})/_metadata/(?:metadata|v2/({NUMBER}))")
MOST_STORES = 100_000  # of one operator, in all partitions
_DEFAULT = "default"  # the store of an operator that has one; it has no folder of its own
_KEY_SCHEMA = 10  # where the schema of the key begins in the file that describes the rows
_NO_KEY = b'{"type":"struct","fields":[]}'
_STORES, _SCHEMAS = "stateStoreInfo", "stateSchemaFilePaths"


def names_paths(name: str) -> bool:
    """Return whether the file ``name`` of a location names others by their whole paths."""
    match = _METADATA.fullmatch(name)
    return match is not None and match[2] is not None


def renamed(name: str, batch: int) -> str:
    """Return the name of the metadata ``name`` when it is that of another batch. The first format names no batch."""
    return f"{name.rpartition('/')[0]}/{batch}" if names_paths(name) else name


def newest(names: Iterable[str], batch: int | None = None) -> dict[str, str]:
    """Return the newest metadata of each operator, by its number; with ``batch``, only metadata up to that batch."""
    found: dict[str, tuple[int, str]] = {}
    for name in names:
        if match := _METADATA.fullmatch(name):
            number = int(match[2] or 0)
            if match[2] is None or batch is None or number <= batch:
                found[match[1]] = max(found.get(match[1], (number, name)), (number, name))
    return {operator: name for operator, (_, name) in found.items()}


def stores(body: bytes, name: str, what: str) -> Iterator[str]:
    """Yield the folders of the stores that the metadata ``name`` describes. Raises ``Damaged``, naming ``what``."""
    folder = name.partition("/_metadata/")[0]
    with readable(what):
        described, left = _parse(body)[1].get(_STORES, ()), MOST_STORES
        for store in described:
            left -= max(store["numPartitions"], 1)
            if left < 0:
                raise ValueError(f"it names more than {MOST_STORES} stores")
            below = "" if store["storeName"] == _DEFAULT else f"/{store['storeName']}"
            yield from (f"{folder}/{partition}{below}" for partition in range(store["numPartitions"]))


def is_undivided(body: bytes, schema: bytes | None, what: str) -> bool:
    """Return whether the operator of the metadata ``body`` has all of its state in one partition, whatever the metadata says.

    That is so for a limit, and for an aggregation without a key, whose ``schema`` begins with that of an empty key. Raises ``Damaged``,
    naming ``what``.
    """
    with readable(what):
        name = _parse(body)[1].get("operatorInfo", {}).get("operatorName")
    return name == "globalLimit" or (schema or b"")[_KEY_SCHEMA:].startswith(_NO_KEY)


def at(uri: str, body: bytes, name: str, files: Collection[str], what: str) -> bytes:
    """Return the metadata ``name`` of a location for its copy at ``uri``, which holds ``files``.

    The paths may be those of any location, of another history, or of one that was moved since: only their ends count, and these
    must be ``files`` of the same operator. So nothing outside of the copy is ever named. Raises ``Damaged``, naming ``what``.
    """
    folder = f"{name.partition('/_metadata/')[0]}/_stateSchema/"
    with readable(what):
        version, about = _parse(body)
        for store in about.get(_STORES, ()):
            if paths := store.get(_SCHEMAS):
                store[_SCHEMAS] = [f"{uri}/{_end(path, folder, files)}" for path in paths]
        return _body(version, about)


def with_partitions(body: bytes, partitions: int, what: str) -> bytes:
    """Return the metadata ``body`` with another number of partitions. Raises ``Damaged``, naming ``what``."""
    with readable(what):
        version, about = _parse(body)
        for store in about.get(_STORES, ()):
            store["numPartitions"] = partitions
        return _body(version, about)


def _parse(body: bytes) -> tuple[str, dict[str, Any]]:
    version, text = body.decode().split("\n", 1)
    about = loads(text)
    if not isinstance(about, dict):
        raise TypeError("it is not a JSON object")
    return version, about


def _body(version: str, about: dict[str, Any]) -> bytes:
    return f"{version}\n{json.dumps(about, ensure_ascii=False, separators=(',', ':'))}".encode()


def _end(path: str, folder: str, files: Collection[str]) -> str:
    """Return the part of ``path`` below its location: the file of ``folder`` that it names."""
    _, found, rest = path.rpartition(f"/{folder}")
    if not found or folder + rest not in files:
        raise ValueError(f"it names {path[:200]!r}, which is not a file of its location")
    return folder + rest
