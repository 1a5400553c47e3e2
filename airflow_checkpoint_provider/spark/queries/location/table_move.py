"""A Delta source that begins elsewhere: in another table, or after a restore of its table. Runs in the Spark driver.

The offset of a Delta source names its table and a commit. In a fork, the upstream begins a table of its own. When queries go back, their
author restores the table to an older version. Then the source must not read the commits that the restore took back, nor the commit of the
restore itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.errors import SinkMoved
from airflow_checkpoint_provider.location.files import NO_OFFSET, NOTHING, OFFSETS, Location
from airflow_checkpoint_provider.location.foreign import loads
from airflow_checkpoint_provider.spark.queries.sinks.delta_table import DeltaOffset

if TYPE_CHECKING:
    from airflow_checkpoint_provider.protocol.query_details import Edge
    from airflow_checkpoint_provider.spark.queries.sinks.delta import DeltaStreamSink

FIRST_OFFSET = 2  # line of an entry of offsets, after its version and its confs


@dataclass(frozen=True)
class TableMove:
    """The source with the number ``source`` reads the table of ``sink``, and had read up to ``edge`` in the checkpoint."""

    uid: str
    source: int
    edge: Edge
    sink: DeltaStreamSink

    def carry_out(self, own: Location) -> None:
        """Rewrite the stored offsets so that the source starts after the checkpoint's rows.

        Older offsets move too, because Spark reads the newest committed batch again. Raises ``SinkMoved``, and ``Damaged`` for a log
        that nobody can read.
        """
        batches = own.batches(OFFSETS)
        newest = max(own.committed(), min(batches, default=NOTHING))
        begin = self._begin(self._line(own, newest)) if batches else None
        for batch in batches if begin is not None else ():
            lines = own.read(f"{OFFSETS}/{batch}").decode().split("\n")
            if line := self._line(own, batch):
                about = {"sourceVersion": 1, "reservoirId": self.sink.table.id, "reservoirVersion": begin}
                DeltaOffset.parse(line)
                moved = loads(line) | about | {"index": -1, "isStartingVersion": False}
                lines[FIRST_OFFSET + self.source] = json.dumps(moved)
                own.store.overwrite(own.key_of(f"{OFFSETS}/{batch}"), "\n".join(lines).encode())

    def _line(self, own: Location, batch: int) -> str:
        """Return the offset of the source at the end of a batch; empty if there is none."""
        offset = own.offsets(batch).sources.get(self.source, NO_OFFSET)
        return "" if offset == NO_OFFSET else offset

    def _begin(self, line: str) -> int | None:
        """Return the commit at which the source begins; None if it goes on where it was."""
        if not line:
            return None
        table, offset = self.sink.table, DeltaOffset.parse(line)
        if offset.table == table.id:
            since = list(table.commits(offset.version))
            restore = next((commit for commit in since if commit.restored_to is not None), None)
            if restore is None:
                return None
            unread = [commit for commit in since if commit.files and commit.version <= (restore.restored_to or 0)]
            begin = restore.version + 1
        else:
            first = table.first_of(self.sink.query_id)
            # The upstream's first commit there is a marker without rows, unless the upstream has begun in this table
            unread, begin = [], 0 if first is None else first.version + (0 if first.files else 1)
        if self.edge.in_flight or unread:
            raise SinkMoved(
                f"query '{self.uid}' had yet to read rows in {self.edge.path}, which are not in flight any more: the table was taken back, or"
                " is another one. The query was not started. Start from an aligned checkpoint"
            )
        return begin
