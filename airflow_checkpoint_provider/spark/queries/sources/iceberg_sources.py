"""The Iceberg sources of a query: whether the table still has the snapshots that it reads next. Runs in the Spark driver.

``expire_snapshots`` removes snapshots, and the files that no other one needs. Then Iceberg refuses to read on. It has no option that skips
expired snapshots: ``streaming-skip-overwrite-snapshots`` and ``streaming-skip-delete-snapshots`` apply to snapshots that are there.

Before its first batch, Iceberg decides with which snapshot the query begins, and keeps that in the location, in ``sources/<i>/offsets/0``. If
the table has no such snapshot then, it keeps -1, and decides anew when it reads: it begins with the oldest one that is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.location.files import NOTHING
from airflow_checkpoint_provider.location.foreign import loads, long, readable
from airflow_checkpoint_provider.protocol.query_details import ICEBERG
from airflow_checkpoint_provider.protocol.records import cut
from airflow_checkpoint_provider.protocol.wording import keeping
from airflow_checkpoint_provider.spark.queries.sinks.iceberg_table import IcebergTable
from airflow_checkpoint_provider.spark.queries.sources.reading import NEWER, Loss, Reading
from airflow_checkpoint_provider.spark.queries.sources.sources import Leaf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_SNAPSHOT = -1  # of a source that has read nothing
FROM = "stream-from-timestamp"


class IcebergSources:
    """The sources of a query that read Iceberg tables."""

    def __init__(self, spark: SparkSession, uid: str, leaves: Sequence[Leaf]) -> None:
        self._spark, self._uid = spark, uid
        self._leaves = [leaf for leaf in leaves if leaf.format == ICEBERG]

    def losses(self, reading: Reading) -> Iterator[Loss]:
        """Yield what the tables lack. Raises ``Damaged``, and ``CheckpointError`` if the catalog does not answer."""
        for leaf in self._leaves:
            offsets = [_beginning(reading, leaf), reading.begins(leaf.offset), *reading.ends(leaf.offset)]
            needed = {_snapshot(offset) for offset in offsets if offset is not None}
            if needed:
                yield from self._of_table(leaf, needed, reading)

    def _of_table(self, leaf: Leaf, needed: set[int], reading: Reading) -> Iterator[Loss]:
        table = IcebergTable(self._spark, leaf.relation.table().table())
        there, first = list(table.snapshots()), reading.position.committed == NOTHING
        oldest = there[-1] if there else None
        if NO_SNAPSHOT in needed and oldest and oldest.before is not None and oldest.at_ms > _from(leaf):
            needed.add(oldest.before)  # it reads all snapshots that the table has got
        needed -= {NO_SNAPSHOT, *(snapshot.id for snapshot in there)}
        gone = [f"snapshot {number}" for number in sorted(needed)]
        if gone:
            newer = NEWER if reading.left else ""
            begins = f"the table begins with snapshot {oldest.id}" if oldest else "the table has no snapshot"
            yield Loss(
                f"its table {table.name}",
                gone,
                f"{newer} Iceberg has no option that skips expired snapshots. Start the query under another uid, with"
                f' {keeping([self._uid])}. Without .option("stream-from-timestamp", MILLISECONDS) on the source it'
                " reads the whole table, and writes all rows again. Keep snapshots for longer than the longest stop",
                counted=f"{begins}, and the query {'reads' if first else 'reads on after'} ",
            )


def _beginning(reading: Reading, leaf: Leaf) -> str | None:
    """Return the offset with which the query begins, as Iceberg keeps it; None if it has read a batch since."""
    if reading.position.committed != NOTHING:
        return None
    body = reading.own.store.read(reading.own.key_of(f"sources/{leaf.folder}/offsets/0"))
    return None if body is None else body.decode(errors="replace")


def _from(leaf: Leaf) -> int:
    """Return the moment of the first snapshot that the author wants to read, in milliseconds since 1970; 0 for all snapshots."""
    text = str(leaf.relation.extraOptions().get(FROM) or "")
    return int(text) if text.isdecimal() else 0


def _snapshot(offset: str) -> int:
    with readable(f"the offset {cut(offset)} of a source", "Iceberg"):
        return long(loads(offset)["snapshot_id"])
