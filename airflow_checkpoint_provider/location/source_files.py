"""The log of a file source in the location of a query: which files it has read, and when they were changed. Runs anywhere.

Spark adds an entry ``sources/<i>/K`` with the files that it found, before a batch begins that reads them. When the batch runs again, the
files of the log are read, and a file that is not there counts as empty. So only the log says which files are missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_checkpoint_provider.location.files import NOTHING, SOURCE, Location
from airflow_checkpoint_provider.location.foreign import loads, logged_lines, long, readable


@dataclass(frozen=True)
class SourceFile:
    """A file that a source has found: its ``path``, encoded as in a URI, and when it was changed, in milliseconds since 1970."""

    path: str
    changed_ms: int


def logged_files(location: Location, folder: int, after: int = NOTHING) -> dict[str, SourceFile]:
    """Return the files that the entries after ``after`` of a source's log name, by their paths. Raises ``Damaged``.

    An entry that is compacted holds all before it, too. Each line names the entry that it was written for.
    """
    below = location.key_of(f"sources/{folder}")
    names = (listed.key.removeprefix(f"{location.key}/") for listed in location.store.list(below))
    entries = [match for name in names if (match := SOURCE.fullmatch(name))]
    newest = max((int(match[2]) for match in entries if match[3]), default=NOTHING)  # it holds all entries before it
    found: dict[str, SourceFile] = {}
    for match in sorted(entries, key=lambda match: int(match[2])):
        number = int(match[2])
        if number > after and (number > newest or (number == newest and match[3])):
            found |= _named(location, match[0], after)
    return found


def newest_path(location: Location, folder: int) -> str | None:
    """Return the path of the newest file that the log of a source names, encoded as in a URI; None if it has no entry. Raises ``Damaged``."""
    below = location.key_of(f"sources/{folder}")
    names = (listed.key.removeprefix(f"{location.key}/") for listed in location.store.list(below))
    entries = (match for name in names if (match := SOURCE.fullmatch(name)))
    newest = max(entries, key=lambda match: int(match[2]), default=None)
    if newest is None:
        return None
    last = b""
    for part in location.log_entry(newest[0]):
        last = (last + part).rpartition(b"\n")[2]
    return str(parsed_file(last.decode(errors="replace"), location.key_of(newest[0]))["path"])


def _named(location: Location, entry: str, after: int) -> dict[str, SourceFile]:
    files = source_entry(location, entry)
    return {file["path"]: SourceFile(file["path"], file["timestamp"]) for file in files if file["batchId"] > after}


def source_entry(location: Location, entry: str) -> list[dict[str, Any]]:
    """Return what an entry of a file source's log says of each file. Raises ``Damaged``."""
    what = location.key_of(entry)
    with readable(what):
        lines = logged_lines(b"".join(location.log_entry(entry)).decode())
    return [parsed_file(line, what) for line in lines if line]


def parsed_file(line: str, entry: str) -> dict[str, Any]:
    """Return what a line of a file source's log says of a file. Raises ``Damaged``, naming the ``entry``."""
    with readable(entry):
        file: dict[str, Any] = loads(line)
        if not isinstance(file["path"], str):
            raise TypeError("a path is no text")
        return file | {"batchId": long(file["batchId"]), "timestamp": long(file.get("timestamp", 0))}
