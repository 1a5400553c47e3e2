"""Whether a table has the rows that a query reads again, asked after each thing that a person does to it. Runs in the Spark driver.

``table_rows.py FOLDER`` reads the Delta table ``FOLDER/table``, or the Iceberg table ``TABLE``, by a query without this package. Then it
goes back after the first rows, and prints as its result what the table lacks after each step.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from airflow_checkpoint_provider.location.fence import reached
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.spark.queries.sources.reading import Reading
from airflow_checkpoint_provider.spark.queries.sources.source_rows import SourceRows
from airflow_checkpoint_provider.storage import LocalStore

folder, name = Path(sys.argv[1]), os.environ.get("TABLE")
kind, table = ("iceberg", name) if name else ("delta", f"delta.`{folder}/table`")
spark = SparkSession.builder.getOrCreate()
found: dict[str, list[str]] = {}


def writer() -> DataStreamWriter:
    reader = spark.readStream.format(kind).option("maxFilesPerTrigger", "1")
    rows = reader.table(table) if os.environ.get("BY_NAME") else reader.load(name or f"{folder}/table")
    return rows.writeStream.format("noop").trigger(availableNow=True)


def add(number: int) -> None:
    spark.range(number, number + 1, 1, 1).writeTo(table).append()


def read() -> None:
    writer().option("checkpointLocation", f"{folder}/newest").start().awaitTermination()


def ask(step: str, own: str = "older", left: str | None = "newest") -> None:
    store = LocalStore(str(folder))
    place = Location(store, own)
    position = reached(place)
    reading = Reading(place, position, position.committed, (Location(store, left),) if left else (), restored=True)
    losses = SourceRows(spark, "rows", writer()).losses(reading)
    found[step] = [loss.since(position.committed) for loss in losses]


def of_delta() -> None:
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")  # of 10,000 tasks for a VACUUM
    spark.sql(f"OPTIMIZE {table}")
    ask("optimized")
    spark.sql(f"VACUUM {table} RETAIN 0 HOURS")
    ask("vacuumed")
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    ask("ignored")
    log = folder / "table" / "_delta_log"
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, f"{folder}/table").checkpoint()  # type: ignore[union-attr]
    for version in range(4):
        (log / f"{version:020d}.json").unlink()
    ask("cleaned")
    ask("goes on", own="newest", left=None)
    spark.sql(f"DROP TABLE {table}")
    shutil.rmtree(folder / "table")
    spark.sql(f"CREATE TABLE {table} (id bigint) USING delta")
    ask("made anew", own="newest", left=None)


def begin_again() -> None:
    """Make the location of a query whose first batch has begun, and reads all rows."""
    shutil.copytree(folder / "newest", folder / "first")
    shutil.rmtree(folder / "first" / "commits")
    offsets = sorted((folder / "newest" / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    shutil.rmtree(folder / "first" / "offsets")
    (folder / "first" / "offsets").mkdir()
    shutil.copy(offsets[-1], folder / "first" / "offsets" / "0")


def of_iceberg() -> None:
    begin_again()
    ask("begins again", own="first", left=None)
    catalog, _, rest = table.partition(".")
    spark.sql(
        f"CALL {catalog}.system.expire_snapshots(table => '{rest}', older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
    )
    ask("expired")
    ask("its beginning has expired", own="first", left=None)
    ask("goes on", own="newest", left=None)


if name:
    spark.sql(f"CREATE NAMESPACE {name.rpartition('.')[0]}")
spark.sql(f"CREATE TABLE {table} (id bigint) USING {kind}")
add(0)
read()
shutil.copytree(folder / "newest", folder / "older")
add(1)
add(2)
read()
ask("all there")
of_iceberg() if name else of_delta()
print("RESULT", json.dumps(found), flush=True)
