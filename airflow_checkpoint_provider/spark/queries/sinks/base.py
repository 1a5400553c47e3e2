"""The sink of a query: whether the query may go on there, or go back. Runs in the Spark driver.

A sink that counts batches silently skips each batch that it already has. So a query that starts from its beginning with an old sink would
lose rows. A query that goes back would not write its later batches again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from airflow_checkpoint_provider.errors import NotSupportedYet, SinkMoved
from airflow_checkpoint_provider.file_sink.log import INTERVAL, next_number
from airflow_checkpoint_provider.location.files import NOTHING, Location, Position
from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.events import GoneBack
from airflow_checkpoint_provider.protocol.file_records import File
from airflow_checkpoint_provider.protocol.query_details import FOREACH_BATCH, QueryDetail
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.queries.sinks.links import InFlight
from airflow_checkpoint_provider.spark.queries.writer import Target
from airflow_checkpoint_provider.spark.state.snapshot import Check
from airflow_checkpoint_provider.text import query_messages


@dataclass(frozen=True)
class WayBack:
    """The way back of a query, as the journal has decided it: the location in which the query goes on, and the batch after which it does."""

    job: str
    location: str
    gone_back: GoneBack
    number: int
    item: str | None = None  # of the job


class StreamSink:
    """The sink of the query ``uid``. It does not say which batches it has, so nothing is compared."""

    def __init__(self, uid: str, target: Target) -> None:
        self.uid, self.target = uid, target
        self.location: Location | None = None
        """A location of the query, once there is one. It holds Spark's id of the query, under which a table counts the batches."""

    @property
    def path(self) -> str | None:
        """Return the path to which the query writes, in one spelling; None if it has none."""
        return None

    # -- going on ----------------------------------------------------------------------------------------------------

    def delete_temporary_entries(self) -> None:
        """Delete temporary entries that an older driver is about to rename."""

    def newest_file(self, batch: int) -> str | None:
        """Return the newest file that the sink had when ``batch`` was written. Raises ``Damaged``."""
        return None

    def rewrite_batch_marker(self, position: Position) -> None:
        """Write the table's batch marker again if it was lost. The query wrote to this table at ``position``.

        Raises ``SinkMoved`` if the table may have forgotten the batch that had begun.
        """

    def check_can_continue(self, position: Position, known: Collection[str | None]) -> None:
        """Make sure that the query can go on at ``position``: the sink has the batches up to there, or is empty.

        It may have the begun batch, too. ``known`` are the paths to which the query has written: there, the sink must not be empty.
        Raises ``SinkMoved``.
        """

    def mark_batches_written(self, up_to: int, in_flight: InFlight | None = None) -> None:
        """Make an empty sink count the batches up to ``up_to`` as written. It gets only those of their files that are in flight. Raises
        ``SinkMoved`` if these cannot be copied there.
        """

    def copy_out(self, files: Iterable[File], target: Location, check: Check) -> bool:
        """Copy files of the sink, which are in flight, into a file set. Calls ``check`` before each. Return False if the sink cannot copy
        them.
        """
        return False

    # -- going back --------------------------------------------------------------------------------------------------

    def next_number(self, begun: int) -> int:
        """Return the number of a batch from which a query may go on after it went back: no driver has begun it."""
        return next_number(begun, INTERVAL)

    def plan_rewind(self, saved: QueryDetail, *, allowed: bool) -> GoneBack:
        """Return what the sink keeps when the query goes back to ``saved``. Changes nothing.

        Raises ``SinkMoved`` if the sink would lose rows and that is not ``allowed``, or lacks rows that it had, and ``NotSupportedYet`` for
        a function of ``foreachBatch``.
        """
        if self.target.format == FOREACH_BATCH:
            raise NotSupportedYet(wording.cannot_be_rewound(self.uid, wording.OWN_FUNCTION))
        say(query_messages.sink_keeps_rows(self.uid, self.target.format))
        return GoneBack(batch=saved.batch)

    def rewind(self, way: WayBack) -> None:
        """Take out the files that the sink shall not keep, and let it count the batches up to ``way.number``. May be repeated. Raises
        ``SinkMoved``.

        The journal has decided both, so an attempt that was replaced meanwhile makes the same change.
        """


class CountingSink(StreamSink, ABC):
    """A sink that says which batches it has, and takes each once."""

    @property
    def query_id(self) -> str:
        """Return Spark's id of the query; empty before it has one. Raises ``Damaged``."""
        return self.location.query_id() if self.location else ""

    @abstractmethod
    def newest_batch(self) -> int:
        """Return the newest batch of the query that the sink has, -1 if it has none."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Return whether a reader finds no rows in the sink. Raises ``Damaged``."""

    def check_can_continue(self, position: Position, known: Collection[str | None]) -> None:
        found, committed = self.newest_batch(), position.committed
        if committed <= found <= position.begun or found == committed:
            return
        if found < committed and self.path not in known and self.is_empty():
            say(query_messages.new_sink(self.uid, committed, self.path))
            return
        begins = "starts from its beginning" if committed == NOTHING else f"would continue after batch {committed}"
        effect = (
            f"skip {found - committed} of the new ones" if found > committed else f"lack {committed - found} of them"
        )
        raise SinkMoved(
            f"query '{self.uid}' {begins}, but its sink {self.path} has {_batches(found)}: it would {effect}. Nothing was started."
            " Write to another path, or restore a checkpoint of the time when these batches were written:"
            f" `{wording.restore(None, '…', '--rewind-sink')}`. It is mostly older than they are; what came after it is taken out",
            sink=found,
            checkpoint=committed,
        )

    def next_number(self, begun: int) -> int:
        return super().next_number(max(begun, self.newest_batch()))

    def lacks_batches(self, saved: QueryDetail, found: int, advice: str = "") -> SinkMoved:
        """Return the error for a sink that lacks files that it had at ``saved``. ``advice`` names a remedy besides an empty path."""
        return SinkMoved(
            f"query '{self.uid}' is to go back to batch {saved.batch}, but its sink {self.path} lacks files that it had then. The"
            f" query was not started. {advice}Write to an empty path",
            sink=found,
            checkpoint=saved.batch,
        )

    def is_ahead_of(self, saved: QueryDetail, found: int) -> SinkMoved:
        """Return the error for a sink that holds rows that were written after ``saved``, up to batch ``found``."""
        why = wording.sink_is_ahead(self.uid, self.path or "", saved)
        return SinkMoved(f"{why}. The query was not started", sink=found, checkpoint=saved.batch)

    def has_got_rows(self, gone_back: GoneBack, elsewhere: str) -> SinkMoved:
        """Return the error for a table that has got rows of the query on its way back. ``elsewhere``: a place without such rows."""
        command = wording.take_out(self.path or "", gone_back.newest_file)
        advice = f"Take them out with {command}, then start the job again" if command else f"Write to {elsewhere}"
        return SinkMoved(
            f"query '{self.uid}' goes back to batch {gone_back.batch}, and its table {self.path} has received rows from it since. The query"
            f" was not started. {advice}",
            checkpoint=gone_back.batch,
        )


def _batches(newest: int) -> str:
    return "no batches any more" if newest == NOTHING else f"batches up to {newest}"
