"""A query from files to files. Runs in the Spark driver.

``stream.py OUT`` reads JSON rows below ``OUT-in``, or below ``STREAM_IN``, and writes each batch's rows to ``OUT`` as Parquet. It
ends by itself when all files are read, but for ``STREAM_FOREVER``. With ``STREAM_STATE``, each key is written once. A batch stands
still while the file ``STREAM_HOLD`` exists. With ``STREAM_BLIND``, the driver does not notice that it was replaced.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.checkpoint import CheckpointConfig
from airflow_checkpoint_provider.spark import CheckpointedJob, attempt

SCHEMA = "id long, key string"
FILES_A_BATCH = "2"


def main(job: CheckpointedJob, out: str) -> None:
    source = os.environ.get("STREAM_IN", f"{out}-in")
    rows = job.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_A_BATCH).json(source)
    if hold := os.environ.get("STREAM_HOLD"):
        rows = rows.withColumn("key", F.udf(held(hold), "string")("key"))
    if os.environ.get("STREAM_STATE"):
        rows = rows.dropDuplicates(["key"])
    writer = rows.writeStream.format("parquet").option("path", out)
    forever = bool(os.environ.get("STREAM_FOREVER"))
    writer = writer.trigger(processingTime="0 seconds") if forever else writer.trigger(availableNow=True)
    query = job.start_query("rows", writer)
    print("STARTED", flush=True)
    query.awaitTermination()
    progress, rows = query.lastProgress, job.spark.read.parquet(out).count()
    result = {"attempt": job.attempt, "batch": progress.batchId if progress else None, "rows": rows}
    print("RESULT", json.dumps(result), flush=True)


def held(file: str) -> Callable[[str], str]:
    """Return a function that returns its argument when ``file`` is gone."""

    def wait(key: str) -> str:
        while os.path.exists(file):
            time.sleep(0.05)
        return key

    return wait


if __name__ == "__main__":
    if os.environ.get("STREAM_BLIND"):
        attempt.POLL = 600.0
    config = CheckpointConfig(interval=os.environ.get("STREAM_INTERVAL", "10 min"))
    root, restore = sys.argv[2] if len(sys.argv) > 2 else None, os.environ.get("STREAM_RESTORE", "latest")
    with CheckpointedJob(checkpointing=config, root=root, restore=restore) as running:
        main(running, sys.argv[1])
    running.spark.stop()
