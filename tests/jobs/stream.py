"""A query from files to files. Runs in the Spark driver.

``stream.py OUT`` reads JSON rows below ``OUT-in``, or below ``STREAM_IN``, and writes each batch's rows to ``OUT`` as Parquet. It
ends by itself when all files are read, but for ``STREAM_FOREVER``. With ``STREAM_STATE``, each key is written once. A batch stands
still while the file ``STREAM_HOLD`` exists; the name of a file beside it ends with the id of the query's run. If it is in the file,
the batch fails. With ``STREAM_COPY``, another query reads what the first one writes, and writes it to ``OUT-copy``. With
``STREAM_BLIND``, the driver does not notice that it was replaced. ``STREAM_SINK`` names a function of ``SINKS``, by which batches are
written instead; some of them stand still after the rows while the file ``STREAM_WRITTEN`` exists. With ``STREAM_PLAIN``, the query
runs without this package in that location, and with ``STREAM_ADOPT`` it is taken over from there. With ``STREAM_KAFKA``, the address
of a broker, the rows come from its topic ``STREAM_TOPIC``; the sink ``kafka`` writes them to its topic ``STREAM_TOPIC-out``. The sink
``delta`` makes ``OUT`` a Delta table, and ``iceberg`` writes to the Iceberg table ``STREAM_TABLE``, which it makes. With
``STREAM_HOLD_PARTITION``, the file ``STREAM_HOLD`` holds one task of a batch. With ``STREAM_RESCALE``, its state
gets the number of partitions that the confs say.
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
from airflow_checkpoint_provider.spark import CheckpointedJob, batch_sink
from airflow_checkpoint_provider.spark.attempt import watch
from airflow_checkpoint_provider.spark.checkpoints.checkpointer import Checkpointer

SCHEMA = "id long, key string"
FILES_A_BATCH = "2"
ROWS_A_BATCH = "60"  # of Kafka: as many as in two files


def source(spark: SparkSession, out: str) -> DataFrame:
    rows = from_kafka(spark, servers) if (servers := os.environ.get("STREAM_KAFKA")) else from_files(spark, out)
    if hold := os.environ.get("STREAM_HOLD"):
        rows = rows.withColumn("key", F.udf(held(hold, os.environ.get("STREAM_HOLD_PARTITION")), "string")("key"))
    return rows.dropDuplicates(["key"]) if os.environ.get("STREAM_STATE") else rows


def from_files(spark: SparkSession, out: str) -> DataFrame:
    folder = os.environ.get("STREAM_IN", f"{out}-in")
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_A_BATCH).json(folder)


def from_kafka(spark: SparkSession, servers: str) -> DataFrame:
    options = {
        "kafka.bootstrap.servers": servers,
        "subscribe": os.environ["STREAM_TOPIC"],
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": ROWS_A_BATCH,
        **json.loads(os.environ.get("STREAM_KAFKA_OPTIONS", "{}")),
    }
    rows = spark.readStream.format("kafka").options(**options).load()
    return rows.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("row")).select("row.*")


def plain(out: str, location: str) -> None:
    """Run the query without this package."""
    spark = SparkSession.builder.getOrCreate()
    query = to_files(source(spark, out), out).option("checkpointLocation", location).start()
    print("STARTED", flush=True)
    query.awaitTermination()


def main(job: CheckpointedJob, out: str) -> None:
    rows = source(job.spark, out)
    rescale = bool(os.environ.get("STREAM_RESCALE"))
    query = job.start_query("rows", to_sink(job, rows, out), adopt=os.environ.get("STREAM_ADOPT"), rescale=rescale)
    if os.environ.get("STREAM_COPY"):
        job.start_query("copy", to_files(job.spark.readStream.schema(SCHEMA).parquet(out), f"{out}-copy"))
    print("STARTED", flush=True)
    query.awaitTermination()
    progress = query.lastProgress
    result = {"attempt": job.attempt, "batch": progress.batchId if progress else None, **seen(job.spark, out)}
    print("RESULT", json.dumps(result), flush=True)


def seen(spark: SparkSession, out: str) -> dict[str, object]:
    """Return what a reader of the sink sees."""
    sink = os.environ.get("STREAM_SINK")
    if sink == "iceberg":
        rows = spark.table(os.environ["STREAM_TABLE"]).collect()
        return {"ids": sorted(row.id for row in rows), "keys": sorted(row.key for row in rows)}
    there = Path(out).is_dir()
    return {"rows": spark.read.format("delta" if sink == "delta" else "parquet").load(out).count() if there else None}


def to_sink(job: CheckpointedJob, rows: DataFrame, out: str) -> DataStreamWriter:
    name = os.environ.get("STREAM_SINK")
    if name == "kafka":
        return to_kafka(rows)
    if name == "iceberg":
        return to_iceberg(rows, os.environ["STREAM_TABLE"])
    if name == "delta":
        return triggered(rows.writeStream.format("delta").option("path", out))
    return triggered(rows.writeStream.foreachBatch(SINKS[name](job, out))) if name else to_files(rows, out)


def to_files(rows: DataFrame, folder: str) -> DataStreamWriter:
    return triggered(rows.writeStream.format("parquet").option("path", folder))


def to_kafka(rows: DataFrame) -> DataStreamWriter:
    lines = rows.select(F.to_json(F.struct("*")).alias("value"))
    writer = lines.writeStream.format("kafka").option("kafka.bootstrap.servers", os.environ["STREAM_KAFKA"])
    return triggered(writer.option("topic", f"{os.environ['STREAM_TOPIC']}-out"))


def to_iceberg(rows: DataFrame, table: str) -> DataStreamWriter:
    spark = rows.sparkSession
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {table.rpartition('.')[0]}")
    spark.sql(f"CREATE TABLE IF NOT EXISTS {table} (id bigint, key string) USING iceberg")
    return triggered(rows.writeStream.format("iceberg").option("path", table))


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


def held(file: str, partition: str | None = None) -> Callable[[str], str]:
    """Return a function that returns its argument when ``file`` is gone; for tasks of another partition at once."""

    def wait(key: str) -> str:
        context = TaskContext.get()
        if partition is not None and context and context.partitionId() != int(partition):
            return key
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
        watch.POLL = 86_400.0
        # Its first look for leftovers may come late, and reads the journal
        Checkpointer.remove_garbage = lambda self: None  # type: ignore[method-assign]
    config = CheckpointConfig(interval=os.environ.get("STREAM_INTERVAL", "1 d"))
    root, restore = sys.argv[2] if len(sys.argv) > 2 else None, os.environ.get("STREAM_RESTORE", "latest")
    with CheckpointedJob(checkpointing=config, root=root, restore=restore) as running:
        main(running, sys.argv[1])
    running.spark.stop()
