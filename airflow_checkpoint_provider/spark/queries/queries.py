"""The queries of one attempt: started by the script, watched until they end. Runs in the Spark driver.

They take part in checkpoints as ``participants.Streams``. While they run, ``timer`` takes the checkpoints.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.coordinator.assignment import Allowed
from airflow_checkpoint_provider.errors import WrongUse
from airflow_checkpoint_provider.protocol.config import EXACTLY_ONCE, CheckpointConfig
from airflow_checkpoint_provider.protocol.kinds import kind_named
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.query_details import FILE_SINKS
from airflow_checkpoint_provider.protocol.requests import stop_requested
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.checkpoints.copies import TooLate
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.queries import progress
from airflow_checkpoint_provider.spark.queries.cut import Cut, await_committed, linked_queries
from airflow_checkpoint_provider.spark.queries.location.locations import LocatedQuery, Locations, Start
from airflow_checkpoint_provider.spark.queries.location.rescaling import Rescaling
from airflow_checkpoint_provider.spark.queries.location.restored_links import restored_links
from airflow_checkpoint_provider.spark.queries.query import PAUSE, Query
from airflow_checkpoint_provider.spark.queries.running import RunningQuery
from airflow_checkpoint_provider.spark.queries.sinks.base import StreamSink
from airflow_checkpoint_provider.spark.queries.sinks.batch import claim
from airflow_checkpoint_provider.spark.queries.sinks.by_format import sink_of
from airflow_checkpoint_provider.spark.queries.snapshot import QuerySnapshot
from airflow_checkpoint_provider.spark.queries.sources.edges import upstreams
from airflow_checkpoint_provider.spark.queries.sources.new_name import refuse_new_name
from airflow_checkpoint_provider.spark.queries.sources.one_writer import (
    refuse_own_rows,
    refuse_path_of_another,
    refuse_second_writer,
)
from airflow_checkpoint_provider.spark.queries.sources.source_rows import SourceRows
from airflow_checkpoint_provider.spark.queries.sources.sources import Source, path_sources
from airflow_checkpoint_provider.spark.queries.standing import Standing
from airflow_checkpoint_provider.spark.queries.unstarted import Unstarted
from airflow_checkpoint_provider.spark.queries.writer import NOTES, examine
from airflow_checkpoint_provider.spark.state.snapshot import Check, Snapshot
from airflow_checkpoint_provider.spark.state.states import States
from airflow_checkpoint_provider.text import query_messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class _ScriptWaits:
    """Whether the script waits for its queries. A checkpoint keeps the script waiting while it asks for the states."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waits = self._held = 0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Note that the script waits inside this block. It leaves the block when no checkpoint holds it any more."""
        with self._changed:
            self._waits += 1
        try:
            yield
        finally:
            with self._changed:
                self._changed.wait_for(lambda: not self._held)
                self._waits -= 1

    @contextlib.contextmanager
    def held(self) -> Iterator[bool]:
        """Yield whether the script waits, and keep it so inside this block."""
        with self._changed:
            waits = bool(self._waits)
            self._held += waits
        try:
            yield waits
        finally:
            with self._changed:
                self._held -= waits
                self._changed.notify_all()


class Queries:
    """The queries of one attempt. The script's thread starts them and waits for them."""

    def __init__(
        self,
        spark: SparkSession,
        attempt: Attempt,
        states: States,
        config: CheckpointConfig,
        allowed: Allowed = False,
    ) -> None:
        """Make them. ``allowed``: what the job says of states that it does not use."""
        self._spark, self._attempt, self._states, self._config = spark, attempt, states, config
        self._allowed = allowed
        self._locations = Locations(attempt)
        self._running: dict[str, RunningQuery] = {}  # replaced as a whole: other threads read it
        self._unstarted = Unstarted()
        self._standing = Standing(spark, attempt, states)
        self._script_waits = _ScriptWaits()

    # -- starting ----------------------------------------------------------------------------------------------------

    def start(
        self,
        uid: str,
        writer: DataStreamWriter,
        *,
        after: Sequence[str] = (),
        adopt: str | None = None,
        rescale: bool = False,
    ) -> Query:
        """Start a query where it stood, and return when a batch that had begun before is committed. It reads the rows of the queries
        ``after``.
        """
        if self._attempt.journal.state.scope:
            raise WrongUse(
                f"query '{uid}' needs a history that all runs share, and this job has one for each run. Set"
                ' scope="job" in the task and max_active_runs=1 in its DAG'
            )
        target = examine(self._spark, uid, writer)
        if note := NOTES.get(target.format):
            say(query_messages.at_least_once(uid, target.format, note))
        sink = sink_of(self._spark, uid, target, writer)
        refuse_own_rows(uid, sink, path_sources(self._spark, writer))
        refuse_second_writer(uid, sink, self._sinks)
        refuse_path_of_another(uid, sink, self._sinks, self._attempt.journal.state, self._states.snapshots)
        if adopt is None:  # else it goes on where another one stood
            refuse_new_name(uid, sink, self._sinks, self._attempt.journal.state, self._states.snapshots, self._allowed)
        reads = upstreams(self._spark, uid, writer, after, self._sinks)
        with self._unstarted.starting():
            with self._attempt.barriers:  # a stop must find all queries or none
                running = self._started(uid, writer, sink, reads, adopt, rescale=rescale)
                self._running = {**self._running, uid: running}
                if sink.path and sink.target.format in FILE_SINKS:
                    claim(sink.path, str(running.spark_query.id))
            self._catch_up(running)
        return Query(running, self.waiting)

    def _started(
        self,
        uid: str,
        writer: DataStreamWriter,
        sink: StreamSink,
        reads: Mapping[str, Sequence[Source]],
        adopt: str | None,
        *,
        rescale: bool,
    ) -> RunningQuery:
        start = Start(
            uid=uid,
            restored=self._states.claim_query(uid),
            sink=sink,
            sources=SourceRows(self._spark, uid, writer, self._written_again()),
            links=restored_links(self._spark, self._attempt, uid, self._states.snapshots, reads, self._sinks),
            adopt=adopt,
            rescaling=Rescaling(self._spark, uid) if rescale else None,
            after=tuple(reads),
        )
        located = self._locations.locate(start)
        if located.older or located.chain:
            start.sink.delete_temporary_entries()
        self._tell(located, start.restored)
        running = RunningQuery(self._attempt, self._locations, located, writer, start.sink, reads)
        try:
            running.start()
            start.sources.follow(running.runs, self._attempt.heart)
        except BaseException:
            running.stop()
            raise
        return running

    def _written_again(self) -> set[str | None]:
        """Return the paths of queries that write rows again: those that went back with this restore, and those that begin in a fork. Nobody
        writes the files of any other query again.
        """
        state, running = self._attempt.journal.state, self._running.values()
        begin = (one.sink.path for one in running if not (one.located.older or one.located.chain))
        back = (query.newest.sink for query in state.queries if query.newest.rewound >= max(1, state.branch.rewinds))
        return {*begin, *back}

    @property
    def _sinks(self) -> dict[str, StreamSink]:
        return {uid: running.sink for uid, running in self._running.items()}

    def _catch_up(self, running: RunningQuery) -> None:
        """Wait for the batch that had begun, which may take hours. Checkpoints and a stop do not wait for that: the query is already one of
        those that run.
        """
        with self._script_waits.waiting():
            try:
                running.catch_up()
            except BaseException:
                running.handled.set()  # the script gets the error
                running.stop()
                raise

    def _tell(self, located: LocatedQuery, restored: StateSnapshot | None) -> None:
        """Log which batch is next."""
        state, point = self._attempt.journal.state, self._attempt.restored.point
        if located.gone_back:
            next_number = located.position.committed + 1
            say(query_messages.goes_back(located.uid, located.gone_back.batch, str(point), next_number))
        elif restored and restored.query and point and not (located.older or located.chain):
            saved = restored.query
            say(query_messages.restored(located.uid, saved.batch, saved.begun, str(point)))
        else:
            newest, position = next(iter(state.newest_first()), None), located.position
            say(query_messages.begins(located.uid, position.begun, position.committed, newest, len(located.older)))
            return
        for edge in restored.query.edges if restored and restored.query else ():
            if edge.ahead:
                say(query_messages.reads_again(located.uid, edge))

    # -- waiting and ending ------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Wait until every query has ended. Raises the error of the first one that failed."""
        with self.waiting():
            while self.any_runs():
                self._raise_failed()
                time.sleep(PAUSE)
            self._raise_failed()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Note that the script waits for queries inside this block."""
        self._unstarted.script_waits()
        with self._script_waits.waiting():
            yield

    def report(self) -> None:
        """Show in the heartbeat what the queries do. The attempt's watch calls it once a second."""
        activity = self._attempt.activity
        activity.run(progress.shown(self._running, activity.queries))

    def _raise_failed(self) -> None:
        for _, error in self.failed():
            raise error

    def end(self) -> None:
        """Stop the queries: none of them begins another batch."""
        for running in self._running.values():
            try:
                running.stop()
            except Exception:  # noqa: BLE001 - the attempt ends, and with it the process
                traceback.print_exc()

    # -- for the timer -------------------------------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """Return whether a query was started."""
        return bool(self._running)

    def any_runs(self) -> bool:
        """Return whether a query runs."""
        return any(running.runs() for running in self._running.values())

    def failed(self) -> Iterator[tuple[str, Exception]]:
        """Yield uid and error of each query that has failed, unless the script has dealt with that."""
        return ((uid, error) for uid, running in self._running.items() if (error := running.failed()))

    def script_held(self) -> AbstractContextManager[bool]:
        """Tell whether the script waits for its queries, and keep it so inside the block."""
        return self._script_waits.held()

    def settle(self) -> Iterator[Callable[[], None]]:
        """Give up the older locations of queries that need them no more, one by one. Yield the functions that delete them."""
        settled = (running.located for running in self._running.values() if running.settle())
        return (functools.partial(self._locations.delete_older, located) for located in settled)

    def others_wait(self) -> bool:
        """Return whether a checkpoint shall wait for queries that the script may start soon: it would hold old batches of them.

        It waits for queries that read the rows of a running one. While a query catches up, it waits for all queries of the job. Before a
        drain, it waits for every query that is not started.
        """
        if not self._unstarted.starts_soon():
            return False
        stop = stop_requested(self._attempt.journal.state)
        if stop and kind_named(stop.kind).drains and self.not_started():
            return True
        catches_up = any(not (running.caught_up or running.handled.is_set()) for running in self._running.values())
        if catches_up and self._of_job() - self._running.keys():
            return True
        return bool(self._unstarted.expected(self._running, self._states.snapshots))

    def not_started(self) -> set[str]:
        """Return the queries of the job, and of its newest checkpoint, that this attempt has not started."""
        saved = {uid for uid, state in self._states.snapshots.items() if state.query}
        return (self._of_job() | saved) - self._running.keys()

    def _of_job(self) -> set[str]:
        """Return the queries that the job has not dropped."""
        return {query.uid for query in self._attempt.journal.state.queries if not self._standing.dropped(query)}

    # -- in checkpoints ------------------------------------------------------------------------------------------------

    def rest(self, check: Check, *, drain: bool) -> None:
        """Stop the queries for the savepoint with which the job stops. With ``drain``, let them first read all rows that are there.

        The script still sees them running. Raises ``Declined`` if the script may soon start another query that would have to be drained.
        """
        if drain:
            self._drain(check)
        self._pause(check)

    def _drain(self, check: Check) -> None:
        """Let the queries read all rows that are there, one query after the other: a query may read the rows of an earlier one.

        Raises ``Declined`` if the script may soon start another one.
        """
        self._unstarted.refuse_to_drain(self.not_started())
        try:
            for uid, running in self._running.items():
                self._attempt.activity.draining = uid
                running.drain(check)
        except TooLate:
            raise TooLate(f"query '{self._attempt.activity.draining}' was not drained") from None
        finally:
            self._attempt.activity.draining = None

    def _pause(self, check: Check) -> None:
        """Stop the queries.

        A query stops before its upstreams. An upstream stops when it has committed everything that its readers have read.
        """
        for running in reversed(self._running.values()):
            if self._config.mode == EXACTLY_ONCE:
                await_committed(running, self._running.values(), check)
            running.pause()

    def resume(self) -> None:
        """Start the paused queries again, because the savepoint failed."""
        for running in self._running.values():
            running.resume()

    def pin(self, barrier: str) -> dict[str, Snapshot]:
        """Return a snapshot of each query by uid, also of queries that are not started. Linked queries are cut together."""
        before = self._states.snapshots
        groups = linked_queries(self._running)
        cuts = {uid: cut for group in groups for cut in [Cut(group, self._config, self._hurry)] for uid in group}
        started: dict[str, Snapshot] = {
            uid: QuerySnapshot(self._attempt, running, self._states.run, barrier, before.get(uid), cuts.get(uid))
            for uid, running in self._running.items()
        }
        standing = self._standing.snapshots(self._running, barrier)
        return {**standing, **started, **self._unstarted.snapshots(self._running, before)}

    def _hurry(self) -> bool:
        """Return whether a stop waits, or a query has failed. The timer must handle both without delay."""
        return any(self.failed()) or stop_requested(self._attempt.journal.state) is not None
