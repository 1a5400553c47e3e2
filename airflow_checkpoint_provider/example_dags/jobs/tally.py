"""Adds up orders, batch by batch as they arrive in a folder, until a file ``END`` arrives. Runs in the Spark driver.

``spark-submit tally.py --inbox FOLDER --out FILE``: batch 7 is ``FOLDER/7.json``, one order a line. The end of a batch is a
barrier: the job takes a checkpoint there, and a savepoint if one was requested.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.spark import CheckpointedJob

ORDER = "customer STRING, cents BIGINT"
EVERY = 0.5  # seconds between two polls of the folder


def main(job: CheckpointedJob, inbox: Path, out: Path) -> None:
    orders, cents = job.value("orders", 0), job.value("cents", 0)
    for number in itertools.count(1):
        batch = arrived(inbox, number)
        if batch is None:
            break
        (sums,) = job.stage(f"batch-{number}", added_up(job.spark.read.schema(ORDER).json(str(batch)))).collect()
        orders.set(orders.get() + sums["orders"])
        cents.set(cents.get() + sums["cents"])
        print(f"batch {number}: {orders.get()} orders, {cents.get() / 100:.2f} in all", flush=True)
    out.write_text(json.dumps({"orders": orders.get(), "cents": cents.get()}))


def arrived(inbox: Path, number: int) -> Path | None:
    """Wait for batch ``number`` and return its path; None if there are no more batches."""
    batch = inbox / f"{number}.json"
    while not batch.exists():
        if (inbox / "END").exists():
            return None
        time.sleep(EVERY)
    return batch


def added_up(batch: DataFrame) -> DataFrame:
    return batch.agg(F.count("*").alias("orders"), F.coalesce(F.sum("cents"), F.lit(0)).alias("cents"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inbox", required=True, type=Path, help="folder where batches arrive, and END")
    parser.add_argument("--out", required=True, type=Path, help="file for the sums; its content is replaced")
    options = parser.parse_args()
    with CheckpointedJob() as running:
        main(running, options.inbox, options.out)
    running.spark.stop()
