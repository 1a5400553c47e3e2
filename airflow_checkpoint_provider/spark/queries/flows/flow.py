"""The flow between two streaming queries, and whether a checkpoint may hold both at given batches. Runs in the Spark driver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.errors import Declined
from airflow_checkpoint_provider.location.files import Position
from airflow_checkpoint_provider.protocol.file_records import File
from airflow_checkpoint_provider.protocol.query_details import Edge

if TYPE_CHECKING:
    from airflow_checkpoint_provider.spark.queries.running import RunningQuery

MOST = 10_000  # files in flight between two queries that a checkpoint names


class Flow(ABC):
    """The rows that pass from query ``upstream`` to query ``downstream``. For one thread."""

    def __init__(self, upstream: RunningQuery, downstream: RunningQuery) -> None:
        self.upstream, self.downstream = upstream, downstream
        self._sources = downstream.upstreams[upstream.uid]

    @abstractmethod
    def measure(self, upstream: Sequence[Position], downstream: Sequence[Position]) -> None:
        """Find out what the downstream has read, and what the upstream has written, at each of these positions."""

    @abstractmethod
    def consistent(self, upstream: Position, downstream: Position) -> bool:
        """Return whether the upstream has committed everything that the downstream has read."""

    @abstractmethod
    def aligned(self, upstream: Position, downstream: Position) -> bool:
        """Return whether the downstream has read exactly what the upstream has committed."""

    def edge(self, upstream: Position, downstream: Position) -> Edge:
        """Return the edge: the files in flight, and how many files the downstream has read that the upstream has not committed.

        The files of a batch that had begun are in flight, too: wherever the checkpoint is restored, that batch reads them again. Raises
        ``Declined`` for more files in flight than a checkpoint can name.
        """
        return Edge(
            upstream=self.upstream.uid,
            path=self.upstream.sink.path or "",
            in_flight=self._in_flight(upstream, downstream),
            ahead=0 if self.consistent(upstream, downstream) else self._ahead(upstream, downstream),
        )

    @abstractmethod
    def _in_flight(self, upstream: Position, downstream: Position) -> tuple[File, ...]:
        """Return the files that the upstream has committed and the downstream has not."""

    @abstractmethod
    def _ahead(self, upstream: Position, downstream: Position) -> int:
        """Return how many files the downstream has read that the upstream has not committed."""

    def _refuse_many(self, waiting: int) -> None:
        if waiting > MOST:
            raise Declined(
                f"query '{self.downstream.uid}' has yet to read {waiting} files of '{self.upstream.uid}', and a checkpoint holds at"
                f" most {MOST} files in flight. If the query has ended, start it again, or leave after= out"
            )
