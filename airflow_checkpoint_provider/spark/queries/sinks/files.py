"""A file sink of a query: its log says which batches it has, and which files they wrote. Runs in the Spark driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import dropwhile
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.errors import Damaged, SinkMoved
from airflow_checkpoint_provider.file_sink import rewinding
from airflow_checkpoint_provider.file_sink.log import SinkFile
from airflow_checkpoint_provider.file_sink.rewinding import Manifest
from airflow_checkpoint_provider.location.copying import copy_of
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.events import GoneBack
from airflow_checkpoint_provider.protocol.file_records import File
from airflow_checkpoint_provider.protocol.query_details import QueryDetail
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.queries.sinks.base import CountingSink, WayBack
from airflow_checkpoint_provider.spark.queries.sinks.links import InFlight, bring
from airflow_checkpoint_provider.spark.queries.sinks.sink_log import SinkLog
from airflow_checkpoint_provider.spark.queries.writer import Target
from airflow_checkpoint_provider.spark.s3a import spark_uri
from airflow_checkpoint_provider.spark.state.snapshot import Check
from airflow_checkpoint_provider.text import query_messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class FileStreamSink(CountingSink):
    """A folder into which Spark writes files, and the log of these files."""

    def __init__(self, spark: SparkSession, uid: str, target: Target) -> None:
        super().__init__(uid, target)
        self.log = SinkLog(spark, target.path)

    @property
    def path(self) -> str:
        return self.log.folder

    def newest_batch(self) -> int:
        """Return the newest batch that it has. Raises ``Damaged`` if the log has a gap before, as in a folder that was emptied while the
        query ran: no reader can read it, and Spark cannot compact it.
        """
        try:
            return self.log.newest_batch(whole=True)
        except Damaged as error:
            raise Damaged(
                f"query '{self.uid}': {error.message}. No reader of the sink can read it, and the query would fail when it compacts the log."
                " Nothing was started. Put back what was deleted, or write to an empty path"
            ) from error

    def is_empty(self) -> bool:
        return not self.log.files()

    def delete_temporary_entries(self) -> None:
        """Delete temporary entries of its log."""
        self.log.delete_temporary_entries()

    def newest_file(self, batch: int) -> str | None:
        return self.log.newest_file(batch)

    def mark_batches_written(self, up_to: int, in_flight: InFlight | None = None) -> None:
        """Put entries into its log for the batches up to ``up_to``. Spark reads and compacts only a log without gaps."""
        if self.log.newest_batch() < up_to:
            copies = in_flight.copies(self.path) if in_flight else {}
            self.log.mark_batches_written(up_to, bring(self.log, copies))

    # -- what its batches wrote --------------------------------------------------------------------------------------

    def named(self, files: Iterable[SinkFile]) -> tuple[File, ...]:
        """Return files of the sink by their paths below it. Raises ``Damaged`` for a path outside of it."""
        return tuple(File(name=self.log.below(file), bytes=file.bytes, rows=0) for file in files)

    def copy_out(self, files: Iterable[File], target: Location, check: Check) -> bool:
        for file in files:
            check()
            self.log.copy_out(file.name, spark_uri(target.store, target.key_of(copy_of(file.name))))
        return True

    # -- going back --------------------------------------------------------------------------------------------------

    def next_number(self, begun: int) -> int:
        """Return the number of a batch from which a query may go on after it went back: one that the log compacts."""
        return self.log.next_number(begun)

    def plan_rewind(self, saved: QueryDetail, *, allowed: bool) -> GoneBack:
        path, found, files = self.path, self.newest_batch(), self.log.files()
        begins = not files and path != saved.path
        kept = 0 if begins else self._kept(files, saved.batch, saved.newest_file)
        if kept is None or (files and path != saved.path):
            advice = f"`{wording.rewound(path)}` lists what was taken out of it, and can put it back. "
            raise self.lacks_batches(saved, found, advice)
        if kept < len(files) and not allowed:
            raise self.is_ahead_of(saved, found)
        return GoneBack(batch=saved.batch, sink=path, newest_file=files[kept - 1].path if kept else None)

    def _kept(self, files: Sequence[SinkFile], batch: int, newest: str | None) -> int | None:
        """Return how many files of the sink its batches up to ``batch`` have written; None if it lacks some of them.

        The sink's own log decides. ``newest``, a file name from the checkpoint, counts only if Spark has deleted the log's entries of that
        time.
        """
        then, named = self.log.files_up_to(batch), [file.path for file in files]
        if then is not None:
            known = set(named)  # with Spark's option "retention", a compaction drops the oldest
            paths = [file.path for file in dropwhile(lambda file: file.path not in known, then)]
            return len(paths) if named[: len(paths)] == paths and (paths or not then) else None
        if not named and newest is None:
            return 0
        return next((number for number in range(len(named), 0, -1) if named[number - 1] == newest), None)

    def rewind(self, way: WayBack) -> None:
        """Move the files that the sink shall not keep into a folder of their own, as ``file_sink.rewinding`` describes."""
        if way.gone_back.sink != self.path:
            return
        name, files = rewinding.aside_name(way.location), self.log.files()
        # Read after the files, so that ``files`` holds none of a later batch
        if self.log.newest_batch() < way.number:
            self._cut(way, name, files)
        aside = rewinding.found_aside(self.log.files_of, name)
        if aside:
            rewinding.move_aside(self.log, aside)
            taken = aside.manifest
            say(query_messages.rows_moved_aside(self.uid, self.path, len(taken.files), taken.bytes, aside.name))

    def _cut(self, way: WayBack, name: str, files: Sequence[SinkFile]) -> None:
        """Let the log end with ``way.number``, and name only the files that stay. The manifest names the others, if there are any."""
        kept = self._kept(files, way.gone_back.batch, way.gone_back.newest_file)
        if kept is None:
            raise SinkMoved(
                f"query '{self.uid}' goes back, and its sink {self.path} lacks files that it had at batch {way.gone_back.batch};"
                " somebody changes it. Write to an empty path",
                checkpoint=way.gone_back.batch,
            )
        if kept == len(files):
            self.log.keep(files, way.number)
            return
        manifest = Manifest(
            job=way.job,
            item=way.item,
            uid=self.uid,
            batch=way.gone_back.batch,
            number=way.number,
            at=utc_now(),
            by=f"the driver of {way.job}",
            entries=tuple(self.log.visible()),
            files=rewinding.listed(self.log, files[kept:]),
        )
        rewinding.cut(self.log, rewinding.decide(self.log, name, manifest), files[:kept])
