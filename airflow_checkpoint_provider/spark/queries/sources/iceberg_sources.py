"""The Iceberg sources of a query: whether the table still has the snapshots that it reads next. Runs in the Spark driver.

``expire_snapshots`` removes snapshots, and the files that no other one needs. Then Iceberg refuses to read on. It has no option that skips
expired snapshots: ``streaming-skip-overwrite-snapshots`` and ``streaming-skip-delete-snapshots`` apply to snapshots that are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.location.foreign import loads, long, readable
from airflow_checkpoint_provider.protocol.query_details import ICEBERG
from airflow_checkpoint_provider.protocol.records import cut
from airflow_checkpoint_provider.spark.queries.sinks.iceberg_table import IcebergTable
from airflow_checkpoint_provider.spark.queries.sources.reading import NEWER, Loss, Reading
from airflow_checkpoint_provider.spark.queries.sources.sources import Leaf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_SNAPSHOT = -1  # of a source that has read nothing


class IcebergSources:
    """The sources of a query that read Iceberg tables."""

    def __init__(self, spark: SparkSession, uid: str, leaves: Sequence[Leaf]) -> None:
        self._spark, self._uid = spark, uid
        self._leaves = [leaf for leaf in leaves if leaf.format == ICEBERG]

    def losses(self, reading: Reading) -> Iterator[Loss]:
        """Yield what the tables lack. Raises ``Damaged``, and ``CheckpointError`` if the catalog does not answer."""
        for leaf in self._leaves:
            offsets = [reading.begins(leaf.offset), *reading.ends(leaf.offset)]
            needed = {_snapshot(offset) for offset in offsets if offset is not None} - {NO_SNAPSHOT}
            if needed:
                yield from self._of_table(IcebergTable(self._spark, leaf.relation.table().table()), needed, reading)

    def _of_table(self, table: IcebergTable, needed: set[int], reading: Reading) -> Iterator[Loss]:
        there = [snapshot.id for snapshot in table.snapshots()]
        gone = [f"snapshot {number}" for number in sorted(needed.difference(there))]
        if gone:
            newer = NEWER if reading.left else ""
            begins = f"the table begins with snapshot {there[-1]}" if there else "the table has no snapshot"
            yield Loss(
                f"its table {table.name}",
                gone,
                f"{newer} Iceberg has no option that skips expired snapshots: start the query under another uid, and keep snapshots for"
                " longer than the longest stop",
                counted=f"{begins}, and the query reads on after ",
            )


def _snapshot(offset: str) -> int:
    with readable(f"the offset {cut(offset)} of a source", "Iceberg"):
        return long(loads(offset)["snapshot_id"])
