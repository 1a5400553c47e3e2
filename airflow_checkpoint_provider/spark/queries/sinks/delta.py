"""A Delta table as the sink of a query. Runs in the Spark driver.

Delta takes each batch of a query once. It counts batches by the id of the query, so other queries and people may write to the same table.
For the same reason this package takes no rows out of it: it would take out theirs, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.errors import SinkMoved
from airflow_checkpoint_provider.location.files import NOTHING, Position
from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.events import GoneBack
from airflow_checkpoint_provider.protocol.query_details import QueryDetail, delta_commit, delta_version
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.queries.sinks.base import CountingSink, WayBack
from airflow_checkpoint_provider.spark.queries.sinks.delta_table import Commit, DeltaTable, not_taken_out
from airflow_checkpoint_provider.spark.queries.sinks.links import InFlight
from airflow_checkpoint_provider.spark.queries.writer import Target, empty_like
from airflow_checkpoint_provider.text import query_messages, sink_messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class DeltaStreamSink(CountingSink):
    """The Delta table to which a query writes."""

    def __init__(self, spark: SparkSession, uid: str, target: Target, writer: DataStreamWriter | None) -> None:
        super().__init__(uid, target)
        self.table, self._writer = DeltaTable(spark, target.path), writer
        if writer and self.table.one_driver_only:
            say(sink_messages.one_driver_only(f"query '{uid}'", self.path))

    @property
    def path(self) -> str:
        return self.table.folder

    def newest_batch(self) -> int:
        return self.table.newest_batch(self.query_id)

    def is_empty(self) -> bool:
        return self.table.is_empty()

    def rewrite_batch_marker(self, position: Position) -> None:
        """Write the batch marker again if it has expired after ``delta.setTransactionRetentionDuration`` and the table's log still has it."""
        if position.begun != NOTHING and self.newest_batch() == NOTHING:
            logged = self.table.logged_batch(self.query_id)
            if logged != NOTHING:
                self._refuse_taken_back(position)  # a marker would hide that
                say(query_messages.marker_expired(self.uid, self.path, logged))
                self._mark(logged)

    def newest_file(self, batch: int) -> str | None:
        """Return the commit that wrote ``batch``; None if the table's log does not have it any more."""
        version = self.table.version_of(self.query_id, batch)
        return None if version is None else delta_commit(version)

    def mark_batches_written(self, up_to: int, in_flight: InFlight | None = None) -> None:
        if self.newest_batch() < up_to:
            if in_flight:
                in_flight.refuse_to_bring(self.path)
            self._mark(up_to)

    def _mark(self, batch: int) -> None:
        assert self._writer
        self.table.mark(self.query_id, batch, empty_like(self._writer))

    # -- going back --------------------------------------------------------------------------------------------------

    def plan_rewind(self, saved: QueryDetail, *, allowed: bool) -> GoneBack:
        """Return where the query goes back to. Only the author can take rows out of the table, so the loss of rows is never ``allowed``."""
        if self.path != saved.path:
            if not self.is_empty():
                raise self.lacks_batches(saved, self.newest_batch())
            return GoneBack(batch=saved.batch, sink=self.path)
        found, base = self._newest_known(), delta_version(saved.newest_file)
        if found < saved.batch:
            raise self.lacks_batches(saved, found)
        if base is None or self._is_ahead(base):
            raise self.is_ahead_of(saved, found)
        return GoneBack(batch=saved.batch, sink=self.path, newest_file=saved.newest_file)

    def check_can_continue(self, position: Position, known: Collection[str | None]) -> None:
        """Compare the batches as in any sink. Then refuse a table that was restored: it still counts the batches that it lacks."""
        super().check_can_continue(position, known)
        self._refuse_taken_back(position)

    def _refuse_taken_back(self, position: Position) -> None:
        restored, lacks = self._taken_back()
        if restored is not None and lacks is not None:
            undo = wording.restore_table(self.path, restored.version - 1)
            raise SinkMoved(
                f"query '{self.uid}' would continue after batch {position.committed}, but its table {self.path} was restored to version"
                f" {restored.restored_to}, and lacks rows that the query has written up to version {lacks}. Nothing was started. Go back to"
                f" a checkpoint with `{wording.restore(None, '…', '--rewind-sink')}`, or undo that restore: {undo}",
                sink=self.newest_batch(),
                checkpoint=position.committed,
            )

    def _newest_known(self) -> int:
        """Return the newest batch that the table has, even if only its log still says so."""
        found = self.newest_batch()
        return self.table.logged_batch(self.query_id) if found == NOTHING else found

    def _taken_back(self) -> tuple[Commit | None, int | None]:
        """Return the restore that took out the newest rows of the query, and the version that had them; nothing if the table has these rows.

        A restore before a commit of the query does not count: the query has gone back, or has gone on, since.
        """
        kept, restored, own = self.table.version, None, False
        for commit in self.table.commits(0):
            if self.query_id in commit.batches:
                own = True
                if commit.version <= kept:
                    break
                if commit.files:
                    return restored, commit.version
            elif not own and commit.restored_to is not None and commit.version <= kept:
                kept, restored = commit.restored_to, commit
        return None, None

    def _is_ahead(self, base: int) -> bool:
        """Return whether the table holds, or may hold, other rows of the query than it had at the commit ``base``.

        It does not if the query has written none since, or if the author has restored the table to that commit. The rows of other writers
        do not matter.
        """
        since = list(self.table.commits(base + 1))  # the newest first
        counting = list(not_taken_out(since))
        restored_to = (commit.restored_to for commit in counting if commit.restored_to is not None)
        all_known = len(since) == self.table.version - base
        return not all_known or any(version < base for version in restored_to) or self._holds_rows(counting)

    def _holds_rows(self, commits: Iterable[Commit]) -> bool:
        return any(commit.files and self.query_id in commit.batches for commit in commits)

    def rewind(self, way: WayBack) -> None:
        """Let the table count the batches up to ``way.number``.

        A first marker keeps older drivers out. The second one says that the table was compared after the first, so another attempt need not
        compare it again.
        """
        gone_back = way.gone_back
        if gone_back.sink != self.path or self.newest_batch() >= way.number:
            return
        self._mark(way.number - 1)
        base = delta_version(gone_back.newest_file)  # None: the table was empty
        if self._holds_rows(self.table.commits(0)) if base is None else self._is_ahead(base):
            raise self.has_got_rows(gone_back, "another path")
        self._mark(way.number)
