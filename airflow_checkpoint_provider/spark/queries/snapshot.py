"""The snapshot of a query: the files of a committed batch, taken while the query goes on. Runs in the Spark driver.

Spark may delete old files during the copy. Then a newer batch is copied.

In one location, a file is never changed once its batch is committed. So a checkpoint refers to the files that an earlier checkpoint of the
same location holds, and does not copy them again. It refers to at most ``OLDER`` earlier file sets, and needs at least half of the bytes of
each. So the files that are kept for it have at most twice the bytes that it needs.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from airflow_checkpoint_provider.errors import Damaged
from airflow_checkpoint_provider.location.copying import copy_files, copy_of
from airflow_checkpoint_provider.location.fence import reached
from airflow_checkpoint_provider.location.files import NOTHING, Location, LocationFiles, Position, needed_files
from airflow_checkpoint_provider.protocol.file_records import File, FileSet
from airflow_checkpoint_provider.protocol.keys import file_set_path
from airflow_checkpoint_provider.protocol.metadata import QUERY, Measures, StateSnapshot
from airflow_checkpoint_provider.protocol.query_details import Edge, QueryDetail
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.queries.cut import Cut
from airflow_checkpoint_provider.spark.queries.location.locations import LocatedQuery
from airflow_checkpoint_provider.spark.queries.sinks.base import StreamSink
from airflow_checkpoint_provider.spark.state.snapshot import Check, FileSetFolder, StoredSnapshot

TRIES = 3
OLDER = 16
"""The most file sets of earlier checkpoints to which a checkpoint refers."""


class SnappedQuery(Protocol):
    """A query of which a snapshot is taken. It may run, or not be started."""

    uid: str
    sink: StreamSink
    located: LocatedQuery
    file_sets: dict[str, int]

    @property
    def paused(self) -> bool: ...

    @property
    def caught_up(self) -> bool: ...


class QuerySnapshot:
    """A query at one barrier.

    ``before`` is its record in the checkpoint before, if there is one. ``cut`` says at which batch the snapshot of a linked query is taken.
    """

    def __init__(
        self,
        attempt: Attempt,
        running: SnappedQuery,
        run: str,
        barrier: str,
        before: StateSnapshot | None,
        cut: Cut | None = None,
    ) -> None:
        self._attempt, self._running, self._run, self._barrier, self._before = attempt, running, run, barrier, before
        self._cut = cut
        self._record: StateSnapshot | None = None

    def write(self, check: Check, folder: FileSetFolder | None = None) -> StateSnapshot:
        """Copy the files of a committed batch, once, and return their record. A copy at a ``folder`` also holds the files in flight."""
        tries = 0
        while self._record is None:
            check()
            tries += 1
            try:
                self._record = self._take(check)
            except Damaged:  # Spark has deleted a file meanwhile
                if tries == TRIES or self._cut:  # other queries are cut at the same moment
                    raise
        record = self._with_in_flight(self._record, check) if folder else self._record
        return StoredSnapshot(record).write(check, folder)

    def _take(self, check: Check) -> StateSnapshot:
        """Copy the files of a committed batch. If no batch was committed since the checkpoint before, refer to its files."""
        cut = self._cut.of(self._running.uid, check) if self._cut else None
        began, edges = time.monotonic(), cut.edges if cut else ()
        measures = Measures(
            barrier=self._barrier,
            alignment_s=cut.alignment_s if cut and edges else 0.0,
            in_flight_bytes=sum(file.bytes for edge in edges for file in edge.in_flight),
        )
        detail = replace(self._detail(cut.position if cut else self._position()), edges=edges)
        before = self._before
        if before and self._holds(before, detail):
            known = before.query and before.query.edges == edges
            return before if known else self._with_edges(before, edges, measures)
        detail = self._with_offsets(detail)
        file_sets, new_bytes = self._copy(Position(detail.begun, detail.batch))
        return StateSnapshot(
            uid=self._running.uid,
            kind=QUERY,
            run=self._run,
            file_sets=file_sets,
            measures=replace(measures, work_s=time.monotonic() - began, new_bytes=new_bytes),
            query=detail,
        )

    def _holds(self, before: StateSnapshot, detail: QueryDetail) -> bool:
        """Return whether a record from before holds the query as it is now. Spark writes some files before the first batch begins."""
        if not before.query or not before.query.same_point(detail):
            return False
        if detail.begun != NOTHING:
            return True
        held = {file.name for file_set in before.file_sets for file in file_set.files}
        return held.issuperset(needed_files(LocationFiles(self._running.located.own), Position()))

    def _with_edges(self, before: StateSnapshot, edges: tuple[Edge, ...], measures: Measures) -> StateSnapshot:
        """Return the record from before with other ``edges``: the query has not moved, but others have written more rows for it to read."""
        query = replace(before.query, edges=edges) if before.query else None
        return replace(
            before,
            query=query,
            measures=replace(
                before.measures, alignment_s=measures.alignment_s, in_flight_bytes=measures.in_flight_bytes
            ),
        )

    def _with_in_flight(self, record: StateSnapshot, check: Check) -> StateSnapshot:
        """Return the record with copies of the files in flight. Another history would not find the originals."""
        edges = record.query.edges if record.query else ()
        if not self._cut or not any(edge.in_flight for edge in edges):
            return record
        path = file_set_path(self._running.uid, self._attempt.epoch, secrets.token_hex(8))
        self._attempt.file_sets.copy(path)
        target = Location(self._attempt.store, self._attempt.keys.file_set(path))
        sink_of = self._cut.sink_of
        saved = [edge for edge in edges if edge.in_flight and sink_of(edge).copy_out(edge.in_flight, target, check)]
        files = tuple(replace(file, name=copy_of(file.name)) for edge in saved for file in edge.in_flight)
        return replace(record, file_sets=(*record.file_sets, FileSet(path=path, files=files))) if files else record

    def _position(self) -> Position:
        """Return the position at which a query without a cut is taken."""
        position = reached(self._running.located.own)
        return (
            position
            if self._running.paused or not self._running.caught_up
            else replace(position, begun=position.committed)
        )

    def _detail(self, position: Position) -> QueryDetail:
        """Return the details of the query at ``position``.

        Until the batch that had begun is committed, the snapshot also holds that batch, as the snapshot of a stop does. The location is a
        copy with only the files that this batch needs, so no query could continue from the committed batch alone. The snapshot holds the
        state of the batch as far as it is there. Wherever the snapshot is restored, the batch runs again and writes its state anew. Only a
        sink that has the batch by then would skip it. That can only be the sink of this query, which continues from its location and not
        from a checkpoint.
        """
        located, sink = self._running.located, self._running.sink
        return QueryDetail(
            location=located.path,
            batch=position.committed,
            begun=position.begun,
            sink=sink.target.format,
            path=sink.path or "",
            sources={},
            watermark_ms=0,
        )

    def _with_offsets(self, detail: QueryDetail) -> QueryDetail:
        """Return ``detail`` with the offsets of its batch, and the newest file of the sink."""
        if detail.batch == NOTHING:
            return detail
        offsets = self._running.located.own.offsets(detail.batch)
        sources = {str(number): offset for number, offset in offsets.sources.items()}
        newest = self._running.sink.newest_file(detail.batch)
        return replace(detail, sources=sources, watermark_ms=offsets.watermark_ms, newest_file=newest)

    def _copy(self, position: Position) -> tuple[tuple[FileSet, ...], int]:
        """Copy the files that no earlier checkpoint of this location holds. Return all file sets of the position, and the copied bytes."""
        found = LocationFiles(self._running.located.own)
        names = needed_files(found, position)
        needed = {name: found.sizes[name] for name in names}
        older, bytes_of = self._older(), self._running.file_sets
        kept = reused(needed, older, bytes_of)
        path = file_set_path(self._running.uid, self._attempt.epoch, secrets.token_hex(8))
        self._attempt.file_sets.copy(path)
        held = {file.name for file_set in kept for file in file_set.files}
        new = [name for name in names if name not in held]
        copy_files(found, Location(self._attempt.store, self._attempt.keys.file_set(path)), new)
        file_set = FileSet(path=path, files=tuple(File(name=name, bytes=needed[name], rows=0) for name in sorted(new)))
        known = {part.path: bytes_of.get(part.path, part.bytes) for part in older}
        self._running.file_sets = {**known, path: file_set.bytes}
        return (*kept, file_set), file_set.bytes

    def _older(self) -> Sequence[FileSet]:
        """Return the file sets of the checkpoint before, if it was of this location and held committed batches only. The state of other
        batches may have been written again.
        """
        before, query = self._before, self._before and self._before.query
        same = query and query.location == self._running.located.path and query.begun == query.batch
        return before.file_sets if before and same else ()

    def discard(self) -> None:
        """Do nothing: the files stay."""


def reused(needed: Mapping[str, int], before: Sequence[FileSet], bytes_of: Mapping[str, int]) -> tuple[FileSet, ...]:
    """Return the parts of the file sets of the checkpoint ``before`` to which a new one refers.

    ``needed``: the bytes of the files that it needs, by name. ``bytes_of``: the bytes of each whole file set, by path. A file set that is
    not in there, as of a full checkpoint, has just the bytes that ``before`` lists.
    """
    parts = [
        replace(file_set, files=tuple(file for file in file_set.files if needed.get(file.name) == file.bytes))
        for file_set in before
    ]
    worth = [
        part
        for part, file_set in zip(parts, before, strict=True)
        if part.files and 2 * part.bytes >= bytes_of.get(part.path, file_set.bytes)
    ]
    return tuple(sorted(worth, key=lambda part: -part.bytes)[:OLDER])
