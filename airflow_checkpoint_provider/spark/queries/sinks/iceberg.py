"""An Iceberg table as the sink of a query. Runs in the Spark driver.

Iceberg counts batches by the id of the query, so other queries and people may write to the same table. For the same reason this package
takes no rows out of it: it would take out theirs, too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.errors import SinkMoved
from airflow_checkpoint_provider.location.files import NOTHING, Position
from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.events import GoneBack
from airflow_checkpoint_provider.protocol.query_details import QueryDetail, iceberg_number, iceberg_snapshot
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.queries.sinks.base import CountingSink, WayBack
from airflow_checkpoint_provider.spark.queries.sinks.iceberg_table import IcebergTable
from airflow_checkpoint_provider.spark.queries.sinks.links import InFlight
from airflow_checkpoint_provider.spark.queries.writer import Target
from airflow_checkpoint_provider.text import query_messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


CLOCKS = 600.0  # seconds that the clocks of two drivers may differ


class IcebergStreamSink(CountingSink):
    """The Iceberg table to which a query writes."""

    def __init__(self, spark: SparkSession, uid: str, target: Target) -> None:
        super().__init__(uid, target)
        self._table = IcebergTable.named(spark, target.path)

    @property
    def path(self) -> str:
        return self._table.name

    def newest_batch(self) -> int:
        # Not that of the newest snapshot: an older driver may have written an older batch again
        return max(self._batches(), default=NOTHING)

    def _batches(self) -> list[int]:
        """Return the batches of the query's snapshots, the newest snapshot first."""
        return [batch for batch, _ in self._table.written(self.query_id)]

    def is_empty(self) -> bool:
        newest = next(self._table.snapshots(), None)
        return newest is None or newest.summary.get("total-data-files") == "0"

    def rewrite_batch_marker(self, position: Position) -> None:
        """Write the marker of the committed batch again if its snapshot has expired: then Iceberg does not know the batch any more.

        If the begun batch is newer than a snapshot that is left, the snapshot of that batch cannot have expired.
        """
        begun, committed, since = position.begun, position.committed, self._remembers_since()
        if since is None or begun == NOTHING or self.newest_batch() != NOTHING:
            return
        if committed != NOTHING and self._began(committed) > since + CLOCKS:
            return  # its snapshot cannot have expired: the table lacks that batch
        if begun != committed and self._began(begun) <= since + CLOCKS:
            raise SinkMoved(
                f"query '{self.uid}' continues with batch {begun}, which had begun, and snapshots of its table {self.path} have expired since."
                " So nobody can tell whether the table has the rows of that batch. Nothing was started. Write to another table",
                checkpoint=committed,
            )
        if committed != NOTHING:
            say(query_messages.snapshots_expired(self.uid, self.path, committed))
            self.mark_batches_written(committed)

    def _began(self, batch: int) -> float:
        """Return when a batch began, in seconds since 1970."""
        return self.location.offsets(batch).began_ms / 1000 if self.location else 0.0

    def check_can_continue(self, position: Position, known: Collection[str | None]) -> None:
        """Compare the batches as in any sink. An Iceberg table may have a batch twice."""
        written = list(self._table.written(self.query_id))
        for (batch, snapshot), (before, _) in pairwise(written):
            if batch <= before and snapshot.changes_rows:
                say(query_messages.batch_twice(self.uid, self.path, batch, snapshot.id))
        self._count_on([batch for batch, _ in written])
        super().check_can_continue(position, known)

    def _count_on(self, batches: Sequence[int]) -> None:
        """Let the newest snapshot name the newest of ``batches``: Iceberg looks only at that snapshot. ``batches`` are those of the query's
        snapshots, the newest snapshot first.
        """
        if batches and batches[0] < max(batches):
            self._table.mark(self.query_id, max(batches))

    def _remembers_since(self) -> float | None:
        """Return when the oldest snapshot was made that has not expired, in seconds since 1970; None if none has expired."""
        *_, oldest = (None, *self._table.snapshots())
        return oldest.at_ms / 1000 if oldest and oldest.before is not None else None

    def newest_file(self, batch: int) -> str | None:
        """Return the snapshot that ``batch`` made; None if the table does not have it any more."""
        made = (snapshot.id for written, snapshot in self._table.written(self.query_id) if written == batch)
        number = next(made, None)
        return None if number is None else iceberg_snapshot(number)

    def mark_batches_written(self, up_to: int, in_flight: InFlight | None = None) -> None:
        # Nothing is in flight: ``after`` accepts no query that writes to Iceberg
        if self.newest_batch() < up_to:
            self._table.mark(self.query_id, up_to)
            self._count_on(self._batches())  # an older driver may have written its batch just before

    # -- going back --------------------------------------------------------------------------------------------------

    def plan_rewind(self, saved: QueryDetail, *, allowed: bool) -> GoneBack:
        """Return where the query goes back to. Only the author can take rows out of the table, so the loss of rows is never ``allowed``."""
        found = self.newest_batch()
        if found == NOTHING and self.path == saved.path and self._remembers_since() is not None:
            raise SinkMoved(
                f"query '{self.uid}' is to go back to batch {saved.batch}, and the snapshots of its batches have expired in its table"
                f" {self.path}. So nobody can tell what it holds. The query was not started."
                f" `{wording.restore(None, 'latest')}` lets it continue",
                checkpoint=saved.batch,
            )
        if found < saved.batch if self.path == saved.path else not self.is_empty():
            raise self.lacks_batches(saved, found)
        if self._is_ahead(saved.batch, saved.newest_file):
            raise self.is_ahead_of(saved, found)
        newest = saved.newest_file if self.path == saved.path else None
        return GoneBack(batch=saved.batch, sink=self.path, newest_file=newest)

    def _is_ahead(self, batch: int, newest_file: str | None) -> bool:
        """Return whether the table holds, or may hold, rows that the query has written after ``batch``, whose snapshot ``newest_file`` names.

        It does not if its author has rolled it back. It may hold such rows if a snapshot has expired after that one.
        """
        base, oldest = iceberg_number(newest_file), None
        for snapshot in self._table.snapshots():
            if snapshot.id == base:
                return False
            if snapshot.of(self.query_id, after=batch) and snapshot.changes_rows:
                return True
            oldest = snapshot
        return oldest is not None and oldest.before is not None

    def rewind(self, way: WayBack) -> None:
        """Let the table count the batches up to ``way.number``.

        A first marker keeps older drivers out. The second one says that the table was compared after the first, so another attempt need not
        compare it again.
        """
        gone_back, newest = way.gone_back, self.newest_batch()
        if gone_back.sink != self.path or newest >= way.number:
            return
        if newest < way.number - 1:
            self._table.mark(self.query_id, way.number - 1)
        if self._is_ahead(gone_back.batch, gone_back.newest_file):
            raise self.has_got_rows(gone_back, "another table")
        self._table.mark(self.query_id, way.number)
