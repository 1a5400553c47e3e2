"""Iceberg for slow tests: its jars, a catalog in a database of one file, and a table as its metadata describe it. Runs on Linux."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.support.jars import of_release

PATIENCE = 300_000  # milliseconds for which a commit waits for the database


def environment(release: str) -> dict[str, str]:
    """Return the environment with which a driver on a release of Spark finds Iceberg. Raises ``NoJars``."""
    return {"SPARK_DIST_CLASSPATH": os.pathsep.join(map(str, of_release("iceberg", "iceberg-spark", release)))}


class Lake:
    """A catalog with the table ``table``, below a folder. Another process makes the table."""

    def __init__(self, folder: Path, catalog: str = "ice") -> None:
        folder.mkdir(parents=True)
        self._catalog, self.table = catalog, f"{catalog}.db.rows"
        self._database, self._tables = folder / "catalog.db", folder / "tables"

    def confs(self) -> dict[str, str]:
        """Return the confs by which a driver knows the catalog."""
        conf = f"spark.sql.catalog.{self._catalog}"
        return {
            conf: "org.apache.iceberg.spark.SparkCatalog",
            f"{conf}.type": "jdbc",
            f"{conf}.uri": f"jdbc:sqlite:{self._database}?busy_timeout={PATIENCE}",
            f"{conf}.warehouse": str(self._tables),
        }

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let no commit end inside this block. The table can be read."""
        with closing(self._connection()) as database:
            database.execute("BEGIN IMMEDIATE")
            yield
            database.execute("ROLLBACK")

    def written(self) -> set[Path]:
        """Return the files with metadata that somebody has written, perhaps for a commit that has not ended yet."""
        return set(self._tables.glob("db/rows/metadata/*.metadata.json"))

    def snapshots(self) -> list[dict[str, Any]]:
        """Return the snapshots that the table is made of now, the oldest first; none if there is no table."""
        metadata = self._metadata()
        known = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots", ())}
        found, number = list[dict[str, Any]](), metadata.get("current-snapshot-id")
        while snapshot := known.get(number):
            found.append(snapshot)
            number = snapshot.get("parent-snapshot-id")
        return found[::-1]

    def batches(self) -> list[int]:
        """Return the numbers of the batches that queries have written, or marked, in their order."""
        epochs = (snapshot["summary"].get("spark.sql.streaming.epochId") for snapshot in self.snapshots())
        return [int(epoch) for epoch in epochs if epoch is not None]

    def _metadata(self) -> dict[str, Any]:
        if not self._database.exists():
            return {}
        with closing(self._connection()) as database:
            try:
                (row,) = database.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
            except (sqlite3.OperationalError, ValueError):  # nobody has made it yet
                return {}
        metadata: dict[str, Any] = json.loads(Path(row[0].removeprefix("file:")).read_text())
        return metadata

    def _connection(self) -> sqlite3.Connection:
        return sqlite3.connect(self._database, timeout=PATIENCE / 1000, isolation_level=None)
