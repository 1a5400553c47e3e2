"""Queries of the job that the script has not started: a checkpoint holds each at its newest position. Runs in the Spark driver.

An older attempt has run them, perhaps further than the newest checkpoint knows. If a checkpoint held their older positions, or left them
out, no query could go back to it: their sinks would be ahead of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from airflow_checkpoint_provider.errors import Damaged, Declined, NotInstalled, SinkMoved, VersionMismatch, WrongUse
from airflow_checkpoint_provider.location.files import Location, Position
from airflow_checkpoint_provider.protocol.keys import file_set_epoch
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.query_records import QueryRecord
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.queries.location.locations import LocatedQuery
from airflow_checkpoint_provider.spark.queries.sinks.base import StreamSink
from airflow_checkpoint_provider.spark.queries.sinks.by_format import sink_of
from airflow_checkpoint_provider.spark.queries.snapshot import QuerySnapshot
from airflow_checkpoint_provider.spark.queries.writer import TABLES, Target, need_package
from airflow_checkpoint_provider.spark.state.snapshot import Check, FileSetFolder, StoredSnapshot
from airflow_checkpoint_provider.spark.state.states import States
from airflow_checkpoint_provider.text import query_messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNREADABLE = (Damaged, SinkMoved, WrongUse, NotInstalled, VersionMismatch, Py4JError, PySparkException)
"""Errors of a location or a sink that was deleted or changed since, or whose package the job no longer brings."""


@dataclass
class _Still:
    """A query that does not run, as ``QuerySnapshot`` takes one."""

    uid: str
    located: LocatedQuery
    sink: StreamSink
    paused: bool = True  # so a batch that had begun is held, too
    caught_up: bool = False
    file_sets: dict[str, int] = field(default_factory=dict)


class Standing:
    """The queries of the job that the script has not started, except for linked ones (``unstarted.py``)."""

    def __init__(self, spark: SparkSession, attempt: Attempt, states: States) -> None:
        self.attempt, self.states, self._spark = attempt, states, spark
        self._unreadable = set[str]()

    def snapshots(self, started: Collection[str], barrier: str) -> dict[str, StandingSnapshot]:
        """Return a snapshot of each. Reads nothing."""
        state, states = self.attempt.journal.state, self.states.snapshots
        wanted = (query for query in alone(state, states) if not state.branch.goes_back(query))
        return {
            query.uid: StandingSnapshot(self, query.uid, barrier, states.get(query.uid))
            for query in wanted
            if query.uid not in started and query.uid not in self._unreadable and not self.dropped(query)
        }

    def dropped(self, query: QueryRecord) -> bool:
        """Return whether the job has dropped the query: now, at the end of its script, or before the checkpoint from which it started. That
        one would hold it otherwise, unless it is linked to others. A query that has run since then counts again.
        """
        states, restored, state = self.states, self.attempt.restored, self.attempt.journal.state
        if query.uid in states.dropped or query.uid in states.begun_with:
            return query.uid in states.dropped
        if restored.point is None or restored.point.pointer:
            return False
        checkpoint = state.checkpoint(restored.point.id or 0)
        if checkpoint is None or file_set_epoch(query.newest.path) >= min(checkpoint.epochs):
            return False
        return query in alone(state, states.snapshots)

    def opened(self, uid: str) -> _Still:
        """Return the query of that uid with its sink."""
        query, store, keys = self.attempt.journal.state.query(uid), self.attempt.store, self.attempt.keys
        assert query
        assert query.newest.format
        if query.newest.format in TABLES:
            need_package(self._spark, f"query '{uid}'", query.newest.format)
        path = query.newest.path
        located = LocatedQuery(uid, path, Location(store, keys.file_set(path)), (), (), Position())
        sink = sink_of(self._spark, uid, Target(query.newest.format, query.newest.sink or ""))
        sink.location = located.own
        return _Still(uid, located, sink)

    def leave_out(self, uid: str) -> None:
        """Hold the query as the newest checkpoint does, from now on."""
        self._unreadable.add(uid)


class StandingSnapshot:
    """A query that is not started, at one barrier. ``before``: its record in the newest checkpoint."""

    def __init__(self, standing: Standing, uid: str, barrier: str, before: StateSnapshot | None) -> None:
        self._standing, self._uid, self._barrier, self._before = standing, uid, barrier, before
        self._snapshot: QuerySnapshot | None = None

    def write(self, check: Check, folder: FileSetFolder | None = None) -> StateSnapshot:
        """Return the record of the query. Raises ``Declined`` if the query cannot be read and no checkpoint holds it: the next checkpoint
        is taken without it.
        """
        record = self._record(check)
        if folder is not None and record.query:
            say(query_messages.held(self._uid, record.query.batch, record.query.begun))
        return StoredSnapshot(record).write(check, folder)

    def _record(self, check: Check) -> StateSnapshot:
        standing = self._standing
        try:
            if self._snapshot is None:
                still = standing.opened(self._uid)
                self._snapshot = QuerySnapshot(
                    standing.attempt, still, standing.states.run, self._barrier, self._before
                )
            return self._snapshot.write(check)
        except UNREADABLE as error:
            standing.leave_out(self._uid)
            if self._before is None:
                why = query_messages.cannot_be_read(self._uid, error)
                raise Declined(f"{why}. The next checkpoint is taken without it") from error
            say(query_messages.held_as_before(self._uid, error))
            return self._before

    def discard(self) -> None:
        """Do nothing: the files stay."""


def alone(state: State, states: Mapping[str, StateSnapshot]) -> Iterator[QueryRecord]:
    """Yield the queries of the job that are linked to no other one, neither in the journal nor in a checkpoint."""
    pairs = [(query.uid, upstream) for query in state.queries for upstream in query.newest.after]
    pairs += [
        (uid, edge.upstream) for uid, saved in states.items() for edge in (saved.query.edges if saved.query else ())
    ]
    linked = {uid for pair in pairs for uid in pair}
    yield from (query for query in state.queries if query.newest.format and query.uid not in linked)
