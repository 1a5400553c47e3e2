"""Delta for slow tests: its jars, and a table as its log names it. Runs on Linux."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet

from tests.support.jars import of_release

CONFS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",  # of 50 small tasks for each batch
}


def environment(release: str) -> dict[str, str]:
    """Return the environment with which a driver on a release of Spark finds Delta. Raises ``NoJars``."""
    return {"SPARK_DIST_CLASSPATH": os.pathsep.join(map(str, of_release("delta", "delta-spark", release)))}


def commits(table: Path) -> list[list[dict[str, Any]]]:
    """Return the actions of each commit of a table, the oldest first."""
    entries = sorted((table / "_delta_log").glob("*.json"))
    return [[json.loads(line) for line in entry.read_text().splitlines()] for entry in entries]


def rows_in_table(table: Path, column: str = "id") -> list[Any]:
    """Return a column of all rows that a reader of the table sees, sorted."""
    files = dict[str, None]()
    for actions in commits(table):
        for action in actions:
            if "add" in action:
                files[action["add"]["path"]] = None
            if "remove" in action:
                del files[action["remove"]["path"]]
    return sorted(value for file in files for value in _column(table / unquote(file), column))


def files_by_batch(table: Path) -> dict[int, list[Path]]:
    """Return the files that each batch of a query has added."""
    found = dict[int, list[Path]]()
    for actions in commits(table):
        for batch in (action["txn"]["version"] for action in actions if "txn" in action):
            found[batch] = [table / unquote(action["add"]["path"]) for action in actions if "add" in action]
    return found


def batches_in_table(table: Path) -> list[int]:
    """Return the numbers of the batches that queries have written, or marked, in their order."""
    return [action["txn"]["version"] for actions in commits(table) for action in actions if "txn" in action]


def _column(file: Path, name: str) -> list[Any]:
    values: list[Any] = pyarrow.parquet.ParquetFile(file).read().column(name).to_pylist()
    return values
