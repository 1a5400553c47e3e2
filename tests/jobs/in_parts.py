"""Made-up sales by day and by shop: two stages in parts, a stage before them and one after, and a value. Runs in the Spark driver.

``in_parts.py OUT [ROOT]`` prints a line ``RESULT {...}`` with its rows and its value. It writes its source to ``OUT-in``, if it is not there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.spark import CheckpointedJob

DAYS = [f"2026-02-0{day}" for day in range(1, 6)]
SALES = 500


def source(job: CheckpointedJob, folder: str) -> DataFrame:
    """Return the sales, in a folder for each shop; some were made in no shop."""
    if not Path(folder, "_SUCCESS").exists():
        shop = F.when(F.col("id") % 3 != 0, F.concat(F.lit("shop "), F.col("id") % 3))
        sales = job.spark.range(SALES).withColumn("shop", shop)
        sales.coalesce(1).write.mode("overwrite").partitionBy("shop").parquet(folder)
    return job.spark.read.schema("id long, shop string").parquet(folder)


def main(job: CheckpointedJob, out: str) -> None:
    counted = job.value("counted", 0)
    clean = job.stage("clean", source(job, f"{out}-in").where("id % 7 <> 0"))

    def of_day(day: str) -> DataFrame:
        counted.set(counted.get() + 1)
        return clean.where(F.col("id") % len(DAYS) == DAYS.index(day)).withColumn("day", F.lit(day))

    days = job.stage("days", of_day, parts=DAYS)
    shops = job.stage("shops", source(job, f"{out}-in").withColumn("price", F.col("id") * 3), by="shop")
    totals = job.stage("totals", days.join(shops, ["id"]).groupBy("day").agg(F.sum("price").alias("price")))
    totals.write.mode("overwrite").parquet(out)
    result = {
        "rows": sorted(totals.toJSON().collect()),
        "sales": sorted(row.id for row in shops.collect()),
        "counted": counted.get(),
        "attempt": job.attempt,
        "started_at": job.started_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
    print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    out, *root = sys.argv[1:]
    with CheckpointedJob(root=root[0] if root else None) as job:
        main(job, out)
    job.spark.stop()
