"""An Iceberg table: its snapshots and branches, and which batches of a query it has. Runs in the Spark driver.

Each commit makes a snapshot of the table, which names the one before. A query writes a batch in one commit: the summary of its snapshot has
the query's own id and the number of the batch. Before it commits, Iceberg 1.12 looks for the newest such snapshot, from the current one on.
It skips a batch whose number is not greater. If somebody else has committed meanwhile, it tries to commit again, and does not look again.
So two drivers that write a batch at the same moment both write it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.errors import CheckpointError, WrongUse
from airflow_checkpoint_provider.location.foreign import long, readable
from airflow_checkpoint_provider.spark.java_classes import java_class
from airflow_checkpoint_provider.spark.java_errors import JAVA_ERRORS, java_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERY, BATCH = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"
ABSENT = (
    "NoSuch",
    "Analysis",
    "Parse",
)  # beginnings of the names of errors for a table that is not there, or has no such name
NO_SNAPSHOT = -1  # in the metadata of a table without rows, in some versions of the format
CHANGES = ("added-data-files", "deleted-data-files")  # in the summary of a snapshot that changes rows


@dataclass(frozen=True)
class IcebergSnapshot:
    """A snapshot of a table: its id, that of the one before, when it was made (since 1970), and its summary."""

    id: int
    before: int | None
    at_ms: int
    summary: Mapping[str, str]

    @property
    def changes_rows(self) -> bool:
        """Return whether it adds rows or takes some away."""
        return any(change in self.summary for change in CHANGES)

    @property
    def batch(self) -> int:
        """Return the batch of the query that has made it. Raises ``Damaged``."""
        with readable(f"the summary of snapshot {self.id}", "Iceberg"):
            return long(self.summary[BATCH])

    def of(self, query_id: str, *, after: int) -> bool:
        """Return whether a query has made it with a batch after ``after``. Raises ``Damaged``."""
        return self.summary.get(QUERY) == query_id and self.batch > after


@dataclass(frozen=True)
class IcebergMetadata:
    """What a table is: its current snapshot, the snapshots that have not expired, its branches, and its properties.

    ``was_current`` are the snapshots that were the current one once, also if a person has rolled the table back since.
    """

    current: int | None
    snapshots: Mapping[int, IcebergSnapshot]
    branches: Mapping[str, int]
    was_current: frozenset[int]
    properties: Mapping[str, str]

    def lineage(self, first: int | None) -> Iterator[IcebergSnapshot]:
        """Yield the snapshots from ``first`` to the oldest before it that has not expired."""
        known, number = dict(self.snapshots), first
        while number is not None and (snapshot := known.pop(number, None)):  # once, also if one is its own parent
            yield snapshot
            number = snapshot.before


class IcebergTable:
    """An Iceberg table; ``java`` is Iceberg's own object.

    Its methods raise ``WrongUse`` if the table does not exist, and ``CheckpointError`` if its catalog does not answer.
    """

    def __init__(self, spark: SparkSession, table: Any) -> None:
        self.java = table
        self._to_json = java_class(spark, "org.apache.iceberg.TableMetadataParser").toJson
        self.name = str(table.name())

    @classmethod
    def named(cls, spark: SparkSession, name: str) -> IcebergTable:
        """Return the table that a catalog has under a name."""
        with typed_errors(name):
            java = java_class(spark, "org.apache.iceberg.spark.Spark3Util")
            return cls(spark, java.loadIcebergTable(spark._jsparkSession, name))

    def snapshots(self) -> Iterator[IcebergSnapshot]:
        """Yield the snapshots that the table is made of now, from the current one to the oldest that has not expired."""
        metadata = self.metadata()
        yield from metadata.lineage(metadata.current)

    def metadata(self) -> IcebergMetadata:
        """Read what the table is now. Raises ``Damaged``."""
        # The format of this text is Iceberg's specification. One call, where the objects would need five for each snapshot
        with typed_errors(self.name):
            text = str(self._to_json(self.java.operations().refresh()))
        return metadata_in(text, f"the metadata of the table {self.name}")

    def written(self, query_id: str) -> Iterator[tuple[int, IcebergSnapshot]]:
        """Yield the batches that a query has written, the newest first, and their snapshots."""
        for snapshot in self.snapshots():
            if snapshot.summary.get(QUERY) == query_id:
                yield snapshot.batch, snapshot

    def mark(self, query_id: str, batch: int) -> None:
        """Let the table count the batches of a query up to ``batch``, in a snapshot that adds no rows."""
        with typed_errors(self.name):
            self.java.newFastAppend().set(QUERY, query_id).set(BATCH, str(batch)).commit()


def metadata_in(text: str, what: str) -> IcebergMetadata:
    """Return what the metadata of a table say. Raises ``Damaged``, naming ``what``."""
    with readable(what, "Iceberg"):
        about = json.loads(text)  # a schema in it may be deep
        snapshots = [_snapshot(each) for each in about.get("snapshots", ())]
        refs, current = about.get("refs", {}), about.get("current-snapshot-id")
        return IcebergMetadata(
            current=None if current in (None, NO_SNAPSHOT) else long(current),
            snapshots={snapshot.id: snapshot for snapshot in snapshots},
            branches={str(name): long(refs[name]["snapshot-id"]) for name in refs if refs[name]["type"] == "branch"},
            was_current=frozenset(long(entry["snapshot-id"]) for entry in about.get("snapshot-log", ())),
            properties={str(name): str(value) for name, value in about.get("properties", {}).items()},
        )


def _snapshot(about: Mapping[str, Any]) -> IcebergSnapshot:
    before, summary = about.get("parent-snapshot-id"), about.get("summary", {})
    return IcebergSnapshot(
        id=long(about["snapshot-id"]),
        before=None if before is None else long(before),
        at_ms=long(about["timestamp-ms"]),
        summary={str(name): str(summary[name]) for name in summary},
    )


@contextmanager
def typed_errors(table: str) -> Iterator[None]:
    """Raise a typed error instead of a catalog's error. The text of the latter may hold the address of a database, with a password."""
    try:
        yield
    except JAVA_ERRORS as error:
        reason = java_name(error)
        if reason.startswith(ABSENT):
            raise WrongUse(f"Spark cannot open the Iceberg table {table}: {reason}. Create it first") from None
        raise CheckpointError(
            f"Spark cannot use the Iceberg table {table} now: {reason}. Another try may help; Spark's own log may say more"
        ) from None
