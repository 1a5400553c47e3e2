"""The checkpoint location of a streaming query: which files a batch needs. Runs anywhere.

Spark 4.2 writes this layout, and this package does not change it:

* ``metadata``: the id of the query;
* ``offsets/N``: written before batch N begins. It names what the batch reads, and the confs of the state;
* ``commits/N``: written when batch N has ended;
* ``sources/<i>/K`` and ``K.compact``: what the file source i has read. ``offsets/N`` names the newest K that batch N needs;
* ``sources/<i>/0``, or files below ``sources/<i>/<folder>``: where any other source begins, as it decided before batch 0;
* ``state/<operator>/_metadata/...``: the stores of an operator, and into how many partitions they are divided (``state_metadata``);
* ``state/<operator>/<partition>/[<store>/]``: batch N makes version N+1 of each store. ``V.delta`` and ``V.changelog`` hold
  what changed since V-1, ``V.snapshot`` and ``V.zip`` hold all. The parts of a ``.zip`` lie in ``SSTs/`` and ``logs/``.

Hidden files beside them are checksums, which Spark does not need, or temporary ones.
"""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from airflow_checkpoint_provider.errors import Damaged, WrongUse
from airflow_checkpoint_provider.location import state_metadata
from airflow_checkpoint_provider.location.foreign import NUMBER, loads, logged_lines, long, readable
from airflow_checkpoint_provider.storage.base import Store

NOTHING = -1
"""The number of a batch where there is none."""
OFFSETS, COMMITS, METADATA = "offsets", "commits", "metadata"
NO_OFFSET = "-"  # of a source that the batch does not read
UNREADABLE = b"v99999\n"  # the first line of an entry that ends a log: no version of Spark reads what follows

LONGEST_MANIFEST = 8 * 1024 * 1024  # bytes of the list of files in a snapshot of RocksDB: of some 50,000 files
NO_BATCH = 10**15  # greater than the number of any batch: with one each millisecond, after 30,000 years

_BATCH = re.compile(NUMBER)
VERSION = re.compile(rf"(state/{NUMBER}/{NUMBER}(?:/[^/]+)?)/({NUMBER})\.(delta|changelog|snapshot|zip)")
_LOCAL = re.compile(r"^file:/(?://)?(?=[^/])", re.IGNORECASE)  # Hadoop writes one slash, a URI has three
_S3 = re.compile(r"s3[an]?://[^/]", re.IGNORECASE)
_PARTITION = re.compile(rf"state/({NUMBER})/{NUMBER}/")
SOURCE = re.compile(rf"sources/({NUMBER})/({NUMBER})(\.compact)?")
BEGINNING = re.compile(rf"sources/{NUMBER}/0")
_BELOW = re.compile(rf"sources/{NUMBER}/[^/]+/.+")  # of Iceberg: offsets/0
_OF_FILES = re.compile(rb'v1\n\{"path":')  # begins an entry of a file source. That of Kafka begins with a zero byte
SCHEMA = re.compile(
    rf"state/{NUMBER}/(?:_stateSchema/.+|{NUMBER}/(?:[^/]+/)?_metadata/schema)"
)  # of the rows in the state


# -- what Spark wrote ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Offsets:
    """The content of ``offsets/N``: what batch N reads, by the number of the source, as Spark wrote it."""

    batch: int
    sources: Mapping[int, str]
    watermark_ms: int
    confs: Mapping[str, str] = field(default_factory=dict)  # with which the state was written
    began_ms: int = 0  # when the batch began, since 1970

    @classmethod
    def parse(cls, body: bytes, batch: int, what: str) -> Offsets:
        """Return the offsets in ``body``. Raises ``Damaged``, naming ``what``, for a file that Spark could not read either."""
        with readable(what):
            # Another version is refused: version 2 loses queries in Spark 4.2 itself
            metadata, *lines = logged_lines(body.decode())
            about = loads(metadata or '{"batchWatermarkMs": 0}')
            watermark, confs = long(about["batchWatermarkMs"]), dict(about.get("conf", {}))
            if not all(isinstance(text, str) for text in confs.values()):
                raise ValueError("a conf is no text")
            began = long(about.get("batchTimestampMs", 0))
            sources = dict(enumerate(lines))
            if not sources:
                raise ValueError("it names no source")
            for offset in sources.values():
                if offset != NO_OFFSET:
                    loads(offset)
            return cls(batch, sources, watermark, confs, began)

    def newest_log_entry(self, source: int) -> int | None:
        """Return the newest entry of the file source's log that the batch needs; None if the offset does not name one."""
        text = self.sources.get(source, NO_OFFSET)
        offset = None if text == NO_OFFSET else json.loads(text)
        entry = offset.get("logOffset") if isinstance(offset, dict) else None
        return entry if type(entry) is int else None  # a topic of Kafka can have this name, too

    def newest_in_folder(self, folder: int, entries: Collection[int]) -> int | None:
        """Return the newest of the ``entries`` in ``sources/<folder>`` that the batch needs; None if no offset names one.

        A source that a query reads in several places has one folder, and an offset for each place. So the offset of a folder has the number
        of the folder, or a later one. More entries than needed do no harm: the next batch reads the files that they name.
        """
        newest = [self.newest_log_entry(source) for source in self.sources if source >= folder]
        named = max((entry for entry in newest if entry is not None), default=None)
        return None if named is None else max((entry for entry in entries if entry <= named), default=NOTHING)


@dataclass(frozen=True)
class Location:
    """A checkpoint location: the folder ``key`` of a store."""

    store: Store
    key: str

    @property
    def uri(self) -> str:
        """Return the URI of the location, as the journal names it."""
        return f"{self.store.uri}/{self.key}"

    def key_of(self, file: str) -> str:
        """Return the key of a file of the location."""
        return f"{self.key}/{file}"

    def numbers(self, log: str) -> list[int]:
        """Return the numbers in ``offsets`` or ``commits``, lowest first. Cost: a listing."""
        names = (listed.key.rpartition("/")[2] for listed in self.store.list(self.key_of(log)))
        return sorted(int(name) for name in names if _BATCH.fullmatch(name))

    def batches(self, log: str) -> list[int]:
        """Return the numbers in ``offsets`` or ``commits``, lowest first. Raises ``Damaged`` for one that no batch can have."""
        numbers = self.numbers(log)
        if numbers and numbers[-1] >= NO_BATCH:
            raise Damaged(
                f"{self.key_of(log)}/{numbers[-1]}: no query runs so many batches, so somebody put it there. Delete it"
            )
        return numbers

    def offsets(self, batch: int) -> Offsets:
        """Return what batch ``batch`` reads. Raises ``Damaged``."""
        return Offsets.parse(self.read(f"{OFFSETS}/{batch}"), batch, self.key_of(f"{OFFSETS}/{batch}"))

    def read(self, file: str) -> bytes:
        """Return the content of a file. Raises ``Damaged`` if it is absent."""
        body = self.store.read(self.key_of(file))
        if body is None:
            raise _missing(self, file)
        return body

    def log_entry(self, file: str) -> Iterator[bytes]:
        """Yield the content of an entry of a source's log in pieces: it names all files that the source has read, and has no limit. Raises
        ``Damaged`` if it is absent.
        """
        return self.store.parts(self.key_of(file))

    def query_id(self) -> str:
        """Return Spark's id of the query, which is the same in all its locations; empty if no query has begun. Raises ``Damaged``."""
        body = self.store.read(self.key_of(METADATA))
        with readable(self.key_of(METADATA)):
            return str(loads(body)["id"]) if body is not None else ""

    def committed(self, begun: float = math.inf) -> int:
        """Return the newest committed batch; with ``begun``, the newest that is not later than that batch."""
        return max((batch for batch in self.batches(COMMITS) if batch <= begun), default=NOTHING)

    def sizes(self) -> dict[str, int]:
        """Return the sizes in bytes of the files, by their names below the location. Cost: a listing."""
        return {listed.key.removeprefix(f"{self.key}/"): listed.size for listed in self.store.list(self.key)}


def hadoop_uri(uri: str) -> str:
    """Return the URI as Spark needs it: Hadoop's scheme for S3 is ``s3a``."""
    return f"s3a://{uri.removeprefix('s3://')}" if uri.startswith("s3://") else uri


def location_at(store: Store, uri: str, *, limited: bool = False, what: str = "a checkpointLocation") -> Location:
    """Return the checkpoint location at ``uri``, a path or URI as Spark takes it. ``store`` holds the checkpoints of a job.

    Errors call it ``what``. With ``limited``, it must lie where savepoints of ``store`` may lie. Raises ``WrongUse`` for a location that
    cannot be reached like ``store``, and ``StoreMisconfigured``.
    """
    place = _LOCAL.sub("/", uri).rstrip("/")
    folder, _, name = place.rpartition("/")
    if not name or not (place.startswith("/") or _S3.match(place)):
        raise WrongUse(f"{uri!r} cannot be {what}: write an absolute path, or a URI of file or S3")
    if place.startswith("/") != store.uri.startswith("file:"):
        raise WrongUse(
            f"{uri!r} cannot be reached like {store.uri}, where the job keeps its checkpoints: both must be local, or both in S3. Give"
            " the job a root of the same kind"
        )
    return Location(store.beside(folder or "/", limited=limited), name)


def _missing(location: Location, file: str) -> Damaged:
    return Damaged(f"{location.key_of(file)} is missing; somebody or something deleted it")


# -- the state -------------------------------------------------------------------------------------------------------------


@dataclass
class _StateStore:
    """The files of one state store of one partition, by version: snapshots hold all, changes what is new in a version."""

    snapshots: dict[int, list[str]] = field(default_factory=dict)
    changes: dict[int, str] = field(default_factory=dict)

    def base(self, version: int) -> int:
        """Return the newest snapshot from which ``version`` can be reached; 0 is the empty state."""
        return max((snapshot for snapshot in self.snapshots if snapshot <= version), default=0)

    def missing(self, version: int) -> int | None:
        """Return the first change that is missing on the way to ``version``; None if all are there."""
        between = range(self.base(version) + 1, version + 1)
        return next((number for number in between if number not in self.changes), None)

    def files(self, first: int, last: int) -> Iterator[str]:
        """Yield the files of the versions from snapshot ``first`` up to version ``last``."""
        there = self.snapshots.keys() | self.changes.keys()  # no range: the numbers may be anything
        for version in sorted(there):
            if first <= version <= last:
                yield from self.snapshots.get(version, ())
            if first < version <= last and version in self.changes:
                yield self.changes[version]


@dataclass(frozen=True)
class Position:
    """How far a query has come: the newest batch that has ``begun``, and the newest that is ``committed``."""

    begun: int = NOTHING
    committed: int = NOTHING


class LocationFiles:
    """The files of a location at one moment, and the files of its state that only the ``older`` locations of its chain hold.

    The location was copied from those, and another driver may have written state there since.
    """

    def __init__(self, location: Location, *older: Location) -> None:
        self.location = location
        self.sizes = location.sizes()
        self.locations = dict.fromkeys(self.sizes, location)
        self._contents = dict[str, bytes]()
        self.undivided = set[str]()  # operators whose state is in one partition, whatever its metadata says
        described, partitions = self._partitions() if older else (set(), set())
        for each in older:
            for name, size in each.sizes().items():
                match = _PARTITION.match(name)
                # Before the query was rescaled, the state had other partitions. They are not needed
                rescaled = match and match[1] in described and match[0] not in partitions
                if name.startswith("state/") and name not in self.sizes and not rescaled:
                    self.sizes[name], self.locations[name] = size, each
        self._stores = self._group()

    def _partitions(self) -> tuple[set[str], set[str]]:
        """Return the operators whose metadata the location holds, and the folders of all partitions that it knows."""
        names = chain(self.sizes, (f"{folder}/" for folder in self._expected()))
        return set(state_metadata.newest(self.sizes)), {match[0] for match in map(_PARTITION.match, names) if match}

    def _group(self) -> dict[str, _StateStore]:
        """Return the state stores by folder. A snapshot of RocksDB counts only with all its parts."""
        stores = {folder: _StateStore() for folder in self._expected()}
        for name in self.sizes:
            if match := VERSION.fullmatch(name):
                store, version = stores.setdefault(match[1], _StateStore()), int(match[2])
                if match[3] in ("delta", "changelog"):
                    store.changes[version] = name
                else:
                    parts = [f"{match[1]}/{part}" for part in self._parts(name)] if match[3] == "zip" else []
                    if all(part in self.sizes for part in parts):
                        store.snapshots.setdefault(version, []).extend((*parts, name))
        return stores

    def _expected(self) -> Iterator[str]:
        """Yield the folders of all state stores that the operators name, also those that have no version yet. Raises ``Damaged``."""
        for operator, name in state_metadata.newest(self.sizes).items():
            location = self.locations[name]
            body, only = self._content(name), f"state/{operator}/0"
            schema = f"{only}/_metadata/schema"
            of_rows = self._content(schema) if schema in self.locations else None
            if state_metadata.is_undivided(body, of_rows, location.key_of(name)):
                self.undivided.add(operator)
                yield only
            else:
                yield from state_metadata.stores(body, name, location.key_of(name))

    def _content(self, name: str) -> bytes:
        """Return the content of a small file, which is read once. Raises ``Damaged``."""
        if name not in self._contents:
            self._contents[name] = self.locations[name].read(name)
        return self._contents[name]

    def _parts(self, name: str) -> list[str]:
        """Return the files that a snapshot of RocksDB names, relative to its folder. Raises ``Damaged``."""
        location = self.locations[name]
        with readable(location.key_of(name)):
            with zipfile.ZipFile(io.BytesIO(location.read(name))) as archive, archive.open("metadata") as file:
                text = file.read(LONGEST_MANIFEST + 1)
            if len(text) > LONGEST_MANIFEST:  # a small archive may hold a file of any size
                raise ValueError("its list of files is too long")
            manifest = loads(text.decode().split("\n", 1)[1])
            kinds = (("SSTs", "sstFiles", "dfsSstFileName"), ("logs", "logFiles", "dfsLogFileName"))
            return [f"{folder}/{part[key]}" for folder, kind, key in kinds for part in manifest.get(kind, ())]

    def location_of(self, name: str) -> Location:
        """Return the location that holds a file. Raises ``Damaged`` if none does."""
        if name not in self.locations:
            raise _missing(self.location, name)
        return self.locations[name]

    def snapshot(self, folder: str, version: int) -> list[str]:
        """Return the files of a whole snapshot of a state store. Raises ``Damaged`` if it is not there."""
        store = self._stores.get(folder, _StateStore())
        if version not in store.snapshots:
            raise Damaged(f"{self.location.key_of(folder)} has no snapshot {version}, or not all of its parts")
        return store.snapshots[version]

    @property
    def stores(self) -> frozenset[str]:
        """Return the folders of all state stores; none for a query without state."""
        return frozenset(self._stores)

    def has_state(self, version: int, stores: frozenset[str] | None = None) -> bool:
        """Return whether all state stores, or ``stores``, can be read at ``version``."""
        expected = self.stores if stores is None else stores
        return all(self._stores.get(folder, _StateStore()).missing(version) is None for folder in expected)

    def _never_ran(self, position: Position) -> set[str]:
        """Return the operators that a failed batch has described, and that no committed batch has run: no store of them has a version.

        Spark 4.0 and 4.1 describe an operator while they plan a batch. Right after batch 0, another driver may have its state.
        """
        if position.begun <= 0 or position.committed == NOTHING:
            return set()
        ran = {folder.split("/")[1] for folder, store in self._stores.items() if store.snapshots or store.changes}
        return set(state_metadata.newest(self.sizes)) - ran

    def stores_at(self, position: Position) -> frozenset[str]:
        """Return the folders of the state stores that a query needs at ``position``."""
        never_ran = self._never_ran(position)
        return frozenset(folder for folder in self._stores if folder.split("/")[1] not in never_ran)

    def state(self, position: Position) -> tuple[str, ...]:
        """Return the files of the state, from the newest committed snapshot up to the batch that has begun.

        The state of that batch belongs to them as far as it is there: a sink that has the batch skips it, and no driver would write its
        state again.
        """
        version, never_ran = position.committed + 1, self._never_ran(position)
        needed = {folder: self._stores[folder] for folder in sorted(self.stores_at(position))}
        for folder, store in needed.items():
            if (gap := store.missing(version)) is not None:
                raise Damaged(
                    f"{self.location.key_of(folder)} has no version {gap} of the state, which batch {position.committed} needs;"
                    " somebody or something deleted it"
                )
        files = (store.files(store.base(version), position.begun + 1) for store in needed.values())
        schemas = (name for name in self.sizes if SCHEMA.fullmatch(name))
        metadata = state_metadata.newest(self.sizes, position.committed).values()
        described = (name for name in (*metadata, *schemas) if name.split("/")[1] not in never_ran)
        return (*described, *chain.from_iterable(files))


# -- the files of a batch --------------------------------------------------------------------------------------------------


def needed_files(found: LocationFiles, position: Position) -> tuple[str, ...]:
    """Return the names of the files with which a query goes on from ``position``.

    Raises ``Damaged`` if a file that the committed batch needs is missing.
    """
    if position.begun == NOTHING:
        return (METADATA, *_beginnings(found)) if METADATA in found.sizes else ()
    offsets = [f"{OFFSETS}/{batch}" for batch in _last_two(position.begun)]
    commits = [f"{COMMITS}/{batch}" for batch in _last_two(position.committed)]
    sources = _of_sources(found, found.location.offsets(position.begun))
    beginnings = _beginnings(found) if position.committed == NOTHING else ()
    required = list[str]()
    for name in chain((METADATA, *offsets, *commits[-1:]), sources, beginnings):
        if name not in found.sizes:  # checked one by one: an offset may name any number
            raise _missing(found.location, name)
        required.append(name)
    if not 0 <= position.begun - position.committed <= 1:
        raise Damaged(
            f"{found.location.key_of(OFFSETS)}/{position.begun} has begun, and {COMMITS} ends with {position.committed}: Spark ends a batch before"
            " it begins the next one. Somebody or something deleted files there, or put some there"
        )
    earlier = (name for name in commits[:-1] if name in found.sizes)
    return tuple(dict.fromkeys((*required, *earlier, *found.state(position))))


def _beginnings(found: LocationFiles) -> Iterator[str]:
    """Yield the files that say where each source begins: sources write them before the first batch, and read them until it is committed.

    A file source has none, and finds its files again. Iceberg's would decide anew, perhaps after snapshots have expired. Later the file may
    name one that has expired since, so it is left behind.
    """
    for name in found.sizes:
        if _BELOW.fullmatch(name):
            yield name
        elif BEGINNING.fullmatch(name):
            body = next(found.locations[name].log_entry(name), b"")
            if body and not _OF_FILES.match(body):
                yield name


def _last_two(batch: int) -> range:
    """Return a batch and the one before it; Spark reads the offsets of both."""
    return range(max(batch - 1, 0), batch + 1)


def _of_sources(found: LocationFiles, offsets: Offsets) -> Iterator[str]:
    """Yield the log of each file source: from its last compacted entry up to the one that the batch needs, without a gap."""
    entries = [match for name in found.sizes if (match := SOURCE.fullmatch(name))]
    one_each = max((int(entry[1]) for entry in entries), default=NOTHING) == max(offsets.sources)
    for source in sorted({int(entry[1]) for entry in entries}):
        own = [entry for entry in entries if int(entry[1]) == source]
        newest = (
            offsets.newest_log_entry(source)
            if one_each
            else offsets.newest_in_folder(source, [int(entry[2]) for entry in own])
        )
        if newest is None:
            yield from (entry[0] for entry in own)
            continue
        compacted = max((int(entry[2]) for entry in own if entry[3] and int(entry[2]) <= newest), default=NOTHING)
        if compacted != NOTHING:
            yield f"sources/{source}/{compacted}.compact"
        yield from (f"sources/{source}/{number}" for number in range(compacted + 1, newest + 1))
