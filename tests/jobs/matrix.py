"""Queries of each kind of state, in each state store, from one input. Runs in the Spark driver.

``matrix.py OUT`` reads JSON rows below ``OUT-in`` and writes each query's rows to ``OUT/<name>`` as Parquet. It ends by itself when
all files are read, but for ``STREAM_FOREVER``.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming.readwriter import DataStreamWriter

from airflow_checkpoint_provider.checkpoint import CheckpointConfig
from airflow_checkpoint_provider.spark import CheckpointedJob

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
STORES: dict[str, dict[str, str]] = {
    "hdfs": {},
    "rocksdb": {PROVIDER: ROCKSDB, CHANGELOG: "false"},
    "changelog": {PROVIDER: ROCKSDB, CHANGELOG: "true"},
}
OPERATORS = ("count", "dedup", "join")
CONFS = {"spark.sql.shuffle.partitions": "2", "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3"}


def rows(job: CheckpointedJob, out: str) -> DataFrame:
    """Return the input: id, key and event time, two files a batch."""
    read = job.spark.readStream.schema("id long, key string, at timestamp").option("maxFilesPerTrigger", "2")
    return read.json(f"{out}-in").withWatermark("at", "0 seconds")


def query(job: CheckpointedJob, operator: str, out: str) -> DataFrame:
    """Return the rows of a query."""
    if operator == "count":
        return rows(job, out).groupBy(F.window("at", "10 seconds")).count().select("window.start", "count")
    if operator == "dedup":
        return rows(job, out).dropDuplicates(["key"])
    return (
        rows(job, out).alias("l").join(rows(job, out).alias("r"), F.expr("l.id = r.id AND l.at = r.at")).select("l.id")
    )


def started(frame: DataFrame, folder: str) -> DataStreamWriter:
    writer = frame.writeStream.format("parquet").option("path", folder)
    forever = bool(os.environ.get("STREAM_FOREVER"))
    return writer.trigger(processingTime="0 seconds") if forever else writer.trigger(availableNow=True)


def main(job: CheckpointedJob, out: str) -> None:
    for store, confs in STORES.items():
        for name in (PROVIDER, CHANGELOG):
            job.spark.conf.unset(name)
        for name, value in (CONFS | confs).items():
            job.spark.conf.set(name, value)
        for operator in OPERATORS:
            job.start_query(f"{operator}-{store}", started(query(job, operator, out), f"{out}/{operator}-{store}"))
    print("STARTED", flush=True)


if __name__ == "__main__":
    config = CheckpointConfig(interval=os.environ.get("STREAM_INTERVAL", "2 s"))
    root, restore = sys.argv[2] if len(sys.argv) > 2 else None, os.environ.get("STREAM_RESTORE", "latest")
    with CheckpointedJob(checkpointing=config, root=root, restore=restore) as running:
        main(running, sys.argv[1])
    running.spark.stop()
