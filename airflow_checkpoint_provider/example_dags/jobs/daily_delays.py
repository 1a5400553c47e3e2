"""Delays by carrier since the beginning of the year: a table by key, to which each run adds a day. Runs in the Spark driver.

``spark-submit daily_delays.py --source DATA --out REPORT --day 2013-01-31``, or with plain ``python``. A day is added once, whatever fails.
"""

from __future__ import annotations

import argparse
from datetime import date

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.spark import CheckpointedJob, FileSink

COLUMNS = "carrier string, flights bigint, delay bigint, newest string"


def main(job: CheckpointedJob, source: str, out: str, day: str) -> None:
    totals = job.keyed_state("totals", "carrier", schema=COLUMNS)
    for new in job.once("days", [day]):
        flights = job.spark.read.parquet(f"{source}/flights.parquet")
        totals.upsert(add(totals.df, delays(flights, new), new))
    job.sink("report", FileSink(out, mode="overwrite")).write(totals.df.coalesce(1))


def delays(flights: DataFrame, day: str) -> DataFrame:
    """Return the flights and the minutes of delay of each carrier on one day."""
    on = date.fromisoformat(day)
    flown = flights.where((F.col("month") == on.month) & (F.col("day") == on.day) & F.col("arr_delay").isNotNull())
    return flown.groupBy("carrier").agg(F.count("*").alias("more"), F.sum("arr_delay").cast("bigint").alias("late"))


def add(totals: DataFrame, new: DataFrame, day: str) -> DataFrame:
    """Return the rows of the carriers that have flown, with their new sums."""
    both = new.join(totals, "carrier", "left")
    flights = F.coalesce("flights", F.lit(0)) + F.col("more")
    delay = F.coalesce("delay", F.lit(0)) + F.col("late")
    return both.select("carrier", flights.alias("flights"), delay.alias("delay"), F.lit(day).alias("newest"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", required=True, help="folder with flights.parquet")
    parser.add_argument("--out", required=True, help="folder for the report; its content is replaced")
    parser.add_argument("--day", required=True, help="the day to add, as 2013-01-31")
    options = parser.parse_args()
    with CheckpointedJob() as job:
        main(job, options.source, options.out, options.day)
