"""What the stages of a retry read of a table with versions. Runs in a driver of its own.

Of each way to name a version the plans are compared. One way, and the newest version, are read by stages: each case is a job of its
own, and an exception ends each of its attempts. ``VERSIONS`` names the format.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from airflow_checkpoint_provider.spark import CheckpointedJob
from airflow_checkpoint_provider.spark.stages.plan import fingerprint
from airflow_checkpoint_provider.spark.stages.plan_diff import difference

Frames = list[Callable[[], DataFrame]]
DELTA, ICEBERG = "delta", "iceberg"


class Failed(Exception):
    """The attempt."""


def attempt(spark: SparkSession, case: str, frame: Callable[[], DataFrame], **options: str) -> list[int]:
    rows: list[int] = []
    with suppress(Failed), CheckpointedJob(spark, job_id=case) as job:
        rows += sorted(row.id for row in job.stage(case, frame(), **options).collect())
        raise Failed
    return rows


def delta_ways(spark: SparkSession, table: str) -> dict[str, Frames]:
    """Return each way to name the first and the newest version."""
    history = {row.version: row.timestamp for row in spark.sql(f"DESCRIBE HISTORY delta.`{table}`").collect()}
    times = {v: str(history[v]) for v in (0, 2)}
    digits = {v: history[v].strftime("%Y%m%d%H%M%S%f")[:17] for v in (0, 2)}

    def read(**options: str | int) -> DataFrameReader:
        return spark.read.format(DELTA).options(**options)

    first = f"{table}-first"
    add(spark, first, 0)
    spark.sql(f"CREATE TABLE named USING delta LOCATION '{table}'")
    ways: dict[str, Callable[[int], DataFrame]] = {
        "versionAsOf": lambda v: read(versionAsOf=v).load(table),
        "timestampAsOf": lambda v: read(timestampAsOf=times[v]).load(table),
        "sql-version": lambda v: spark.sql(f"SELECT * FROM delta.`{table}` VERSION AS OF {v}"),
        "sql-timestamp": lambda v: spark.sql(f"SELECT * FROM delta.`{table}` TIMESTAMP AS OF '{times[v]}'"),
        "path-version": lambda v: read().load(f"{table}@v{v}"),
        "path-timestamp": lambda v: read().load(f"{table}@{digits[v]}"),
        "sql-path": lambda v: spark.sql(f"SELECT * FROM delta.`{table}@v{v}`"),
        "table": lambda v: spark.sql(f"SELECT * FROM named VERSION AS OF {v}"),
        "path": lambda v: read().load(table if v else first),
        "changes": lambda v: read(readChangeFeed="true", startingVersion=0, endingVersion=v).load(table).select("id"),
    }
    return {name: [lambda way=way, v=v: way(v) for v in (0, 2)] for name, way in ways.items()}  # type: ignore[misc]


def iceberg_ways(spark: SparkSession, table: str) -> dict[str, Frames]:
    found = spark.sql(f"SELECT committed_at, snapshot_id FROM {table}.snapshots ORDER BY committed_at").collect()
    ids = {0: found[0].snapshot_id, 2: found[2].snapshot_id}
    times = {v: found[v].committed_at + timedelta(milliseconds=1) for v in (0, 2)}
    millis = {v: int(times[v].timestamp() * 1000) for v in (0, 2)}
    for v, number in ids.items():
        spark.sql(f"ALTER TABLE {table} CREATE TAG tag{v} AS OF VERSION {number}")
        spark.sql(f"ALTER TABLE {table} CREATE BRANCH branch{v} AS OF VERSION {number}")

    def read(**options: str | int) -> DataFrameReader:
        return spark.read.options(**options)

    ways: dict[str, Callable[[int], DataFrame]] = {
        "sql-version": lambda v: spark.sql(f"SELECT * FROM {table} VERSION AS OF {ids[v]}"),
        "sql-timestamp": lambda v: spark.sql(f"SELECT * FROM {table} TIMESTAMP AS OF '{times[v]}'"),
        "sql-tag": lambda v: spark.sql(f"SELECT * FROM {table} VERSION AS OF 'tag{v}'"),
        "sql-branch": lambda v: spark.sql(f"SELECT * FROM {table} VERSION AS OF 'branch{v}'"),
        "branch-name": lambda v: spark.table(f"{table}.branch_branch{v}"),
        "snapshot-id": lambda v: read(**{"snapshot-id": ids[v]}).format(ICEBERG).load(table),
        "as-of-timestamp": lambda v: read(**{"as-of-timestamp": millis[v]}).format(ICEBERG).load(table),
        "tag": lambda v: read(tag=f"tag{v}").format(ICEBERG).load(table),
        "branch": lambda v: read(branch=f"branch{v}").format(ICEBERG).load(table),
        "versionAsOf": lambda v: read(versionAsOf=ids[v]).table(table),
        "timestampAsOf": lambda v: read(timestampAsOf=str(times[v])).table(table),
        "loaded": lambda v: read(versionAsOf=f"tag{v}").format(ICEBERG).load(table),
        "selected": lambda v: spark.table(f"{table}.snapshot_id_{ids[v]}"),
        "selected-tag": lambda v: read().format(ICEBERG).load(f"{table}.tag_tag{v}"),
    }
    return {name: [lambda way=way, v=v: way(v) for v in (0, 2)] for name, way in ways.items()}  # type: ignore[misc]


def add(spark: SparkSession, table: str, row: int) -> None:
    rows = spark.range(row, row + 1).coalesce(1)
    if table.startswith("ice."):
        rows.writeTo(table).append()
    else:
        rows.write.format(DELTA).mode("append").option("delta.enableChangeDataFeed", "true").save(table)


def grows(spark: SparkSession, table: str, newest: Callable[[], DataFrame]) -> dict[str, list[list[int]]]:
    """Return the rows of attempts between which the table gets a version."""
    found: dict[str, list[list[int]]] = {}
    for row, (case, words) in enumerate({"kept": "auto", "compared": "compare", "corrected": "auto"}.items()):
        first = attempt(spark, case, newest, inputs=words)
        add(spark, table, 100 + row)
        if case == "corrected":
            sys.argv.append("another argument")
        found[case] = [first, attempt(spark, case, newest, inputs=words)]
    return found


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    kind, table = os.environ["VERSIONS"], os.environ["VERSIONS_TABLE"]
    if kind == ICEBERG:
        spark.sql(f"CREATE NAMESPACE {table.rpartition('.')[0]}")
        spark.sql(f"CREATE TABLE {table} (id bigint) USING iceberg")
    for row in (0, 10, 20):
        add(spark, table, row)
    ways = iceberg_ways(spark, table) if kind == ICEBERG else delta_ways(spark, table)
    found: dict[str, object] = {}
    for name, frames in ways.items():
        try:
            old, same, new = (fingerprint(frame(), {}) for frame in (frames[0], *frames))
            found[name] = [old == same, old.digest == new.digest, difference(old, new)]
        except Exception as error:  # noqa: BLE001 - this release has not this way; the test names those that it must have
            found[name] = f"{type(error).__name__}: {error}"[:300]
    newest = (lambda: spark.table(table)) if kind == ICEBERG else (lambda: spark.read.format(DELTA).load(table))
    named = ways["sql-version"]
    found["named"] = [attempt(spark, "named", frame) for frame in (named[0], *named)]
    found |= grows(spark, table, newest)
    if kind == DELTA:
        try:
            spark.readStream.format(DELTA).load(f"{table}@v0")
        except Exception as error:  # noqa: BLE001 - the test compares its text
            found["stream"] = f"{type(error).__name__}: {error}"[:300]
    print("RESULT", json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
