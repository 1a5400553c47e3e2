"""Find out by Spark itself whether a query could go on from a checkpoint. Runs in the Spark driver.

Spark starts the query on a copy of its files, for one batch that reads nothing and writes nothing. Spark accepts some differences without
an error. They are compared here: the confs in the checkpoint, the folders of file sources, and the sink. Sources are asked for their rows
as at a start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from airflow_checkpoint_provider.coordinator.preflight import begin_again, copy_at, newest_files
from airflow_checkpoint_provider.errors import CheckpointError, SourceUnavailable, StoreError
from airflow_checkpoint_provider.location.files import NOTHING, Location, LocationFiles, Position
from airflow_checkpoint_provider.location.rescaling import PARTITIONS
from airflow_checkpoint_provider.protocol.preflight import QueryFit
from airflow_checkpoint_provider.protocol.query_details import QueryDetail
from airflow_checkpoint_provider.spark.queries.location.rescaling import Rescaling
from airflow_checkpoint_provider.spark.queries.sinks.base import StreamSink
from airflow_checkpoint_provider.spark.queries.sinks.by_format import sink_of
from airflow_checkpoint_provider.spark.queries.sources.edges import upstreams
from airflow_checkpoint_provider.spark.queries.sources.one_writer import refuse_own_rows, refuse_second_writer
from airflow_checkpoint_provider.spark.queries.sources.reading import Reading
from airflow_checkpoint_provider.spark.queries.sources.source_rows import SourceRows
from airflow_checkpoint_provider.spark.queries.sources.sources import Source, path_sources
from airflow_checkpoint_provider.spark.queries.writer import LOCATION, examine
from airflow_checkpoint_provider.spark.s3a import spark_uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_WHY = re.compile(r"terminated with exception: (.*?)(?:\n=== Streaming Query ===|\Z)", re.DOTALL)
_PATTERN = re.compile(r"[*?{\[\]]")  # in the path of a source that reads several folders
_LOCAL = re.compile(r"^file:/*(?=/)")


class Preflight:
    """Finds out whether queries could continue from a checkpoint, whose files were copied into ``folder``."""

    def __init__(self, spark: SparkSession, folder: Location) -> None:
        self._spark, self._folder = spark, folder
        self._sinks: dict[str, StreamSink] = {}  # of the queries that the script has started

    def compare(
        self,
        uid: str,
        writer: DataStreamWriter,
        saved: QueryDetail | None,
        *,
        after: Sequence[str] = (),
        rescale: bool = False,
    ) -> QueryFit:
        """Return the differences; none if the query could continue. ``saved`` is the query in the checkpoint; None if the checkpoint does
        not hold it.
        """
        fit = QueryFit(uid)
        try:
            sink = self._sink(uid, writer, after)
            if saved is None:
                return replace(fit, note="starts from its beginning: the checkpoint does not hold it")
            fit = replace(fit, differences=tuple(_of_sink(sink, saved)))
            if saved.batch == NOTHING:  # no batch was committed, so Spark has nothing to compare
                return fit
            position = Position(saved.begun, saved.batch)
            # First, because ``begin_again`` replaces the offsets of a batch that had begun
            rows = self._of_rows(uid, writer, position)
            fit = replace(rows, differences=(*fit.differences, *rows.differences))
            spark = self._of_location(uid, writer, position, rescale=rescale)
            return replace(fit, differences=(*fit.differences, *spark))
        except CheckpointError as error:
            return _with_error(fit, error)

    def _sink(self, uid: str, writer: DataStreamWriter, after: Sequence[str]) -> StreamSink:
        """Return the sink of a query. Raises what its start would raise, also for the queries that ``after`` names."""
        sink = sink_of(self._spark, uid, examine(self._spark, uid, writer), writer)
        started, self._sinks = self._sinks, {**self._sinks, uid: sink}
        refuse_own_rows(uid, sink, path_sources(self._spark, writer))
        refuse_second_writer(uid, sink, started)
        upstreams(self._spark, uid, writer, after, started)
        return sink

    def _of_rows(self, uid: str, writer: DataStreamWriter, position: Position) -> QueryFit:
        """Return which rows the sources lack. If they do not answer, that is no difference."""
        reading = Reading(copy_at(self._folder, uid), position, position.committed, restored=True)
        try:
            sources = SourceRows(self._spark, uid, writer, {sink.path for sink in self._sinks.values()})
            losses = list(sources.losses(reading))
        except SourceUnavailable as error:
            return _with_error(QueryFit(uid), error)
        notes = (*(loss.since(position.committed) for loss in losses if loss.allowed), *sources.notes(reading))
        return QueryFit(
            uid, tuple(loss.since(position.committed) for loss in losses if not loss.allowed), "; ".join(notes)
        )

    def _of_location(self, uid: str, writer: DataStreamWriter, position: Position, *, rescale: bool) -> Iterator[str]:
        own, batch, rescaling = copy_at(self._folder, uid), position.committed, Rescaling(self._spark, uid)
        if rescale and rescaling.needed(own, position):
            draft, own = own, copy_at(self._folder, uid, "rescaled")
            rescaling.rescale(draft, own, batch)
        yield from self._of_confs(own, position, rescaling)
        begin_again(own, batch)
        try:
            self._run(writer, own)
            yield from self._of_sources(own, path_sources(self._spark, writer))
        except (PySparkException, Py4JJavaError) as error:
            why = _WHY.search(str(error))
            yield " ".join((why[1] if why else str(error)).split())

    def _of_confs(self, own: Location, position: Position, rescaling: Rescaling) -> Iterator[str]:
        """Yield the confs of the state that keep their stored values, although the session has others."""
        for name, stored in sorted(own.offsets(position.committed).confs.items() if LocationFiles(own).stores else ()):
            now = self._spark.conf.get(name, stored)
            if now != stored:
                other = name == PARTITIONS and rescaling.possible(own, position)
                yield f"{name} is {now}, and stays {stored}. Set it so{', or start it with rescale=True' if other else ''}"

    def _run(self, writer: DataStreamWriter, own: Location) -> None:
        """Run the batch that reads nothing. Raises what Spark raises."""
        location = spark_uri(own.store, own.key)
        query = writer.partitionBy().format("noop").option(LOCATION, location).trigger(once=True).start()
        query.awaitTermination()

    def _of_sources(self, own: Location, sources: Sequence[Source]) -> Iterator[str]:
        """Yield the file sources that read another folder. Spark would go on with the files there."""
        folders = {source.folder: _LOCAL.sub("", source.path) for source in sources if not _PATTERN.search(source.path)}
        for number, path in newest_files(own, folders).items():
            if not _LOCAL.sub("", path).startswith(f"{folders[number]}/"):
                yield f"source {number} reads {folders[number]}, and has read {path}"


def _of_sink(sink: StreamSink, saved: QueryDetail) -> Iterator[str]:
    path = sink.path or ""
    if sink.target.format != saved.sink:
        yield f"it writes to {sink.target.format}, and has written to {saved.sink}"
    elif path != saved.path:
        yield f"it writes to {path}, and has written to {saved.path}"


def _with_error(fit: QueryFit, error: CheckpointError) -> QueryFit:
    """Return the fit with an error. If another try may help, or the store fails, the answer is unknown, and that is no difference."""
    if error.permanent and not isinstance(error, StoreError):
        return replace(fit, differences=(*fit.differences, error.message))
    return fit if fit.unknown else replace(fit, unknown=f"{error.message} [{error.code}]")
