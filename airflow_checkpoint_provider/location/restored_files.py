"""The files that queries read again after a restore, as far as they can be found without Spark. Runs anywhere.

Only files of this host are looked for: the process that restores has neither the credentials nor the file systems of the job. The driver
asks all sources when it starts, before it changes a sink.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from airflow_checkpoint_provider.location.files import NO_OFFSET, SOURCE, Location, Offsets
from airflow_checkpoint_provider.location.source_files import logged_files
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.query_details import QueryDetail
from airflow_checkpoint_provider.storage.base import Store

_LOCAL = re.compile(r"^file:/+")


@dataclass(frozen=True)
class ReadAgain:
    """The files that the query ``uid`` reads again: ``asked`` is their number, and ``gone`` names the missing ones. ``not_asked``: there
    are also other sources, or files of other hosts.
    """

    uid: str
    asked: int
    gone: tuple[str, ...]
    not_asked: bool


def read_again(
    uid: str,
    saved: StateSnapshot,
    query: QueryDetail,
    store: Store,
    keys: Keys,
    left: Location | None,
    sinks: Collection[str],
) -> ReadAgain | None:
    """Return which files a query reads again from a checkpoint; None if it reads none again. ``left`` is the location from which it goes
    back.

    Files below ``sinks`` are not looked for: queries that go back together write them again. Raises ``Damaged``.
    """
    if left is None and query.begun == query.batch:
        return None
    offsets = Offsets(query.batch, {int(number): offset for number, offset in query.sources.items()}, 0)
    sources = {number: offset for number, offset in offsets.sources.items() if offset != NO_OFFSET}
    of_files = {number for number in sources if offsets.newest_log_entry(number) is not None}
    paths = [
        path for path in _paths(saved, offsets, store, keys, left) if _local(path) is None or not _below(path, sinks)
    ]
    here = [path for path in map(_local, paths) if path is not None and path.parent.is_dir()]
    gone = tuple(str(path) for path in here if not path.exists())
    others = any(number not in of_files and str(number) not in query.kafka_sources for number in sources)
    return ReadAgain(uid, len(here), gone, not_asked=others or len(here) < len(paths))


def _paths(saved: StateSnapshot, offsets: Offsets, store: Store, keys: Keys, left: Location | None) -> Iterable[str]:
    """Return the files of the batch that had begun, and those that the query has read after the checkpoint."""
    locations = [Location(store, keys.file_set(part.path)) for part in saved.file_sets]
    names = (file.name for part in saved.file_sets for file in part.files)
    folders = {int(match[1]) for name in names if (match := SOURCE.fullmatch(name))}
    wanted = dict[str, None]()
    for folder in sorted(folders):
        entry = offsets.newest_log_entry(folder)
        if entry is None:
            continue  # the source is Kafka, or its folder is read in several places
        wanted |= dict.fromkeys(path for location in locations for path in logged_files(location, folder, entry))
        if left is not None:
            known = {path for location in locations for path in logged_files(location, folder)}
            wanted |= dict.fromkeys(path for path in logged_files(left, folder) if path not in known)
    return wanted


def _local(path: str) -> Path | None:
    return Path("/", _LOCAL.sub("", unquote(path))) if _LOCAL.match(path) else None


def _below(path: str, folders: Iterable[str]) -> bool:
    local = _local(path)
    return local is not None and any(_local(folder) in local.parents for folder in folders)
