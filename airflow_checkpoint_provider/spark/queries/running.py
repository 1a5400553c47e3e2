"""One query of this attempt, from its start to its end. Runs in the Spark driver.

Spark's own query can end and start again meanwhile. Two drivers that run the same batch disturb each other, and the slower one fails. Then
the state of the batch is fetched, and the query starts again.
"""

from __future__ import annotations

import re
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.errors import Damaged, Declined, StoreError, WrongUse
from airflow_checkpoint_provider.location.fence import newest_batch
from airflow_checkpoint_provider.location.files import COMMITS, NOTHING
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.queries.location.locations import LocatedQuery, Locations
from airflow_checkpoint_provider.spark.queries.sinks.base import StreamSink
from airflow_checkpoint_provider.spark.queries.sources.sources import Source
from airflow_checkpoint_provider.spark.queries.writer import LOCATION, set_trigger, trigger_of
from airflow_checkpoint_provider.spark.s3a import spark_uri
from airflow_checkpoint_provider.spark.state.registered import words
from airflow_checkpoint_provider.text import query_messages

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

STARTS = 5  # of Spark's query, until the batch that had begun is committed
PAUSE = 0.05  # seconds between two polls whether it is committed
DISTURBED = re.compile(
    r"Race while writing batch|_spark_metadata/\d+\S* already exists|_spark_metadata/\.\S+\.tmp"
    r"|Multiple streaming queries are concurrently using \S*_spark_metadata"
    r"|DELTA_CONCURRENT_\w+|DELTA_METADATA_CHANGED|DELTA_PROTOCOL_CHANGED"
    r"|state/\d+/\d+\S*\.(?:delta|changelog|snapshot|zip|sst)"
)
"""Errors that another driver in the same batch causes."""
EXECUTION = "MicroBatchExecution"


class RunningQuery:
    """A query that runs in this attempt. Its methods may be called from any thread."""

    def __init__(
        self,
        attempt: Attempt,
        locations: Locations,
        located: LocatedQuery,
        writer: DataStreamWriter,
        sink: StreamSink,
        upstreams: Mapping[str, Sequence[Source]] | None = None,
    ) -> None:
        self._attempt, self._locations, self._writer = attempt, locations, writer
        self.uid, self.located, self.sink = located.uid, located, sink
        self.upstreams = upstreams or {}  # uid of a query -> the sources that read its sink
        self.file_sets: dict[str, int] = {}  # of its checkpoints: path -> bytes; the checkpoint thread alone uses it
        self.handled = threading.Event()  # the script has dealt with its failure
        self._lock = threading.RLock()  # one thread starts or stops Spark's query
        self._paused = threading.Event()
        self._stopped = threading.Event()  # for good
        self._caught_up = threading.Event()
        self._settled = not (located.older or located.chain)
        self._trigger: Any = None  # of the author, while the writer has another one
        self._query: StreamingQuery | None = None
        self._error: Exception | None = None  # with which the query could not start again

    @property
    def spark_query(self) -> StreamingQuery:
        """Return the query that Spark runs now."""
        assert self._query
        return self._query

    # -- starting ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start Spark's query. Raises ``WrongUse`` unless Spark runs it batch by batch: only such a query can be fenced."""
        location = spark_uri(self._attempt.store, self.located.own.key)
        with self._lock:
            if not self.caught_up:
                self._locations.fetch_missing_state(self.located)
            self._attempt.leaving.if_over()
            self._error = None
            self._query = self._writer.option(LOCATION, location).start()
        java: Any = self._query
        execution = java._jsq.streamingQuery().getClass().getSimpleName()
        if execution != EXECUTION:
            self._query.stop()
            raise WrongUse(f"query '{self.uid}' runs as {execution}, which has no batches that could be checkpointed")

    def catch_up(self) -> None:
        """Wait until the batch that had begun is committed and its state is there. Start Spark's query again if it is disturbed.

        While the query is paused for the savepoint of a stop, this only waits: ``resume`` starts the query again. Raises the query's own
        error, and ``Damaged`` if no driver has written that state.
        """
        begun, starts = self.located.position.begun, 1
        while not self._stopped.is_set():
            committed = self._await_batch(begun)
            if committed and self._locations.has_state(self.located):
                self._caught_up.set()
                return
            with self._lock:
                if not (self.paused or self._stopped.is_set()):
                    self._refuse_to_start_again(starts, committed)
                    self.spark_query.stop()
                    say(query_messages.starts_again(self.uid, begun))
                    self.start()
                    starts += 1

    def _refuse_to_start_again(self, starts: int, committed: bool) -> None:
        """Raise the query's error, unless another driver caused it and fewer than ``STARTS`` starts were tried.

        If the batch is committed without its state, any error is caused by that. Raises ``Damaged`` then, after ``STARTS`` starts.
        """
        error = self._error or self.spark_query.exception()
        if error and not committed and (starts == STARTS or not DISTURBED.search(str(error))):
            raise error
        if starts == STARTS:
            raise Damaged(
                f"query '{self.uid}': the sink has batch {self.located.position.begun}, and nobody has written its state. Start"
                " another job_id from a checkpoint"
            ) from error

    def _await_batch(self, batch: int) -> bool:
        """Wait until a batch is committed, or Spark's query ends before that. Return whether the batch is committed."""
        own = self.located.own
        while True:
            runs = self.paused or self.spark_query.isActive  # read first: the query may commit and end meanwhile
            if not self.paused and (batch == NOTHING or own.store.read(own.key_of(f"{COMMITS}/{batch}")) is not None):
                return True
            if not runs:
                return False
            self._attempt.leaving.if_over()
            time.sleep(PAUSE)

    def settle(self) -> bool:
        """Give up the older locations, once. Return whether this call did it. If the store does not answer, a later call tries again."""
        if self._settled or not self.caught_up:
            return False
        try:
            self._locations.settle(self.located)
        except StoreError as error:
            say(query_messages.not_settled(self.uid, error))
            return False
        self._settled = True
        return True

    # -- running and ending ------------------------------------------------------------------------------------------

    def runs(self) -> bool:
        """Return whether the query runs, is being drained, is paused for the savepoint of a stop, or is being started again."""
        starting = not (self.caught_up or self._stopped.is_set())
        return starting or self.paused or self.spark_query.isActive

    @property
    def caught_up(self) -> bool:
        """Return whether the batch that had begun is committed, and its state is there."""
        return self._caught_up.is_set()

    @property
    def paused(self) -> bool:
        """Return whether the query is paused for the savepoint of a stop, or is being drained before it."""
        return self._paused.is_set()

    def failed(self) -> Exception | None:
        """Return the error with which the query ended, unless the script has dealt with it."""
        if self.handled.is_set() or self.runs():
            return None
        return self._error or self.spark_query.exception()

    def stop(self) -> None:
        """Stop the query for good, also if it is paused."""
        self._stopped.set()
        with self._lock:
            self._paused.clear()
            if self._query:
                self._query.stop()

    def pause(self) -> None:
        """Stop the query if it runs, until ``resume`` starts it again."""
        with self._lock:
            if self.runs():
                self._paused.set()
                self.spark_query.stop()

    def drain(self, check: Callable[[], object]) -> None:
        """Run the query until it has read all rows that are there now. Then it is paused, and no batch has begun.

        ``check`` raises if nobody waits for the drain any longer. Raises ``Declined`` if the query fails or is stopped meanwhile.
        """
        with self._lock:
            if self._trigger is not None:  # a stop whose outcome is not known yet has drained it
                return
            self.pause()
            drains = self.paused
            if drains:
                say(query_messages.drains(self.uid))
                self._trigger = trigger_of(self._writer)
                self._writer.trigger(availableNow=True)
                self.start()
        while drains and self.spark_query.isActive:
            check()
            time.sleep(PAUSE)
        if error := self.spark_query.exception() if self.paused else self.failed():
            traceback.print_exception(error)
            raise Declined(f"query '{self.uid}' failed before it was drained: {words(error)}")
        if drains:
            begun, _ = newest_batch(self.located.own)
            if not self.paused or begun != self.located.own.committed(begun):
                raise Declined(f"query '{self.uid}' was stopped before it was drained")

    def resume(self) -> None:
        """Start the query again in the same location if it was paused, also while it drains. If it cannot start, it has failed."""
        with self._lock:
            if not self.paused:
                return
            try:
                self.spark_query.stop()
                if self._trigger is not None:
                    set_trigger(self._writer, self._trigger)
                    self._trigger = None
                if not self._stopped.is_set():
                    self.start()
            except Exception as error:  # noqa: BLE001 - the script's thread raises it
                self._error = error
            finally:
                self._paused.clear()
