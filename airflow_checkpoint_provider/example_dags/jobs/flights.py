"""Delays by carrier and airport, from all flights that left New York in 2013. Runs in the Spark driver.

``spark-submit flights.py --source DATA --out REPORT``, or with plain ``python``.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.spark import CheckpointedJob, FileSink

LATE = 15  # minutes
OFTEN = 100  # flights in the year


def main(job: CheckpointedJob, source: str, out: str) -> None:
    def table(name: str) -> DataFrame:
        return job.spark.read.parquet(f"{source}/{name}.parquet")

    flights = job.stage("clean", clean(table("flights")))
    weather = job.stage("weather", join_weather(flights, table("weather")))
    planes = job.stage("planes", join_planes(weather, table("planes")))
    delays = job.stage("delays", by_carrier_and_airport(planes))
    sink = job.sink("report", FileSink(out, mode="overwrite"))
    sink.write(report(delays, table("airlines"), table("airports")))


def clean(flights: DataFrame) -> DataFrame:
    """Return the flights that arrived. Delays are in minutes, negative if early."""
    arrived = flights.where("arr_delay IS NOT NULL AND tailnum IS NOT NULL")
    return arrived.select("carrier", "origin", "dest", "tailnum", "time_hour", "dep_delay", "arr_delay", "distance")


def join_weather(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """Add the weather at the origin in the hour of the departure; for some hours it was not recorded."""
    bad = F.coalesce(F.col("precip") > 0, F.lit(False)) | F.coalesce(F.col("visib") < 3, F.lit(False))
    return flights.join(
        weather.select("origin", "time_hour", bad.alias("bad_weather")), ["origin", "time_hour"], "left"
    )


def join_planes(flights: DataFrame, planes: DataFrame) -> DataFrame:
    """Add age (years) and seats of the plane; one in six planes is not in the register."""
    known = planes.select("tailnum", (2013 - F.col("year")).alias("age"), "seats")
    return flights.join(known, "tailnum", "left")


def by_carrier_and_airport(flights: DataFrame) -> DataFrame:
    return flights.groupBy("carrier", "dest").agg(
        F.count("*").alias("flights"),
        F.avg("arr_delay").alias("mean_delay"),
        F.max("arr_delay").alias("worst_delay"),
        F.count_if(F.col("arr_delay") > LATE).alias("late"),
        F.count_if((F.col("arr_delay") > LATE) & F.col("bad_weather")).alias("late_in_bad_weather"),
        F.avg("age").alias("mean_plane_age"),
        F.sum("seats").alias("seats"),
    )


def report(delays: DataFrame, airlines: DataFrame, airports: DataFrame) -> DataFrame:
    """Return the frequent connections with names instead of codes, the longest delays first, in one file."""
    carriers = airlines.select("carrier", F.col("name").alias("airline"))
    destinations = airports.select(F.col("faa").alias("dest"), F.col("name").alias("airport"))
    named = delays.where(F.col("flights") >= OFTEN).join(carriers, "carrier").join(destinations, "dest", "left")
    return named.repartition(1).sortWithinPartitions(F.desc("mean_delay"), "carrier", "dest")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", required=True, help="folder with flights.parquet, weather.parquet, ...")
    parser.add_argument("--out", required=True, help="folder for the report; its content is replaced")
    options = parser.parse_args()
    with CheckpointedJob() as job:
        main(job, options.source, options.out)
