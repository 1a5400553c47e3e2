"""A sink for functions of ``foreachBatch`` that takes each batch once: Spark's own file sink. Runs in the Spark driver.

Spark's file sink writes the files of each try under names of their own, and publishes them by one entry of its log,
``_spark_metadata/N``, if batch N has none. A file that no entry names is never read.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.errors import NotSupportedYet, SinkMoved, SinkTaken, WrongUse
from airflow_checkpoint_provider.location.files import NOTHING
from airflow_checkpoint_provider.policies.arguments import checks_arguments
from airflow_checkpoint_provider.protocol.query_details import FILE_SINKS
from airflow_checkpoint_provider.spark.java_classes import java_class, scala_map, scala_none, scala_seq
from airflow_checkpoint_provider.spark.queries.sinks.sink_log import SinkLog
from airflow_checkpoint_provider.spark.queries.writer import Target
from airflow_checkpoint_provider.spark.stages import arguments
from airflow_checkpoint_provider.spark.versions import minor_release

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUN = "spark.jobGroup.id"  # Spark sets another one at each start of a query
QUERY = "sql.streaming.queryId"  # the same at each start


@dataclass(frozen=True)
class _Call:
    """A call of a sink: Spark's id of the query, the id of its run, and the batch."""

    query: str
    run: str = ""
    batch: int = NOTHING


_newest_calls: dict[str, _Call] = {}  # of this process, by folder
_lock = threading.Lock()  # the functions of several queries run in threads of their own


def claim(folder: str, query: str) -> None:
    """Note that the query with Spark's id ``query`` writes to a folder without a ``batch_sink``."""
    with _lock:
        _newest_calls[folder] = _Call(query)


class BatchSink:
    """The folder ``path`` as a sink of batches; made by ``batch_sink``."""

    def __init__(self, target: Target) -> None:
        self.target = target

    @checks_arguments(**arguments.BATCH)
    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write the rows of a batch. If the batch was published before, only compute them: Spark fails a batch that leaves its state
        unwritten.

        Raises ``SinkMoved`` if the sink has later batches, ``SinkTaken`` if another query writes to the folder, and ``WrongUse`` at the
        second call for one batch: its rows would be skipped silently.
        """
        spark = frame.sparkSession
        log = SinkLog(spark, self.target.path)
        newest = log.newest_batch()
        self._refuse_other_calls(spark, log.folder, batch_id, newest)
        if newest > batch_id:
            raise SinkMoved(
                f"{self.target.path} has batches up to {newest}, so it would skip batch {batch_id}. Nothing was written. If this is a"
                " new query on an old path, write to another path. If an older driver woke up, let it end",
                sink=newest,
                checkpoint=batch_id,
            )
        if newest == batch_id:
            frame.write.format("noop").mode("overwrite").save()
            return
        if newest < batch_id - 1:
            log.mark_batches_written(batch_id - 1)
        _spark_sink(spark, self.target, frame).addBatch(batch_id, frame._jdf)

    def _refuse_other_calls(self, spark: SparkSession, folder: str, batch: int, newest: int) -> None:
        """Note this call. Raise an error if the folder has got a batch of another query, or this batch by another call."""
        property_of = spark.sparkContext.getLocalProperty
        call = _Call(property_of(QUERY) or "", property_of(RUN) or "", batch)
        if not (call.query and call.run):  # called by hand
            return
        with _lock:
            before = _newest_calls.get(folder)
            if before == call:
                raise WrongUse(
                    f"{self.target.path} got batch {batch} twice by a batch_sink, and takes a batch once. Union the frames, or use a path for"
                    " each"
                )
            if before and before.query != call.query and (newest != NOTHING or _runs(spark, before.query)):
                raise SinkTaken(
                    f"two queries write to {self.target.path}, one of them by a batch_sink in its function. The folder takes each number of a"
                    f" batch once, so rows of one would be lost. Batch {batch} was not written. Use another path in one of them"
                )
            _newest_calls[folder] = call


@checks_arguments(**arguments.SINK)
def batch_sink(path: str | PathLike[str], format: str = "parquet") -> BatchSink:  # noqa: A002 - Spark's own name
    """Return a sink for ``foreachBatch`` that takes each batch once: ``writer.foreachBatch(batch_sink("/data/out"))``.

    It may also be called inside of a function of your own, with the frame to write and the batch's id. Each path has one sink, and each
    sink is called at most once for a batch. Read the path with Spark: other readers also see the files of failed tries.

    :param format: one of Spark's file formats: parquet, orc, json, csv, text.
    """
    if not path:
        raise WrongUse("a batch_sink needs a path")
    if format not in FILE_SINKS:
        raise NotSupportedYet(f"batch_sink cannot write {format!r}. It knows the formats {', '.join(FILE_SINKS)}")
    return BatchSink(Target(format, os.fspath(path)))


def _runs(spark: SparkSession, query: str) -> bool:
    """Return whether Spark runs a query of this id, in any session."""
    session: Any = spark._jsparkSession
    uuid = java_class(spark, "java.util.UUID").fromString(query)
    return bool(session.sharedState().activeStreamingQueries().containsKey(uuid))


def _spark_sink(spark: Any, target: Target, frame: DataFrame) -> Any:
    """Return Spark's file sink, made as ``writeStream.format(...).start(path)`` makes it: since 4.3 for the columns of its rows."""
    none, no_columns, options = scala_none(spark), scala_seq(spark, []), scala_map(spark, {"path": target.path})
    release = minor_release(spark.version)
    more = () if release in ("4.0", "4.1") else (none,)
    source = java_class(spark, "org.apache.spark.sql.execution.datasources.DataSource")(
        spark._jsparkSession, target.format, no_columns, none, no_columns, none, options, none, *more
    )
    columns = () if release in ("4.0", "4.1", "4.2") else (frame._jdf.schema(),)
    return source.createSink(java_class(spark, "org.apache.spark.sql.streaming.OutputMode").Append(), *columns)
