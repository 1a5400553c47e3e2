"""The flow between two streaming queries through the files of a sink. Runs in the Spark driver.

The sink's log says which batch wrote a file. The log of the file source, in the location of the downstream, says which batch has read it.
Both name a file by its path. Only the names of the files are compared. They are unique, and the two logs may spell the path of the sink
differently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.location.files import NOTHING, Position
from airflow_checkpoint_provider.protocol.file_records import File
from airflow_checkpoint_provider.spark.queries.flows.flow import Flow
from airflow_checkpoint_provider.spark.queries.sources.sources import SourceLog, name_of

if TYPE_CHECKING:
    from airflow_checkpoint_provider.spark.queries.running import RunningQuery
    from airflow_checkpoint_provider.spark.queries.sinks.files import FileStreamSink


@dataclass(frozen=True)
class _ReadFiles:
    """The files that a query has read: of each upstream batch, the number of files that all of its sources have read; and the newest
    upstream batch of which any source has read a file.
    """

    files: Mapping[int, int]
    newest: int


class FileFlow(Flow):
    """The flow through the files of the upstream's ``sink``."""

    def __init__(self, upstream: RunningQuery, downstream: RunningQuery, sink: FileStreamSink) -> None:
        super().__init__(upstream, downstream)
        self._sink = sink
        self._logs = [SourceLog(downstream.located.own, source.folder) for source in self._sources]
        self._since = NOTHING  # older batches of the upstream may count as this one
        self._batches: dict[str, int] = {}  # name of a file of the upstream -> its batch
        self._written = Counter[int]()  # batch of the upstream -> its files
        self._newest: int | None = None  # newest batch of the upstream when the log was last read
        self._reads: dict[int, _ReadFiles] = {}  # batch of the downstream -> files

    def measure(self, upstream: Sequence[Position], downstream: Sequence[Position]) -> None:
        batches = {position.begun for position in downstream} - self._reads.keys()
        newest = max(position.committed for position in upstream)
        # The log is read after the positions were found, so it names all files that were read by then
        if batches or self._newest is None or newest > self._newest:
            self._read_log(min(position.committed for position in upstream))
            self._newest = newest
        for batch in batches:
            self._reads[batch] = self._counted(self._names(batch))

    def _read_log(self, since: int) -> None:
        """Read the new entries in the log of the sink."""
        if self._newest is None:
            self._since = since
        seen = max(self._batches.values(), default=NOTHING)
        for batch, file in self._sink.log.written(self._since, seen):
            if name_of(file.path) not in self._batches:
                self._batches[name_of(file.path)] = batch
                self._written[batch] += 1

    def _counted(self, names: Sequence[frozenset[str]]) -> _ReadFiles:
        """Return what was read, as far as the sink's log still names it. ``names``: the files that each source has read."""
        by_any = frozenset[str]().union(*names) & self._batches.keys()
        by_all = Counter(self._batches[name] for name in by_any.intersection(*names))
        return _ReadFiles(by_all, max((self._batches[name] for name in by_any), default=NOTHING))

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
        return self._reads[downstream.begun].newest <= upstream.committed

    def aligned(self, upstream: Position, downstream: Position) -> bool:
        read = self._reads[downstream.begun]
        whole = (
            read.files.get(batch) == count for batch, count in self._written.items() if batch <= upstream.committed
        )
        return self.consistent(upstream, downstream) and all(whole)

    def _in_flight(self, upstream: Position, downstream: Position) -> tuple[File, ...]:
        committed = frozenset[str](self._batches).intersection(*self._names(downstream.committed))
        waiting = [
            file
            for batch, file in self._sink.log.written(upstream.committed, NOTHING)
            if batch <= upstream.committed and name_of(file.path) not in committed
        ]
        self._refuse_many(len(waiting))
        return self._sink.named(waiting)

    def _ahead(self, upstream: Position, downstream: Position) -> int:
        read = frozenset[str]().union(*self._names(downstream.begun))
        return sum(batch > upstream.committed for name, batch in self._batches.items() if name in read)
