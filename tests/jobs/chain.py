"""Queries that read what others write. Runs in the Spark driver.

``chain.py OUT [ROOT]``: ``first`` reads JSON below ``OUT-in``, or below ``CHAIN_IN``, and writes its rows to ``OUT/first``, one folder
for each half of them; ``second`` reads these and writes them to ``OUT/second``; ``third`` writes each key once to ``OUT/third``.
They end when all is read, but for ``CHAIN_FOREVER``. ``CHAIN_FILES`` is how many files a batch of ``second`` reads at most.
``CHAIN_MODE`` and ``CHAIN_ALIGNED`` are the options of the checkpoints. With ``CHAIN_FORKS``, a job for each of these savepoints
begins in ``OUT/<number>`` in its place. With ``CHAIN_TABLES``, they write Delta tables. With ``CHAIN_LATE``, the first look of a cut
sees older batches of ``first`` than of ``second``. With ``CHAIN_RESCALE``, the state of ``third`` gets the number of partitions that the
confs say.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming.readwriter import DataStreamReader

from airflow_checkpoint_provider.checkpoint import CheckpointConfig
from airflow_checkpoint_provider.location.files import COMMITS, Position
from airflow_checkpoint_provider.spark import CheckpointedJob, Query
from airflow_checkpoint_provider.spark.queries import cut

SCHEMA = "id long, key string"
NAMES = ("first", "second", "third")
TABLES = bool(os.environ.get("CHAIN_TABLES"))


def rows(job: CheckpointedJob, name: str, out: str) -> DataFrame:
    """Return the rows of a query."""
    stream = job.spark.readStream
    if name == "first":
        folder = os.environ.get("CHAIN_IN", f"{out}-in")
        read = stream.schema(SCHEMA).option("maxFilesPerTrigger", "1").json(folder)
        return read.withColumn("half", F.concat(F.lit("a b/"), F.col("id") % 2))
    before = f"{out}/{NAMES[NAMES.index(name) - 1]}"
    if name == "second":
        limited = stream.option("maxFilesPerTrigger", os.environ.get("CHAIN_FILES", "1000"))
        return written(limited, f"{SCHEMA}, half string", before).drop("half")
    return written(stream, SCHEMA, before).dropDuplicates(["key"])


def make_tables(job: CheckpointedJob, out: str) -> None:
    """Make the tables that are not there: Delta reads a table whose columns it knows."""
    for name in NAMES:
        first = name == "first"
        no_rows = job.spark.createDataFrame([], f"{SCHEMA}, half string" if first else SCHEMA)
        writer = no_rows.write.format("delta").mode("ignore").partitionBy(*(["half"] if first else []))
        writer.save(f"{out}/{name}")


def written(stream: DataStreamReader, schema: str, path: str) -> DataFrame:
    """Return what another query writes to a path."""
    return stream.format("delta").load(path) if TABLES else stream.schema(schema).parquet(path)


def start(job: CheckpointedJob, name: str, out: str) -> Query:
    forever = bool(os.environ.get("CHAIN_FOREVER"))
    writer = rows(job, name, out).writeStream.format("delta" if TABLES else "parquet").option("path", f"{out}/{name}")
    writer = writer.trigger(processingTime="0 seconds") if forever else writer.trigger(availableNow=True)
    before = NAMES[: NAMES.index(name)][-1:]
    writer = writer.partitionBy("half") if name == "first" else writer
    return job.start_query(name, writer, after=before, rescale=bool(os.environ.get("CHAIN_RESCALE")))


def main(job: CheckpointedJob, out: str) -> None:
    if TABLES:
        make_tables(job, out)
    for name in NAMES:
        query = start(job, name, out)
        if not os.environ.get("CHAIN_FOREVER"):
            query.awaitTermination()  # the next one reads what there is when it starts
    print("STARTED", flush=True)


def look_late() -> None:
    """Let the first look of a cut see the batches that ``first`` had when ``second`` had two fewer."""
    committed, seen = cut.Cut._committed, dict[str, Sequence[Position]]()

    def late(self: cut.Cut, uid: str) -> Sequence[Position]:
        if uid == "second" and not seen:
            own = self._queries[uid].located.own
            seen["first"] = committed(self, "first")
            newest = max(own.batches(COMMITS))
            while newest + 2 not in own.batches(COMMITS):
                time.sleep(0.05)
            return committed(self, uid)
        return seen.pop(uid, None) or committed(self, uid)

    cut.Cut._committed = late  # type: ignore[method-assign]


if __name__ == "__main__":
    if os.environ.get("CHAIN_LATE"):
        look_late()
    config = CheckpointConfig(
        interval=os.environ.get("CHAIN_INTERVAL", "1 d"),
        mode=os.environ.get("CHAIN_MODE", "exactly_once"),
        aligned_timeout=os.environ.get("CHAIN_ALIGNED"),
    )
    root = sys.argv[2] if len(sys.argv) > 2 else None
    if forks := os.environ.get("CHAIN_FORKS", "").split():
        for number, savepoint in enumerate(forks):
            fork = CheckpointedJob(job_id=f"fork-{number}", checkpointing=config, root=root, restore=savepoint)
            with fork as running:
                main(running, f"{sys.argv[1]}/{number}")
    else:
        with CheckpointedJob(checkpointing=config, root=root) as running:
            main(running, sys.argv[1])
    running.spark.stop()
