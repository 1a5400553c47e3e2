"""Queries of each kind of state, in each state store, from one input. Runs in the Spark driver.

``matrix.py OUT`` reads JSON rows below ``OUT-in``, or below ``STREAM_IN``, and writes each query's rows to ``OUT/<name>`` as Parquet.
It ends by itself when all files are read, but for ``STREAM_FOREVER``. With ``STREAM_BLIND``, the driver does not notice that it was
replaced. ``STREAM_FORKS`` names savepoints: each is gone on with by a job of its own, number n by ``fork-n``, which writes to ``OUT/n``.
``STREAM_QUERIES`` names the queries, such as "count-hdfs join-rocksdb"; all by default.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from airflow_checkpoint_provider.checkpoint import CheckpointConfig
from airflow_checkpoint_provider.spark import CheckpointedJob
from airflow_checkpoint_provider.spark.attempt import watch
from airflow_checkpoint_provider.spark.checkpoints.checkpointer import Checkpointer

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
STORES: dict[str, dict[str, str]] = {
    "hdfs": {},
    "rocksdb": {PROVIDER: ROCKSDB, CHANGELOG: "false"},
    "changelog": {PROVIDER: ROCKSDB, CHANGELOG: "true"},
}
TOTALS = [("totals", store) for store in ("rocksdb", "changelog")]
"""``transformWithState`` needs RocksDB. They start first: Spark gives their Python ten seconds to start."""
QUERIES = [*TOTALS, *itertools.product(("count", "dedup", "join"), STORES)]
FEW = [("totals", "rocksdb"), ("count", "hdfs"), ("dedup", "changelog"), ("join", "rocksdb")]
"""Each kind of state once, and each store."""
CONFS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
    "spark.sql.streaming.fileSink.log.cleanupDelay": "1d",  # the tests look at each batch
}
BUCKETS = 3


class Totals(StatefulProcessor):
    """Counts the rows of a bucket, and the seconds in which they happened."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._rows = handle.getValueState("rows", "n long")
        self._seconds = handle.getMapState("seconds", "at long", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803 - Spark's own names
        (count,) = self._rows.get() or (0,)
        for row in rows:
            count += 1
            self._seconds.updateValue((int(row["at"].timestamp()),), (1,))
        self._rows.update((count,))
        yield Row(bucket=key[0], rows=count, seconds=len(list(self._seconds.keys())))

    def close(self) -> None:
        """Do nothing."""


def rows(job: CheckpointedJob, out: str) -> DataFrame:
    """Return the input: id, key and event time, two files a batch."""
    read = job.spark.readStream.schema("id long, key string, at timestamp").option("maxFilesPerTrigger", "2")
    return read.json(os.environ.get("STREAM_IN", f"{out}-in")).withWatermark("at", "0 seconds")


def query(job: CheckpointedJob, operator: str, out: str) -> DataFrame:
    """Return the rows of a query."""
    if operator == "count":
        return rows(job, out).groupBy(F.window("at", "10 seconds")).count().select("window.start", "count")
    if operator == "dedup":
        return rows(job, out).dropDuplicates(["key"])
    if operator == "totals":
        buckets = rows(job, out).withColumn("bucket", F.col("id") % BUCKETS).groupBy("bucket")
        return buckets.transformWithState(Totals(), "bucket long, rows long, seconds long", "Append", "None")
    return (
        rows(job, out).alias("l").join(rows(job, out).alias("r"), F.expr("l.id = r.id AND l.at = r.at")).select("l.id")
    )


def started(frame: DataFrame, folder: str) -> DataStreamWriter:
    writer = frame.writeStream.format("parquet").option("path", folder)
    forever = bool(os.environ.get("STREAM_FOREVER"))
    return writer.trigger(processingTime="0 seconds") if forever else writer.trigger(availableNow=True)


def main(job: CheckpointedJob, out: str) -> None:
    wanted = os.environ.get("STREAM_QUERIES", "").split()
    for operator, store in QUERIES:
        if wanted and f"{operator}-{store}" not in wanted:
            continue
        for name in (PROVIDER, CHANGELOG):
            job.spark.conf.unset(name)
        for name, value in (CONFS | STORES[store]).items():
            job.spark.conf.set(name, value)
        run = job.start_query(f"{operator}-{store}", started(query(job, operator, out), f"{out}/{operator}-{store}"))
        while operator == "totals" and run.isActive and not run.lastProgress:
            time.sleep(0.1)  # Spark gives its Python ten seconds to start
    print("STARTED", flush=True)


if __name__ == "__main__":
    if os.environ.get("STREAM_BLIND"):
        watch.POLL = 86_400.0
        # Its first look for leftovers may come late, and reads the journal
        Checkpointer.remove_garbage = lambda self: None  # type: ignore[method-assign]
    config = CheckpointConfig(interval=os.environ.get("STREAM_INTERVAL", "2 s"))
    root = sys.argv[2] if len(sys.argv) > 2 else None
    if forks := os.environ.get("STREAM_FORKS", "").split():
        for number, savepoint in enumerate(forks):
            with CheckpointedJob(
                job_id=f"fork-{number}", checkpointing=config, root=root, restore=savepoint
            ) as running:
                main(running, f"{sys.argv[1]}/{number}")
    else:
        with CheckpointedJob(checkpointing=config, root=root) as running:
            main(running, sys.argv[1])
    running.spark.stop()
