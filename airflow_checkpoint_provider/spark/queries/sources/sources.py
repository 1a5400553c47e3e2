"""The sources of a query that read a path: files, or a Delta table. Where they read, and which files they have read. Runs in the Spark driver.

The log of a file source lies in the location of its query. An entry names the files that one or more batches have read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.errors import Damaged
from airflow_checkpoint_provider.file_sink.log import COMPACT
from airflow_checkpoint_provider.location.files import NOTHING, Location
from airflow_checkpoint_provider.location.foreign import NUMBER
from airflow_checkpoint_provider.location.source_files import source_entry
from airflow_checkpoint_provider.protocol.query_details import ICEBERG
from airflow_checkpoint_provider.spark.java_classes import scala_items, scala_pairs
from airflow_checkpoint_provider.spark.queries.sinks.sink_log import spelled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

LEAVE_OUT = (
    *("pathGlobFilter", "modifiedBefore", "modifiedAfter"),  # of files
    *("startingVersion", "startingTimestamp", "excludeRegex"),  # of Delta
)
"""Options with which a source does not read all rows that are written to its path."""
OLDER_KIND, NEWER_KIND = "StreamingRelation", "StreamingRelationV2"
ICEBERG_TABLE = "org.apache.iceberg.spark.source.SparkTable"
FILES, FILE_SOURCE = "files", "FileSource["


@dataclass(frozen=True)
class Source:
    """A source of a query: the number of its offset, the number of its folder below ``sources``, and the path that it reads.

    ``leaves_out`` is an option with which it does not read all rows there; None if it has none.
    """

    offset: int
    folder: int
    path: str
    leaves_out: str | None = None


def streaming_leaves(writer: DataStreamWriter) -> list[Any]:
    """Return the leaves of a query's plan that are streams, as Spark's own objects. The number of each is that of its offset."""
    rows: Any = writer._df
    return [leaf for leaf in scala_items(rows._jdf.queryExecution().analyzed().collectLeaves()) if leaf.isStreaming()]


@dataclass(frozen=True)
class Leaf:
    """A stream that a query reads: the numbers of its offset and of its folder, its format, its options, and Spark's own object.

    The names of the options are in lower case. Those of Spark's newer kind of sources are not read.
    """

    offset: int
    folder: int
    format: str
    options: Mapping[str, str]
    relation: Any


def leaves(writer: DataStreamWriter) -> list[Leaf]:
    """Return the streams that a query reads, in the order of their offsets."""
    distinct: list[Any] = []  # a source that is read in several places has one folder
    found = []
    for number, relation in enumerate(streaming_leaves(writer)):
        if relation not in distinct:
            distinct.append(relation)
        folder = distinct.index(relation)
        found.append(Leaf(number, folder, _format(relation), _options(relation), relation))
    return found


def _format(relation: Any) -> str:
    """Return ``files`` for a source of files of any format, or the name by which Spark knows another source.

    Spark calls an Iceberg table that was read by its name (``readStream.table``) by that name, so its class counts.
    """
    kind = str(relation.getClass().getSimpleName())
    if kind not in (OLDER_KIND, NEWER_KIND):
        return kind
    if kind == NEWER_KIND and str(relation.table().getClass().getName()) == ICEBERG_TABLE:
        return ICEBERG
    name = str(relation.sourceName())
    return FILES if name.startswith(FILE_SOURCE) else name.lower()


def path_sources(spark: SparkSession, writer: DataStreamWriter) -> list[Source]:
    """Return the sources of a query that read a path, as its plan names them. One that is read in several places counts once."""
    found: dict[int, Source] = {}
    for leaf in leaves(writer):
        if path := leaf.options.get("path"):
            leaves_out = next((name for name in LEAVE_OUT if name.lower() in leaf.options), None)
            found.setdefault(leaf.folder, Source(leaf.offset, leaf.folder, spelled(spark, path), leaves_out))
    return list(found.values())


def _options(leaf: Any) -> dict[str, str]:
    """Return the options of a leaf of a plan, with their names in lower case, if it is a source of Spark's older kind."""
    if leaf.getClass().getSimpleName() != OLDER_KIND:
        return {}
    return {name.lower(): value for name, value in scala_pairs(leaf.dataSource().options())}


class SourceLog:
    """The log of a file source: which entry of it names a file first. An entry is read once."""

    def __init__(self, location: Location, folder: int) -> None:
        self._location, self._folder = location, f"sources/{folder}"
        self._newest = NOTHING
        self._entries: dict[str, int] = {}

    def read(self, newest: int) -> Mapping[str, int]:
        """Return the names of the files up to entry ``newest``, and perhaps of later ones. Raises ``Damaged``."""
        if newest > self._newest:
            for entry in self._unread(newest):
                self._entries |= self._parsed(entry)
            self._newest = newest
        return self._entries

    def _parsed(self, entry: str) -> dict[str, int]:
        files = source_entry(self._location, f"{self._folder}/{entry}")
        return {name_of(file["path"]): file["batchId"] for file in files}

    def _unread(self, newest: int) -> Iterator[str]:
        """Yield the entries that are not read yet. A compacted one holds all before it."""
        folder = self._location.key_of(self._folder)
        there = {listed.key.rpartition("/")[2] for listed in self._location.store.list(folder)}
        if not {str(newest), f"{newest}{COMPACT}"} & there:
            raise Damaged(f"{folder}/{newest} is missing; somebody or something deleted it")
        entries = (re.fullmatch(f"({NUMBER}){re.escape(COMPACT)}", name) for name in there)
        numbers = (int(match[1]) for match in entries if match)
        compacted = max((number for number in numbers if self._newest < number <= newest), default=None)
        if compacted is not None:
            yield f"{compacted}{COMPACT}"
        first = self._newest if compacted is None else compacted
        # The caller reads each before it asks for the next, and fails at the first that is not there: ``newest`` may be any number.
        yield from map(str, range(first + 1, newest + 1))


def name_of(path: str) -> str:
    """Return the name of a file of a sink. Spark gives each file a name that no other one has."""
    return path.rpartition("/")[2]
