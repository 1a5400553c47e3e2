"""What one streaming query reads of another one: the files of its sink. Runs in the Spark driver.

The sink's log says which batch wrote a file. The log of the file source, in the location of the query that reads, says which batch
has read it. Both name a file by its path. The names of the files are unique, and they are what is compared: a sink may have been
written in one spelling and be read in another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.coordinator.query_location import NOTHING, Position
from airflow_checkpoint_provider.errors import Declined, NotSupportedYet, WrongUse
from airflow_checkpoint_provider.protocol.metadata import Edge
from airflow_checkpoint_provider.spark.log import say
from airflow_checkpoint_provider.spark.queries.running import RunningQuery
from airflow_checkpoint_provider.spark.queries.sources import Source, SourceLog, file_sources, name_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

MOST = 10_000  # files in flight between two queries that a checkpoint names


def upstreams(
    spark: SparkSession, uid: str, writer: DataStreamWriter, after: Sequence[str], running: Mapping[str, RunningQuery]
) -> dict[str, list[Source]]:
    """Return what the query reads of each query that ``after`` names. Raises ``WrongUse`` and ``NotSupportedYet``."""
    if isinstance(after, str):
        raise WrongUse(f"after={after!r} of query '{uid}' is a text: write after=[{after!r}]")
    sources = file_sources(spark, writer) if running else []  # nobody else writes anything
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
    if leaves_out := next((source.leaves_out for source in found if source.leaves_out), None):
        raise NotSupportedYet(
            f"query '{uid}' reads what '{upstream}' writes with the option {leaves_out}, so nobody can tell what it has yet to read. Filter"
            " the rows instead, or leave after= out"
        )
    if not found:
        reads = ", ".join(source.path for source in sources) or "no files"
        raise WrongUse(
            f"query '{uid}' reads {reads}, and '{upstream}' writes to {sink.path}. Read that path, or leave after= out"
        )
    return found


@dataclass(frozen=True)
class _Read:
    """What a query has read of another one: how many files of each of its batches, by all sources, and the newest batch, by any."""

    files: Mapping[int, int]
    newest: int


class Flow:
    """What runs from the query ``upstream`` to the query ``downstream``. One thread uses it."""

    def __init__(self, upstream: RunningQuery, downstream: RunningQuery) -> None:
        self.upstream, self.downstream = upstream, downstream
        self._sources = downstream.upstreams[upstream.uid]
        self._logs = [SourceLog(downstream.located.own, source.folder) for source in self._sources]
        self._since = NOTHING  # older batches of the upstream may count as this one
        self._batches: dict[str, int] = {}  # name of a file of the upstream -> its batch
        self._written = Counter[int]()  # batch of the upstream -> its files
        self._newest: int | None = None  # batch of the upstream at the last look
        self._reads: dict[int, _Read] = {}  # batch of the downstream -> files

    def look(self, upstream: Sequence[Position], downstream: Sequence[Position]) -> None:
        """Read what the downstream has read, and what the upstream has written, at each of these positions."""
        batches = {position.begun for position in downstream} - self._reads.keys()
        read = {batch: self._names(batch) for batch in batches}  # before the sink's log: what was read is written
        newest = max(position.committed for position in upstream)
        if batches or self._newest is None or newest > self._newest:
            self._read_log(min(position.committed for position in upstream))
            self._newest = newest
        for batch, names in read.items():
            self._reads[batch] = self._counted(names)

    def _read_log(self, since: int) -> None:
        """Read what is new in the log of the sink."""
        if self._newest is None:
            self._since = since
        seen = max(self._batches.values(), default=NOTHING)
        for batch, file in self.upstream.sink.written(self._since, seen):
            if name_of(file.path) not in self._batches:
                self._batches[name_of(file.path)] = batch
                self._written[batch] += 1

    def _counted(self, names: Sequence[frozenset[str]]) -> _Read:
        """Return what was read of the files that the sink's log still names; ``names`` are those of each source."""
        by_any = frozenset[str]().union(*names) & self._batches.keys()
        by_all = Counter(self._batches[name] for name in by_any.intersection(*names))
        return _Read(by_all, max((self._batches[name] for name in by_any), default=NOTHING))

    def _names(self, batch: int) -> list[frozenset[str]]:
        """Return the names of the files that each source has read by the end of ``batch``."""
        if batch == NOTHING:
            return [frozenset() for _ in self._sources]
        offsets = self.downstream.located.own.offsets(batch)
        newest = [offsets.newest_log_entry(source.offset) for source in self._sources]
        return [
            frozenset() if last is None else frozenset(name for name, entry in log.read(last).items() if entry <= last)
            for log, last in zip(self._logs, newest, strict=True)
        ]

    def consistent(self, upstream: Position, downstream: Position) -> bool:
        """Return whether the upstream has committed all that the downstream has read."""
        return self._reads[downstream.begun].newest <= upstream.committed

    def aligned(self, upstream: Position, downstream: Position) -> bool:
        """Return whether the downstream has read just what the upstream has committed."""
        read = self._reads[downstream.begun]
        whole = (
            read.files.get(batch) == count for batch, count in self._written.items() if batch <= upstream.committed
        )
        return self.consistent(upstream, downstream) and all(whole)

    def edge(self, upstream: Position, downstream: Position) -> Edge:
        """Return what is in flight, and how many files the downstream has read that the upstream has not committed.

        The files of a batch that had begun are in flight, too: wherever the checkpoint is restored, it reads them again.
        Raises ``Declined`` for more files in flight than a checkpoint can name.
        """
        committed = frozenset[str](self._batches).intersection(*self._names(downstream.committed))
        sink = self.upstream.sink
        waiting = [
            file
            for batch, file in sink.written(upstream.committed, NOTHING)
            if batch <= upstream.committed and name_of(file.path) not in committed
        ]
        if len(waiting) > MOST:
            raise Declined(
                f"query '{self.downstream.uid}' has yet to read {len(waiting)} files of '{self.upstream.uid}', and a checkpoint holds at"
                f" most {MOST} files in flight. If the query has ended, start it again, or leave after= out"
            )
        return Edge(
            upstream=self.upstream.uid,
            path=sink.path or "",
            in_flight=sink.named(waiting),
            ahead=0 if self.consistent(upstream, downstream) else self._ahead(upstream, downstream),
        )

    def _ahead(self, upstream: Position, downstream: Position) -> int:
        read = frozenset[str]().union(*self._names(downstream.begun))
        return sum(batch > upstream.committed for name, batch in self._batches.items() if name in read)
