"""A query from files to files. Runs in the Spark driver.

``stream.py OUT`` reads JSON rows below ``OUT-in``, or below ``STREAM_IN``, and writes each batch's rows to ``OUT`` as Parquet. It
ends by itself when all files are read, but for ``STREAM_FOREVER``. With ``STREAM_STATE``, each key is written once. A batch stands
still while the file ``STREAM_HOLD`` exists; the name of a file beside it ends with the id of the query's run. If it is in the file,
the batch fails. With ``STREAM_COPY``, another query reads what the first one writes, and writes it to ``OUT-copy``. With
``STREAM_BLIND``, the driver does not notice that it was replaced. ``STREAM_SINK`` names a function of ``SINKS``, by which batches are
written instead; some of them stand still behind the rows while the file ``STREAM_WRITTEN`` exists. With ``STREAM_PLAIN``, the query
runs without this package in that location, and with ``STREAM_ADOPT`` it is taken over from there.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming.readwriter import DataStreamWriter

from airflow_checkpoint_provider.checkpoint import CheckpointConfig
from airflow_checkpoint_provider.spark import CheckpointedJob, attempt, batch_sink

SCHEMA = "id long, key string"
FILES_A_BATCH = "2"


def source(spark: SparkSession, out: str) -> DataFrame:
    folder = os.environ.get("STREAM_IN", f"{out}-in")
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_A_BATCH).json(folder)
    if hold := os.environ.get("STREAM_HOLD"):
        rows = rows.withColumn("key", F.udf(held(hold), "string")("key"))
    return rows.dropDuplicates(["key"]) if os.environ.get("STREAM_STATE") else rows


def plain(out: str, location: str) -> None:
    """Run the query without this package."""
    spark = SparkSession.builder.getOrCreate()
    query = to_files(source(spark, out), out).option("checkpointLocation", location).start()
    print("STARTED", flush=True)
    query.awaitTermination()


def main(job: CheckpointedJob, out: str) -> None:
    rows = source(job.spark, out)
    query = job.start_query("rows", to_sink(job, rows, out), adopt=os.environ.get("STREAM_ADOPT"))
    if os.environ.get("STREAM_COPY"):
        job.start_query("copy", to_files(job.spark.readStream.schema(SCHEMA).parquet(out), f"{out}-copy"))
    print("STARTED", flush=True)
    query.awaitTermination()
    progress, seen = query.lastProgress, job.spark.read.parquet(out).count()
    result = {"attempt": job.attempt, "batch": progress.batchId if progress else None, "rows": seen}
    print("RESULT", json.dumps(result), flush=True)


def to_sink(job: CheckpointedJob, rows: DataFrame, out: str) -> DataStreamWriter:
    name = os.environ.get("STREAM_SINK")
    return triggered(rows.writeStream.foreachBatch(SINKS[name](job, out))) if name else to_files(rows, out)


def to_files(rows: DataFrame, folder: str) -> DataStreamWriter:
    return triggered(rows.writeStream.format("parquet").option("path", folder))


def triggered(writer: DataStreamWriter) -> DataStreamWriter:
    forever = bool(os.environ.get("STREAM_FOREVER"))
    return writer.trigger(processingTime="0 seconds") if forever else writer.trigger(availableNow=True)


Batch = Callable[[DataFrame, int], None]


def two_sinks(_: CheckpointedJob, out: str) -> Batch:
    """Return a function that writes all rows to ``OUT``, and those of the third file and later ones to ``OUT-late``, if there are any."""
    every, late = batch_sink(out), batch_sink(f"{out}-late")

    def write(frame: DataFrame, batch: int) -> None:
        rows = frame.where("id >= 60")
        if not rows.isEmpty():
            late(rows, batch)
        every(frame, batch)  # last, so that whoever sees these rows may hold the next batch

    return write


def stands_still(_: CheckpointedJob, out: str) -> Batch:
    """Return a function that writes all rows to ``OUT``, and then stands still in a job of Spark, which a stop breaks off."""
    write, hold = batch_sink(out), F.udf(held(os.environ["STREAM_WRITTEN"]), "string")

    def write_and_compute(frame: DataFrame, batch: int) -> None:
        write(frame, batch)
        frame.sparkSession.range(1).select(hold(F.lit(""))).collect()

    return write_and_compute


def waits(_: CheckpointedJob, out: str) -> Batch:
    """Return a function that writes all rows to ``OUT``, and then waits in Python, for which a stop waits, too."""
    write, hold = batch_sink(out), held(os.environ["STREAM_WRITTEN"])

    def write_and_wait(frame: DataFrame, batch: int) -> None:
        write(frame, batch)
        hold("")

    return write_and_wait


def sets_a_value(job: CheckpointedJob, _: str) -> Batch:
    newest = job.value("newest", -1)
    return lambda frame, batch: newest.set(batch)


SINKS: dict[str, Callable[[CheckpointedJob, str], Batch]] = {
    "batch_sink": lambda job, out: batch_sink(out),
    "two sinks": two_sinks,
    "stands still": stands_still,
    "waits": waits,
    "sets a value": sets_a_value,
}


def held(file: str) -> Callable[[str], str]:
    """Return a function that returns its argument when ``file`` is gone."""

    def wait(key: str) -> str:
        context = TaskContext.get()
        run = str(context and context.getLocalProperty("spark.jobGroup.id"))
        with contextlib.suppress(FileNotFoundError):
            while run not in Path(file).read_text():
                Path(f"{file}.{run}").touch()
                time.sleep(0.05)
            raise RuntimeError("this batch shall fail")
        return key

    return wait


if __name__ == "__main__":
    if location := os.environ.get("STREAM_PLAIN"):
        plain(sys.argv[1], location)
        sys.exit()
    if os.environ.get("STREAM_BLIND"):
        attempt.POLL = 600.0
    config = CheckpointConfig(interval=os.environ.get("STREAM_INTERVAL", "10 min"))
    root, restore = sys.argv[2] if len(sys.argv) > 2 else None, os.environ.get("STREAM_RESTORE", "latest")
    with CheckpointedJob(checkpointing=config, root=root, restore=restore) as running:
        main(running, sys.argv[1])
    running.spark.stop()
