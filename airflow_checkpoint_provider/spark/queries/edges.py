"""What one streaming query reads of another one: the files of its sink. Runs in the Spark driver.

The sink's log says which batch wrote a file. The log of the file source, in the location of the query that reads, says which batch
has read it. Both name a file by its path. The names of the files are unique, and they are what is compared: a sink may have been
written in one spelling and be read in another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.coordinator.query_location import NOTHING, Position
from airflow_checkpoint_provider.errors import NotSupportedYet, WrongUse
from airflow_checkpoint_provider.protocol.metadata import Edge
from airflow_checkpoint_provider.spark.log import say
from airflow_checkpoint_provider.spark.queries.running import RunningQuery
from airflow_checkpoint_provider.spark.queries.sink_log import SinkFile
from airflow_checkpoint_provider.spark.queries.sources import Source, SourceLog, file_sources, name_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def upstreams(
    spark: SparkSession, uid: str, writer: DataStreamWriter, after: Sequence[str], running: Mapping[str, RunningQuery]
) -> dict[str, list[Source]]:
    """Return what the query reads of each query that ``after`` names. Raises ``WrongUse`` and ``NotSupportedYet``."""
    sources = file_sources(spark, writer)
    found = {upstream: _read_of(uid, upstream, sources, running) for upstream in after}
    for upstream, other in running.items():
        if upstream not in after and any(source.path == other.sink.path for source in sources):
            say(
                f"query '{uid}' reads what '{upstream}' writes. Write start_query(..., after=[{upstream!r}]): else a checkpoint holds"
                " each of them at a moment of its own"
            )
    return found


def _read_of(uid: str, upstream: str, sources: Sequence[Source], running: Mapping[str, RunningQuery]) -> list[Source]:
    if upstream not in running:
        raise WrongUse(
            f"query '{uid}' is to read what '{upstream}' writes, which is not started. Start '{upstream}' first"
        )
    sink = running[upstream].sink
    if sink.path is None:
        raise NotSupportedYet(
            f"query '{uid}' is to read what '{upstream}' writes to {sink.target.format}. Nobody can tell what it has read of that:"
            " only files are known. Leave after= out"
        )
    found = [source for source in sources if source.path == sink.path]
    if not found:
        reads = ", ".join(source.path for source in sources) or "no files"
        raise WrongUse(
            f"query '{uid}' reads {reads}, and '{upstream}' writes to {sink.path}. Read that path, or leave after= out"
        )
    return found


@dataclass(frozen=True)
class _Read:
    """What a query has read of another one: by all of its sources, and by any of them."""

    by_all: frozenset[str]
    by_any: frozenset[str]
    highest: int  # the batch that wrote the newest of these files


class Flow:
    """What runs from the query ``upstream`` to the query ``downstream``. One thread uses it."""

    def __init__(self, upstream: RunningQuery, downstream: RunningQuery) -> None:
        self.upstream, self.downstream = upstream, downstream
        self._sources = downstream.upstreams[upstream.uid]
        self._logs = [SourceLog(downstream.located.own, source.folder) for source in self._sources]
        self._written: dict[str, tuple[int, SinkFile]] = {}  # name -> batch of the upstream
        self._newest = NOTHING - 1  # batch of the upstream at the last look
        self._counts: dict[int, int] = {}  # batch of the upstream -> files up to there
        self._reads: dict[int, _Read] = {}  # batch of the downstream -> files

    def look(self, upstream: Sequence[Position], downstream: Sequence[Position]) -> None:
        """Read what the downstream has read, and what the upstream has written, at each of these positions."""
        batches = {position.begun for position in downstream} - self._reads.keys()
        read = {batch: self._names(batch) for batch in batches}  # before the sink's log: what was read is written
        committed = [position.committed for position in upstream]
        if batches or max(committed) > self._newest:
            self._newest = max(committed)
            written = self.upstream.sink.written(min(committed))
            self._written = {name_of(file.path): (batch, file) for batch, file in written}
            self._counts.clear()
        for batch, names in read.items():
            self._reads[batch] = self._known(names)

    def _known(self, names: Sequence[frozenset[str]]) -> _Read:
        """Return what was read of the files that the sink's log still names; ``names`` are those of each source."""
        by_any = frozenset[str]().union(*names) & self._written.keys()
        by_all = by_any.intersection(*names)
        return _Read(by_all, by_any, max((self._written[name][0] for name in by_any), default=NOTHING))

    def _names(self, batch: int) -> list[frozenset[str]]:
        """Return the names of the files that each source has read by the end of ``batch``."""
        if batch == NOTHING:
            return [frozenset() for _ in self._sources]
        offsets = self.downstream.located.own.offsets(batch)
        newest = [offsets.newest_log_entry(source.offset) for source in self._sources]
        return [
            frozenset(name for name, entry in log.read(last).items() if entry <= last)
            if last is not None
            else frozenset()
            for log, last in zip(self._logs, newest, strict=True)
        ]

    def consistent(self, upstream: Position, downstream: Position) -> bool:
        """Return whether the upstream has committed all that the downstream has read, by all of its sources."""
        read = self._reads[downstream.begun]
        return read.highest <= upstream.committed and len(read.by_all) == len(read.by_any)

    def aligned(self, upstream: Position, downstream: Position) -> bool:
        """Return whether the downstream has read just what the upstream has committed."""
        if upstream.committed not in self._counts:
            self._counts[upstream.committed] = len(self._up_to(upstream))
        read = len(self._reads[downstream.begun].by_all)
        return self.consistent(upstream, downstream) and read == self._counts[upstream.committed]

    def edge(self, upstream: Position, downstream: Position) -> Edge:
        """Return what is in flight, and how many files the downstream has read that the upstream has not committed.

        The files of a batch that had begun are in flight, too: wherever the checkpoint is restored, it reads them again.
        """
        read, written = self._reads[downstream.begun], self._up_to(upstream)
        committed = self._known(self._names(downstream.committed)).by_all
        sink = self.upstream.sink
        return Edge(
            upstream=self.upstream.uid,
            path=sink.path or "",
            in_flight=sink.named(file for name, file in written.items() if name not in committed),
            ahead=len(read.by_any - written.keys()),
        )

    def _up_to(self, upstream: Position) -> dict[str, SinkFile]:
        return {name: file for name, (batch, file) in self._written.items() if batch <= upstream.committed}
