"""A query of Spark's own, without this package. Runs on Linux, with a Spark session."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession


def run(spark: SparkSession, folder: Path, **options: str) -> None:
    """Run a query from ``in`` to ``out`` to the end of what is there, a file a batch, in the location ``location``."""
    rows = spark.readStream.schema("id long, key string").option("maxFilesPerTrigger", "1").json(f"{folder}/in")
    writer = rows.writeStream.format("parquet").option("path", f"{folder}/out").options(**options)
    writer.option("checkpointLocation", f"{folder}/location").trigger(availableNow=True).start().awaitTermination()
