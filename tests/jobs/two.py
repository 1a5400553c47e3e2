"""Two queries that have nothing to do with each other. Runs in the Spark driver.

``two.py OUT [ROOT]``: ``one`` and ``two`` read JSON below ``OUT-in`` and write it to ``OUT/one`` and ``OUT/two``, a file in each batch.
They end when all is read, but for ``TWO_FOREVER``. ``two`` is not started while the file ``TWO_HOLD`` exists.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from airflow_checkpoint_provider.checkpoint import CheckpointConfig
from airflow_checkpoint_provider.spark import CheckpointedJob, Query


def start(job: CheckpointedJob, uid: str, out: str) -> Query:
    rows = job.spark.readStream.schema("id long, key string").option("maxFilesPerTrigger", "1").json(f"{out}-in")
    writer = rows.writeStream.format("parquet").option("path", f"{out}/{uid}")
    forever = bool(os.environ.get("TWO_FOREVER"))
    return job.start_query(
        uid, writer.trigger(processingTime="0 seconds") if forever else writer.trigger(availableNow=True)
    )


def main(job: CheckpointedJob, out: str) -> None:
    start(job, "one", out)
    print("BETWEEN", flush=True)
    while hold.exists():
        time.sleep(0.05)
    start(job, "two", out)
    print("STARTED", flush=True)


if __name__ == "__main__":
    hold = Path(os.environ.get("TWO_HOLD", "/nowhere"))
    root = sys.argv[2] if len(sys.argv) > 2 else None
    with CheckpointedJob(checkpointing=CheckpointConfig(interval="1 d"), root=root) as running:
        main(running, sys.argv[1])
    running.spark.stop()
