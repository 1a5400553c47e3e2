"""Copies of a query's files into another checkpoint location: from older locations, or from a checkpoint. Runs anywhere."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Collection, Iterable
from itertools import groupby

from airflow_checkpoint_provider.errors import Damaged, NotNamed, StoreMisconfigured, WrongUse
from airflow_checkpoint_provider.location import state_metadata
from airflow_checkpoint_provider.location.files import (
    METADATA,
    OFFSETS,
    Location,
    LocationFiles,
    Position,
    hadoop_uri,
    location_at,
    needed_files,
)
from airflow_checkpoint_provider.location.renumbering import CODEC, empty_snapshots, offsets_before, renumbered
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.query_records import QueryRecord, Released, chain_of
from airflow_checkpoint_provider.storage.base import Store, lies_in
from airflow_checkpoint_provider.storage.copy import copy_all

_IN_FLIGHT = "in_flight/"  # below a file set


def copy_files(found: LocationFiles, target: Location, names: Iterable[str], by: int = 0) -> None:
    """Copy files into a location, and compare their sizes. On a local disk the copies are hard links. ``by`` is added to the numbers of
    their batches.

    Files that name others are copied after them: a snapshot without its parts would look whole. Raises ``Damaged`` if a file was
    changed or deleted meanwhile.
    """

    def order(name: str) -> tuple[bool, str]:
        return _names_others(name), found.location_of(name).key

    wanted = sorted(names, key=order)
    for _, together in groupby(wanted, order):
        group = list(together)
        pairs = [(found.locations[name].key_of(name), target.key_of(renumbered(name, by))) for name in group]
        copy_all(found.locations[group[0]].store, target.store, pairs, linked=True)
    copied = target.sizes()
    for name in wanted:
        if copied.get(renumbered(name, by)) != found.sizes[name]:
            raise Damaged(
                f"{found.locations[name].key_of(name)} had {found.sizes[name]} bytes, and {copied.get(renumbered(name, by))} were copied; somebody"
                " changes it"
            )


def _names_others(name: str) -> bool:
    return name.endswith(".zip")


def copy_position(chain: tuple[Location, ...], position: Position, own: Location) -> None:
    """Copy the files with which a query continues from ``position``, the position in the newest location of ``chain``, into its own location."""
    found = LocationFiles(*chain)
    names = needed_files(found, position)
    copy_files(found, own, names)
    name_own_files(own, names)


def copy_of(name: str) -> str:
    """Return the name of the copy of a file in flight, in a file set. The name is not that of a Parquet file, because the rows are not
    those of the state.
    """
    return f"{_IN_FLIGHT}{name.rpartition('/')[2]}.copy"


def copy_saved(saved: StateSnapshot, store: Store, keys: Keys, own: Location, *, by: int = 0) -> list[str]:
    """Copy the files of a query in a checkpoint whose file sets lie at ``keys``, except for copies of files in flight. ``by`` is added to
    the numbers of their batches. Return the names of the copied files.
    """
    copied = list[str]()
    for file_set in saved.file_sets:
        names = [file.name for file in file_set.files if not file.name.startswith(_IN_FLIGHT)]
        copy_files(LocationFiles(Location(store, keys.file_set(file_set.path))), own, names, by)
        copied += names
    name_own_files(own, copied)
    return copied


def saved_location(saved: StateSnapshot, store: Store, keys: Keys) -> Location | None:
    """Return the file set that holds the id of a query, in a checkpoint whose file sets lie at ``keys``; None if no file set holds it."""
    holds = (part.path for part in saved.file_sets if any(file.name == METADATA for file in part.files))
    return next((Location(store, keys.file_set(path)) for path in holds), None)


def chain_at(store: Store, keys: Keys, query: QueryRecord | Released, named: str | None) -> tuple[Location, ...]:
    """Return the newest of a query's locations, and those from which it was copied, the adopted one too.

    ``named`` is the adopted one, as a person or the script names it. Raises ``NotNamed`` if the journal names another one, outside of
    the root.
    """
    chain = chain_of(query.locations)
    own = tuple(Location(store, keys.file_set(location.path)) for location in chain)
    return (*own, _adopted(store, query.uid, chain[-1].adopted, named)) if chain and chain[-1].adopted else own


def _adopted(store: Store, uid: str, stored: str, named: str | None) -> Location:
    if named and (location := location_at(store, named)).uri == stored:
        return location
    with contextlib.suppress(StoreMisconfigured, WrongUse):
        location = location_at(store, stored, limited=True)
        if lies_in(store, location.store):
            return location
    raise NotNamed(
        f"query '{uid}' was copied from {stored}, and may still need files there. Only the journal says so. If the query was adopted from"
        f" there, write adopt={stored!r} in the script, or --adopted {shlex.quote(stored)} for a release. Else somebody has changed the"
        " journal. Nothing was read there"
    )


def write_beginnings(own: Location, names: Collection[str], committed: int, by: int) -> None:
    """Write the files that Spark does not need under the old numbers, but under the new ones (see ``renumbering``). ``names`` are the
    copied files.
    """
    files = empty_snapshots(names, by, committed, own.offsets(committed + by).confs.get(CODEC))
    if committed == 0:
        files[f"{OFFSETS}/{by - 1}"] = offsets_before(own.read(f"{OFFSETS}/{by}"))
    for name, body in files.items():
        own.store.overwrite(own.key_of(name), body)


def name_own_files(own: Location, names: Collection[str]) -> None:
    """Rewrite the copied files that name other files by their whole paths, so that they name the copies. Raises ``Damaged``."""
    uri = hadoop_uri(own.uri)
    for name in filter(state_metadata.names_paths, names):
        body = state_metadata.at(uri, own.read(name), name, names, own.key_of(name))
        own.store.overwrite(own.key_of(name), body)


def fetch_state(own: Location, chain: tuple[Location, ...], position: Position) -> None:
    """Fetch the state of the batch that had begun from the locations of the chain, as far as ``own`` lacks it.

    Checksums of half-written files are deleted: they are not those of the fetched files.
    """
    if has_state(own, chain, position):
        return
    found = LocationFiles(own, *chain)
    missing = [name for name in found.state(position) if found.locations[name] is not own]
    above = ((own.key_of(name).rpartition("/")) for name in missing)
    own.store.delete([f"{folder}/{hidden}{name}.crc" for folder, _, name in above for hidden in ("", ".")])
    copy_files(found, own, missing)


def has_state(own: Location, chain: tuple[Location, ...], position: Position) -> bool:
    """Return whether the state of the batch that had begun is whole in ``own``.

    If the sink already has the first batch, perhaps only the locations of the chain name the stores of the state.
    """
    if position.begun == position.committed:
        return True
    return LocationFiles(own).has_state(position.begun + 1, LocationFiles(own, *chain).stores_at(position))
