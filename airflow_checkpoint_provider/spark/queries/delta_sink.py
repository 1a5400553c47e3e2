"""A Delta table as the sink of a query. Runs in the Spark driver.

Delta takes each batch of a query once. It counts batches by the id of the query, so other queries and people may write to the same
table. That is also why this package takes no rows out of it: it would take out theirs, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from airflow_checkpoint_provider.errors import SinkMoved
from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.events import GoneBack
from airflow_checkpoint_provider.protocol.metadata import QueryDetail, delta_commit, delta_version
from airflow_checkpoint_provider.spark.queries.delta_table import DeltaTable
from airflow_checkpoint_provider.spark.queries.links import InFlight
from airflow_checkpoint_provider.spark.queries.sink import CountingSink
from airflow_checkpoint_provider.spark.queries.writer import Target, empty_like

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class DeltaSink(CountingSink):
    """The Delta table to which a query writes."""

    def __init__(self, spark: SparkSession, uid: str, target: Target, writer: DataStreamWriter) -> None:
        super().__init__(uid, target)
        self.table, self._writer = DeltaTable(spark, target.path), writer

    @property
    def path(self) -> str:
        return self.table.folder

    def newest_batch(self) -> int:
        return self.table.newest_batch(self.query_id)

    def is_empty(self) -> bool:
        return not self.table.files()

    def newest_file(self, batch: int) -> str | None:
        """Return the commit that wrote ``batch``; None if the table's log does not have it any more."""
        version = self.table.version_of(self.query_id, batch)
        return None if version is None else delta_commit(version)

    def fill_up(self, behind: int, in_flight: InFlight | None = None) -> None:
        if self.newest_batch() < behind:
            if in_flight:
                in_flight.refuse_to_bring(self.path)
            self._mark(behind)

    def _mark(self, batch: int) -> None:
        self.table.mark(self.query_id, batch, empty_like(self._writer))

    # -- going back --------------------------------------------------------------------------------------------------

    def look_back(self, saved: QueryDetail, *, allowed: bool) -> GoneBack:
        """Return where the query goes back to. What the table has got since, only its author can take out, so that is never ``allowed``."""
        found = self.newest_batch()
        if self.path != saved.path:
            if not self.is_empty():
                raise self.lacks_batches(saved, found)
            return GoneBack(batch=saved.batch, sink=self.path)
        if found < saved.batch:
            raise self.lacks_batches(saved, found)
        if found > saved.batch and self._is_ahead(saved.newest_file):
            why = wording.sink_is_ahead(self.uid, self.path, saved)
            raise SinkMoved(f"{why}. The query was not started", sink=found, checkpoint=saved.batch)
        return GoneBack(batch=saved.batch, sink=self.path, newest_file=saved.newest_file)

    def _is_ahead(self, newest_file: str | None) -> bool:
        """Return whether the table holds, or may hold, rows that the query has written behind a commit; any rows if that is not known.

        It does not if the query has written none since, or if the author has restored the table to that commit behind them. What others
        write after that does not matter.
        """
        base = delta_version(newest_file)
        if base is None:
            return not self.is_empty()
        since = list(self.table.commits(base + 1))  # the newest first
        own = next((at for at, commit in enumerate(since) if commit.files and self.query_id in commit.batches), None)
        if own is None and len(since) == self.table.version - base:
            return False
        restores = (commit.version for commit in since[:own] if commit.restores)
        try:
            return not any(self.table.files(version) == self.table.files(base) for version in restores)
        except AnalysisException:  # Delta has deleted that version
            return True

    def go_back(self, gone_back: GoneBack, batch: int) -> None:
        """Let the table count the batches up to ``batch``. A first mark keeps older drivers out. The second one says that the table was
        looked at behind the first, so another attempt need not look again, when others may have written to the table.
        """
        if gone_back.sink != self.path or self.newest_batch() >= batch:
            return
        self._mark(batch - 1)
        if self._is_ahead(gone_back.newest_file):
            raise SinkMoved(
                f"query '{self.uid}' goes back to batch {gone_back.batch}, and its table {self.path} has got rows of it meanwhile. The query"
                f" was not started. Restore the table to version {delta_version(gone_back.newest_file)}, then start the job again",
                checkpoint=gone_back.batch,
            )
        self._mark(batch)
