"""The states of streaming queries in a checkpoint: how far each was, and what it reads of others. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_checkpoint_provider.protocol.fields import Batch, LocationPath, Size, Uid
from airflow_checkpoint_provider.protocol.file_records import File
from airflow_checkpoint_provider.protocol.kafka_offsets import kafka_offsets
from airflow_checkpoint_provider.protocol.records import Record, added

FILE_SINKS = ("parquet", "orc", "json", "csv", "text")
"""Sinks of streaming queries that write each batch once, and say which batches they have."""
DELTA, ICEBERG = "delta", "iceberg"
"""Sinks that do so too, by tables to which others may write."""
FOREACH_BATCH = "foreachBatch"

_COMMIT, _SNAPSHOT = "_delta_log/{:020d}.json", "snapshot/"


def delta_commit(version: int) -> str:
    """Return the path of a commit below its Delta table."""
    return _COMMIT.format(version)


def delta_version(commit: str | None) -> int | None:
    """Return the number of a commit from the path that ``delta_commit`` returned; None for any other text."""
    number = _number((commit or "").rpartition("/")[2].removesuffix(".json"))
    return number if number is not None and delta_commit(number) == commit else None


def iceberg_snapshot(number: int) -> str:
    """Return the name of a snapshot of an Iceberg table in a checkpoint."""
    return f"{_SNAPSHOT}{number}"


def iceberg_number(snapshot: str | None) -> int | None:
    """Return the id of a snapshot from the name that ``iceberg_snapshot`` returned; None for any other text."""
    number = _number((snapshot or "").removeprefix(_SNAPSHOT))
    return number if number is not None and iceberg_snapshot(number) == snapshot else None


def _number(text: str) -> int | None:
    """Return the number that a stored text is; None for another text, and for more digits than Delta and Iceberg write."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else None


@dataclass(frozen=True, kw_only=True)
class Edge(Record):
    """The files that a streaming query reads from the file sink or the Delta table of another query, in one checkpoint.

    ``path`` is the sink of the query ``upstream``. ``in_flight`` are the files that ``upstream`` has committed there and this query has
    not, by their paths below the sink, encoded as in a URI. ``ahead`` is the number of files that this query has read and ``upstream``
    has not committed. ``apart``: this query was not started while ``upstream`` ran, so more files may be in flight.
    """

    upstream: Uid
    path: str
    in_flight: tuple[File, ...] = ()
    ahead: Size = 0
    apart: bool = added(False)


@dataclass(frozen=True, kw_only=True)
class QueryDetail(Record):
    """A streaming query at the end of batch ``batch``: the location that its files come from, its sink, and its sources' offsets.

    ``begun`` is the batch that a stop has broken off, or that an older attempt had begun and this one had not committed yet: it runs
    again with its offsets. Else it is ``batch``.
    """

    location: LocationPath
    batch: Batch
    begun: Batch
    sink: str  # Spark's name of the format
    path: str
    sources: dict[str, str]  # number of the source -> its offset as Spark wrote it
    watermark_ms: Size
    newest_file: str | None = added(None)  # in a sink that counts batches, by the end of the batch
    edges: tuple[Edge, ...] = added(factory=tuple)  # from the queries that are declared with ``after``

    @property
    def kafka_sources(self) -> dict[str, str]:
        """Return the offsets of the sources that read Kafka."""
        return {number: offsets for number, offsets in self.sources.items() if kafka_offsets(offsets)}

    def same_point(self, other: QueryDetail) -> bool:
        """Return whether nothing was committed between the two."""
        return (self.location, self.batch, self.begun) == (other.location, other.batch, other.begun)
