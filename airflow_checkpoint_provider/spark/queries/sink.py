"""The sink of a query: whether the query may go on there, or go back. Runs in the Spark driver.

A file sink skips each batch that it has, without a word. So a query that began anew in front of an old sink would lose rows, and one
that went back would not write again what it had written since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.coordinator.query_location import NOTHING, Location, Position
from airflow_checkpoint_provider.errors import NotSupportedYet, SinkMoved
from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.events import GoneBack
from airflow_checkpoint_provider.protocol.metadata import FOREACH_BATCH, File, QueryDetail
from airflow_checkpoint_provider.spark.log import say
from airflow_checkpoint_provider.spark.queries.links import InFlight, bring, save
from airflow_checkpoint_provider.spark.queries.sink_log import SinkFile, SinkLog
from airflow_checkpoint_provider.spark.queries.writer import Target
from airflow_checkpoint_provider.spark.state.snapshot import Check
from airflow_checkpoint_provider.text.units import plural

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERVAL = 10  # of batches, where no sink says how often its log is compacted


class Sink:
    """The sink of the query ``uid``. Of one that does not say which batches it has, nothing is known."""

    def __init__(self, spark: SparkSession, uid: str, target: Target) -> None:
        self._uid, self.target = uid, target
        self._log = SinkLog(spark, target.path) if target.exact else None

    @property
    def path(self) -> str | None:
        """Return the path of a file sink, in one spelling; None for another kind."""
        return self._log.folder if self._log else None

    # -- going on ----------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Delete temporary entries of its log."""
        if self._log:
            self._log.sweep()

    def newest_file(self, batch: int) -> str | None:
        """Return the newest file that the sink had when ``batch`` was written. Raises ``Damaged``."""
        return self._log.newest_file(batch) if self._log else None

    def fill_up(self, behind: int, in_flight: InFlight | None = None) -> None:
        """Put entries into its log for the batches up to ``behind``, which an empty sink does not have. Of what they wrote, they hold only
        what is in flight. Raises ``SinkMoved`` if it cannot be brought there.
        """
        if self._log and self._log.newest_batch() < behind:
            copies = in_flight.copies(self._log.folder) if in_flight else {}
            self._log.fill_up(behind, bring(self._log, copies))

    # -- what its batches wrote --------------------------------------------------------------------------------------

    def written(self, since: int, behind: int) -> list[tuple[int, SinkFile]]:
        """Return the files that entries of its log ``behind`` that one name first, and the batches that wrote them. Batches up to ``since``
        may count as one. Raises ``Damaged``.
        """
        return self._log.written(since, behind) if self._log else []

    def named(self, files: Iterable[SinkFile]) -> tuple[File, ...]:
        """Return files of the sink by their paths below it. Raises ``Damaged`` for a path outside of it."""
        return tuple(File(name=self._log.below(file), bytes=file.bytes, rows=0) for file in files) if self._log else ()

    def save(self, files: Iterable[File], target: Location, check: Check) -> None:
        """Copy files of the sink into a file set. Calls ``check`` before each."""
        if self._log:
            save(self._log, files, target, check)

    def meet(self, position: Position, known: Collection[str | None]) -> None:
        """Make sure that the query can go on at ``position``: the sink has the batches up to there, or is empty.

        It may have the begun batch, too. ``known`` are the paths to which the query has written: there, the sink must not be empty.
        Raises ``SinkMoved``.
        """
        if not self._log:
            return
        found, committed = self._log.newest_batch(), position.committed
        if committed <= found <= position.begun or found == committed:
            return
        if found < committed and self.path not in known and not self._log.files():
            say(f"query '{self._uid}' goes on behind batch {committed} and writes to {self.path}, which is empty")
            return
        begins = "begins anew" if committed == NOTHING else f"would go on behind batch {committed}"
        effect = (
            f"skip {found - committed} of the new ones" if found > committed else f"lack {committed - found} of them"
        )
        raise SinkMoved(
            f"query '{self._uid}' {begins}, but its sink {self.path} has {_batches(found)}: it would {effect}. Nothing was started."
            " Write to another path, or restore the checkpoint with which these batches were written",
            sink=found,
            checkpoint=committed,
        )

    # -- going back --------------------------------------------------------------------------------------------------

    def next_number(self, begun: int) -> int:
        """Return the number of a batch from which a query may go on after it went back.

        It is one that the log compacts, and no driver has begun it or the one that is compacted before it.
        """
        interval = self._log.interval if self._log else INTERVAL
        newest = max(begun, self._log.newest_batch() if self._log else NOTHING)
        return ((newest + 1) // interval + 2) * interval - 1

    def look_back(self, saved: QueryDetail, *, allowed: bool) -> GoneBack:
        """Return what is left of the sink when the query goes back to ``saved``. Nothing is changed.

        Raises ``SinkMoved`` if the sink would lose rows and that is not ``allowed``, or lacks rows that it had.
        """
        if not self._log:
            self._refuse_function()
            return GoneBack(batch=saved.batch)
        path, found, files = self._log.folder, self._log.newest_batch(), self._log.files()
        begins = not files and path != saved.path
        newest = None if begins else saved.newest_file
        beyond = self._beyond(files, newest)
        if beyond is None or (files and path != saved.path):
            raise SinkMoved(
                f"query '{self._uid}' is to go back to batch {saved.batch}, but its sink {path} lacks files that it had then. The"
                " query was not started. Write to an empty path",
                sink=found,
                checkpoint=saved.batch,
            )
        if beyond and not allowed:
            why = wording.sink_is_ahead(self._uid, path, saved.batch)
            raise SinkMoved(f"{why}. The query was not started", sink=found, checkpoint=saved.batch)
        return GoneBack(batch=saved.batch, sink=path, newest_file=newest)

    def _refuse_function(self) -> None:
        """Raise ``NotSupportedYet`` for a function of ``foreachBatch``; say what any other sink without a log gets."""
        if self.target.format == FOREACH_BATCH:
            raise NotSupportedYet(wording.cannot_go_back(self._uid, wording.OWN_FUNCTION))
        say(f"query '{self._uid}' goes back, and its sink, {self.target.format}, gets the rows since then again")

    def _beyond(self, files: Sequence[SinkFile], newest: str | None) -> Sequence[SinkFile] | None:
        """Return the files behind ``newest``; None if that is not there."""
        if newest is None:
            return files
        places = [number for number, file in enumerate(files) if file.path == newest]
        return files[places[-1] + 1 :] if places else None

    def go_back(self, gone_back: GoneBack, batch: int) -> None:
        """Take away what the sink shall not keep, and let its log end with ``batch``. May be repeated. Raises ``SinkMoved``.

        The journal has decided it, so an attempt that was replaced meanwhile deletes nothing else.
        """
        if not self._log or gone_back.sink != self.path:
            return
        files = self._log.files()
        # Asked behind the files: those of later batches are not among them
        if self._log.newest_batch() >= batch:
            return
        beyond = self._beyond(files, gone_back.newest_file)
        if beyond is None:
            raise SinkMoved(
                f"query '{self._uid}' goes back, and its sink {self.path} does not name {gone_back.newest_file} any more;"
                " somebody changes it. Write to an empty path",
                checkpoint=gone_back.batch,
            )
        self._log.delete(beyond)
        self._log.keep(files[: len(files) - len(beyond)], batch)
        if beyond:
            say(f"query '{self._uid}' goes back: {plural(len(beyond), 'file')} of its sink {self.path} deleted")


def _batches(newest: int) -> str:
    return "no batches any more" if newest == NOTHING else f"batches up to {newest}"
