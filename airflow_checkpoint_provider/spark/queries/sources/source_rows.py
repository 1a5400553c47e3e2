"""All sources of a query: whether they still have the rows that it reads next. Runs in the Spark driver.

They are asked before the query starts, and before its sink changes. If rows are gone, an error names them, and the query is not started. It
is started if its author has set the option with which Spark leaves such rows out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.errors import SourceMoved
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.queries.sources.delta_sources import DeltaSources
from airflow_checkpoint_provider.spark.queries.sources.file_sources import FileSources
from airflow_checkpoint_provider.spark.queries.sources.iceberg_sources import IcebergSources
from airflow_checkpoint_provider.spark.queries.sources.kafka import KafkaSources
from airflow_checkpoint_provider.spark.queries.sources.reading import Loss, Reading
from airflow_checkpoint_provider.spark.queries.sources.sources import FILES, leaves
from airflow_checkpoint_provider.text import source_messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ASKED = (FILES, "kafka", "delta", "iceberg")


class SourceRows:
    """The sources of the query ``uid``. ``written`` are the paths to which other queries of the job write their
    rows again."""

    def __init__(
        self, spark: SparkSession, uid: str, writer: DataStreamWriter, written: Collection[str | None] = ()
    ) -> None:
        self._uid, read = uid, leaves(writer)
        self._kafka = KafkaSources(spark, uid, read)
        self._files = FileSources(spark, uid, read, written)
        self._delta = DeltaSources(spark, uid, read, written)
        self._iceberg = IcebergSources(spark, uid, read)
        self._unknown = [leaf.format for leaf in read if leaf.format not in ASKED]
        self._told = set[str]()
        self.follow: Callable[[Callable[[], bool], Heart], None] = self._kafka.follow

    def check_can_continue(self, reading: Reading) -> None:
        """Make sure that the sources have all rows that the query reads next.

        Raises ``SourceMoved`` if some are gone, unless the source has the option by which Spark leaves them out,
        ``SourceUnavailable``, and ``WrongUse`` if sources have changed places.
        """
        for loss in self.losses(reading):
            told = loss.since(reading.batch)
            if not loss.allowed:
                raise SourceMoved(
                    f"query '{self._uid}': {told}. The query was not started.{loss.remedy}",
                    checkpoint=reading.batch,
                    missing=loss.missing,
                )
            self._say(source_messages.left_out(self._uid, told))
        for path, newest in self._files.moved:
            self._say(source_messages.moved(self._uid, path, newest))
        for line in self.notes(reading):
            self._say(line)

    def losses(self, reading: Reading) -> Iterator[Loss]:
        """Yield what the sources lack. Raises ``SourceUnavailable``, and ``Damaged`` for a location that nobody can read."""
        for sources in (self._kafka, self._files, self._delta, self._iceberg):
            yield from sources.losses(reading)

    def notes(self, reading: Reading) -> Iterator[str]:
        """Yield lines about the last call of ``losses``: the files that were replaced, and the sources that could not be asked."""
        if self._files.replaced:
            yield source_messages.replaced(self._uid, self._files.replaced)
        unknown = [*(self._unknown if reading.again else ()), *self._files.not_asked, *self._delta.not_asked]
        if unknown:
            yield source_messages.not_asked(self._uid, list(dict.fromkeys(unknown)))

    def _say(self, line: str) -> None:
        """Print a line once: a query that is taken over asks its sources twice."""
        if line not in self._told:
            self._told.add(line)
            say(line)
