"""The flow between two streaming queries through a Delta table. Runs in the Spark driver.

The table's log says which commit holds a batch of the upstream. The offset of the downstream says up to which commit it has read. Commits
of other writers may lie between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.errors import Declined
from airflow_checkpoint_provider.location.files import NO_OFFSET, NOTHING, Position
from airflow_checkpoint_provider.protocol.file_records import File
from airflow_checkpoint_provider.spark.queries.flows.flow import Flow
from airflow_checkpoint_provider.spark.queries.sinks.delta_table import Commit, DeltaOffset

if TYPE_CHECKING:
    from airflow_checkpoint_provider.spark.queries.running import RunningQuery
    from airflow_checkpoint_provider.spark.queries.sinks.delta import DeltaStreamSink


@dataclass(frozen=True)
class Read:
    """How far a query has read a table: all commits before ``whole``, and some rows of commits before ``touched``."""

    whole: int = 0
    touched: int = 0

    @classmethod
    def parse(cls, offset: str) -> Read:
        """Return it from an offset. With an initial offset, the source reads the whole table at one commit, so files of earlier commits may
        still be unread.
        """
        read = DeltaOffset.parse(offset)
        if read.initial:
            return cls(0, 0 if read.index < 0 else read.touched)
        return cls(read.version, read.touched)


class DeltaFlow(Flow):
    """The flow through the Delta table of the upstream's ``sink``."""

    def __init__(self, upstream: RunningQuery, downstream: RunningQuery, sink: DeltaStreamSink) -> None:
        super().__init__(upstream, downstream)
        self._sink = sink
        self._reads = {NOTHING: Read()}  # batch of the downstream -> how far it has read
        self._commits: list[Commit] = []  # of the upstream, with rows
        self._newest: int | None = None  # commit up to which they are known

    def measure(self, upstream: Sequence[Position], downstream: Sequence[Position]) -> None:
        for batch in {batch for position in downstream for batch in (position.begun, position.committed)}:
            if batch not in self._reads:
                self._reads[batch] = self._read(batch)
        whole = min(self._reads[position.committed].whole for position in downstream)
        newest = self._sink.table.version
        self._commits += self._written(whole, min(position.committed for position in upstream), newest)
        self._newest = newest

    def _written(self, whole: int, oldest: int, newest: int) -> list[Commit]:
        """Return the commits of the upstream that are not known yet.

        The first call returns the commits after the batch ``oldest``, and the commits from ``whole`` on, which the downstream may not have
        read. Raises ``Declined`` if the log does not have the latter any more.
        """
        found, first, seen = list[Commit](), 0 if self._newest is None else self._newest + 1, newest + 1
        for commit in self._sink.table.commits(first, newest):
            batch, seen = commit.batches.get(self._sink.query_id), commit.version
            if batch is not None and commit.files:
                found.append(commit)
            if batch == 0 or (batch is not None and batch <= oldest and commit.version < whole):
                return found
        if seen > max(first, whole):
            raise Declined(
                f"query '{self.downstream.uid}' has yet to read commits of {self._sink.path} from {whole} on, but the table's log no"
                f" longer holds the commits before {seen}, so the checkpoint cannot list the rows in flight. A later one can, once the query"
                " has read them"
            )
        return found

    def _read(self, batch: int) -> Read:
        """Return how far all sources have read by the end of ``batch``, and how far at least one has."""
        offsets = self.downstream.located.own.offsets(batch).sources
        found = [offsets.get(source.offset, NO_OFFSET) for source in self._sources]
        reads = [Read() if offset == NO_OFFSET else Read.parse(offset) for offset in found]
        return Read(min(read.whole for read in reads), max(read.touched for read in reads))

    def _batch(self, commit: Commit) -> int:
        return commit.batches[self._sink.query_id]

    def consistent(self, upstream: Position, downstream: Position) -> bool:
        return not self._too_early(upstream, downstream)

    def aligned(self, upstream: Position, downstream: Position) -> bool:
        return self.consistent(upstream, downstream) and not self._waiting(upstream, downstream.begun)

    def _too_early(self, upstream: Position, downstream: Position) -> list[Commit]:
        """Return the commits from which the downstream has read, and which the upstream has not committed at its position."""
        touched = self._reads[downstream.begun].touched
        return [
            commit for commit in self._commits if commit.version < touched and self._batch(commit) > upstream.committed
        ]

    def _waiting(self, upstream: Position, batch: int) -> list[Commit]:
        """Return the commits that the upstream has committed, and that the downstream has not read completely by the end of ``batch``."""
        whole = self._reads[batch].whole
        return [
            commit for commit in self._commits if commit.version >= whole and self._batch(commit) <= upstream.committed
        ]

    def _in_flight(self, upstream: Position, downstream: Position) -> tuple[File, ...]:
        files = tuple(file for commit in self._waiting(upstream, downstream.committed) for file in commit.files)
        self._refuse_many(len(files))
        return files

    def _ahead(self, upstream: Position, downstream: Position) -> int:
        return sum(len(commit.files) for commit in self._too_early(upstream, downstream))
