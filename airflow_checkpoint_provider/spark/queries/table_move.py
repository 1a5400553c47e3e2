"""A Delta source that begins elsewhere: in another table, or behind a table that was taken back. Runs in the Spark driver.

The offset of a Delta source names its table and a commit. In a fork, the query that writes begins a table of its own. When queries go
back, their author restores the table, and the source must not read the commits that were taken back, or the one that did it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.coordinator.query_location import OFFSETS, Location
from airflow_checkpoint_provider.errors import SinkMoved

if TYPE_CHECKING:
    from airflow_checkpoint_provider.protocol.metadata import Edge
    from airflow_checkpoint_provider.spark.queries.delta_sink import DeltaSink

FIRST_OFFSET = 2  # line of an entry of offsets, behind its version and its confs


@dataclass(frozen=True)
class TableMove:
    """The source with the number ``source`` reads the table of ``sink``, and had read up to ``edge`` in the checkpoint."""

    uid: str
    source: int
    edge: Edge
    sink: DeltaSink

    def carry_out(self, own: Location) -> None:
        """Let the offsets in a location begin behind what the checkpoint's rows have become.

        Raises ``SinkMoved``, and ``Damaged`` for a log that nobody can read.
        """
        committed = own.committed()
        for batch in own.batches(OFFSETS):
            if batch < committed:  # nobody goes on from there
                continue
            name = f"{OFFSETS}/{batch}"
            lines = own.read(name).decode().split("\n")
            number = FIRST_OFFSET + self.source
            if number < len(lines) and lines[number].startswith("{"):
                lines[number] = self._moved(json.loads(lines[number]))
                own.store.overwrite(own.name(name), "\n".join(lines).encode())

    def _moved(self, offset: dict[str, Any]) -> str:
        table, version = self.sink.table, int(offset["reservoirVersion"])
        if offset["reservoirId"] == table.id:
            since = list(table.commits(version))
            restore = next((commit for commit in since if commit.restored_to is not None), None)
            if restore is None:
                return json.dumps(offset)
            unread = [commit for commit in since if commit.files and commit.version <= (restore.restored_to or 0)]
            begin = restore.version + 1
        else:
            first = table.first_of(self.sink.query_id)
            # Its first commit there says from which batch on it counts; it has rows if that is the first batch of all
            unread, begin = [], 0 if first is None else first.version + (0 if first.files else 1)
        if self.edge.in_flight or unread:
            raise SinkMoved(
                f"query '{self.uid}' had yet to read rows in {self.edge.path}, which are not in flight any more: the table was taken back, or"
                " is another one. The query was not started. Start from an aligned checkpoint"
            )
        return json.dumps(
            offset
            | {
                "sourceVersion": 1,
                "reservoirId": table.id,
                "reservoirVersion": begin,
                "index": -1,
                "isStartingVersion": False,
            }
        )
