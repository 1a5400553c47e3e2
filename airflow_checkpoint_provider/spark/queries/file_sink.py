"""A file sink of a query: its log says which batches it has, and which files they wrote. Runs in the Spark driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.coordinator.query_location import Location
from airflow_checkpoint_provider.errors import SinkMoved
from airflow_checkpoint_provider.protocol.events import GoneBack
from airflow_checkpoint_provider.protocol.metadata import File, QueryDetail
from airflow_checkpoint_provider.spark.log import say
from airflow_checkpoint_provider.spark.queries.links import InFlight, bring, save
from airflow_checkpoint_provider.spark.queries.sink import CountingSink
from airflow_checkpoint_provider.spark.queries.sink_log import SinkFile, SinkLog
from airflow_checkpoint_provider.spark.queries.writer import Target
from airflow_checkpoint_provider.spark.state.snapshot import Check
from airflow_checkpoint_provider.text.units import plural

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class FileSink(CountingSink):
    """A folder into which Spark writes files, and the log of these files."""

    def __init__(self, spark: SparkSession, uid: str, target: Target) -> None:
        super().__init__(uid, target)
        self._log = SinkLog(spark, target.path)

    @property
    def path(self) -> str:
        return self._log.folder

    def newest_batch(self) -> int:
        return self._log.newest_batch()

    def is_empty(self) -> bool:
        return not self._log.files()

    def sweep(self) -> None:
        """Delete temporary entries of its log."""
        self._log.sweep()

    def newest_file(self, batch: int) -> str | None:
        return self._log.newest_file(batch)

    def fill_up(self, up_to: int, in_flight: InFlight | None = None) -> None:
        """Put entries into its log for the batches up to ``up_to``. Spark reads and compacts only a log without gaps."""
        if self._log.newest_batch() < up_to:
            copies = in_flight.copies(self.path) if in_flight else {}
            self._log.fill_up(up_to, bring(self._log, copies))

    # -- what its batches wrote --------------------------------------------------------------------------------------

    def written(self, since: int, after: int) -> list[tuple[int, SinkFile]]:
        """Return the files that the entries of its log after ``after`` are the first to name, each with the batch that wrote it. Batches up
        to ``since`` may be reported as one. Raises ``Damaged``.
        """
        return self._log.written(since, after)

    def named(self, files: Iterable[SinkFile]) -> tuple[File, ...]:
        """Return files of the sink by their paths below it. Raises ``Damaged`` for a path outside of it."""
        return tuple(File(name=self._log.below(file), bytes=file.bytes, rows=0) for file in files)

    def save(self, files: Iterable[File], target: Location, check: Check) -> bool:
        save(self._log, files, target, check)
        return True

    # -- going back --------------------------------------------------------------------------------------------------

    @property
    def interval(self) -> int:
        return self._log.interval

    def look_back(self, saved: QueryDetail, *, allowed: bool) -> GoneBack:
        path, found, files = self.path, self._log.newest_batch(), self._log.files()
        begins = not files and path != saved.path
        newest = None if begins else saved.newest_file
        beyond = self._beyond(files, newest)
        if beyond is None or (files and path != saved.path):
            raise self.lacks_batches(saved, found)
        if beyond and not allowed:
            raise self.is_ahead_of(saved, found)
        return GoneBack(batch=saved.batch, sink=path, newest_file=newest)

    def _beyond(self, files: Sequence[SinkFile], newest: str | None) -> Sequence[SinkFile] | None:
        """Return the files behind ``newest``; None if that is not there."""
        if newest is None:
            return files
        places = [number for number, file in enumerate(files) if file.path == newest]
        return files[places[-1] + 1 :] if places else None

    def go_back(self, gone_back: GoneBack, batch: int) -> None:
        if gone_back.sink != self.path:
            return
        files = self._log.files()
        # Asked behind the files: those of later batches are not among them
        if self._log.newest_batch() >= batch:
            return
        beyond = self._beyond(files, gone_back.newest_file)
        if beyond is None:
            raise SinkMoved(
                f"query '{self.uid}' goes back, and its sink {self.path} does not name {gone_back.newest_file} any more;"
                " somebody changes it. Write to an empty path",
                checkpoint=gone_back.batch,
            )
        self._log.delete(beyond)
        self._log.keep(files[: len(files) - len(beyond)], batch)
        if beyond:
            say(f"query '{self.uid}' goes back: {plural(len(beyond), 'file')} of its sink {self.path} deleted")
