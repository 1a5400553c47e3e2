"""Move the files in flight and the read positions of restored queries to the paths that they use now. Runs in the Spark driver.

A checkpoint names the files in flight where they are: in the sink of the query that wrote them. In a fork, that query writes to another
path, where its downstream would not find them. So a savepoint holds copies of them, which are copied there. The logs of file sources are
rewritten to the new paths; else a source would miss the files that it has read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO

from airflow_checkpoint_provider.errors import SinkMoved, WrongUse
from airflow_checkpoint_provider.file_sink.log import SinkFile
from airflow_checkpoint_provider.location.copying import copy_of
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.location.foreign import HEADER
from airflow_checkpoint_provider.location.source_files import source_entry
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.queries.sinks.sink_log import ONE_SLASH, SinkLog
from airflow_checkpoint_provider.spark.s3a import spark_uri
from airflow_checkpoint_provider.storage.base import pieces
from airflow_checkpoint_provider.text.units import plural


class InFlight:
    """The files of the query ``upstream`` that others have yet to read, in the checkpoint from which it starts."""

    def __init__(self, attempt: Attempt, upstream: str, restored: Iterable[StateSnapshot]) -> None:
        self._attempt, self._upstream = attempt, upstream
        self._edges = [
            (state, edge)
            for state in restored
            for edge in (state.query.edges if state.query else ())
            if edge.upstream == upstream
        ]

    def copies(self, path: str) -> dict[str, Location]:
        """Return the names of the files below the sink, and the file sets that hold their copies. ``path`` is the empty sink where they are
        needed. Raises ``SinkMoved`` if there are no copies.
        """
        found: dict[str, Location] = {}
        for state, edge in self._edges:
            folders = {file.name: file_set.path for file_set in state.file_sets for file in file_set.files}
            for file in edge.in_flight:
                if copy_of(file.name) not in folders:
                    raise SinkMoved(
                        f"query '{self._upstream}' would begin in {path}, which is empty. The checkpoint is unaligned: '{state.uid}' had"
                        f" yet to read {plural(len(edge.in_flight), 'file')} of '{self._upstream}', and only a savepoint holds copies of"
                        " them. Nothing was started. Start from a savepoint, or from an aligned checkpoint"
                    )
                folder = self._attempt.keys.file_set(folders[copy_of(file.name)])
                found[file.name] = Location(self._attempt.store, folder)
        return found

    def refuse_to_bring(self, path: str) -> None:
        """Raise ``SinkMoved`` if files are in flight: no checkpoint holds copies of the files of a table. ``path`` is the empty table."""
        for state, edge in self._edges:
            if edge.in_flight:
                raise SinkMoved(
                    f"query '{self._upstream}' would begin in {path}, which is empty. '{state.uid}' had yet to read"
                    f" {plural(len(edge.in_flight), 'file')} of '{self._upstream}' in {edge.path}, and no savepoint holds copies of a table."
                    " Nothing was started. Start from a savepoint of a stop with --drain, or from an aligned checkpoint"
                )

    def refuse_another_sink(self, before: str | None, now: str | None) -> None:
        """Raise ``WrongUse`` if the query goes on and writes elsewhere ``now``: its readers would not find the rows there that they have
        yet to read.
        """
        if self._edges and before != now:
            readers = " and ".join(f"'{state.uid}'" for state, _ in self._edges)
            raise WrongUse(
                f"query '{self._upstream}' has written to {before}, where {readers} may have rows to read. Now it writes to {now}. The query"
                " was not started. Write to the same path, or start another job_id from a savepoint"
            )

    def refuse_elsewhere(self, path: str) -> None:
        """Raise ``SinkMoved`` if files are in flight, and the query goes back to the checkpoint and writes to another ``path`` now."""
        if any(edge.in_flight for _, edge in self._edges):
            readers = " and ".join(f"'{state.uid}'" for state, _ in self._edges)
            raise SinkMoved(
                f"query '{self._upstream}' goes back to an unaligned checkpoint: {readers} had yet to read some of its files, and would not find"
                f" them in {path}, which is empty. The query was not started. Write to {self._edges[0][1].path}, or start another job_id"
                " from a savepoint"
            )


@dataclass(frozen=True)
class Move:
    """A file source whose files lie elsewhere now: the number of its folder, and the old and the new path, encoded as in Spark's logs."""

    folder: int
    old: str
    new: str

    def carry_out(self, own: Location) -> None:
        """Let the log of the source in a location name its files at the new path. Raises ``Damaged``.

        The entries get the current time, as the copies there have. Else the source would forget files that are older than its
        ``maxFileAge``, and would read the copies of such files that were made for another query.
        """
        now = round(time.time() * 1000)
        prefix = f"{self.old}/"
        for listed in own.store.list(own.key_of(f"sources/{self.folder}")):
            files = source_entry(own, listed.key.removeprefix(f"{own.key}/"))
            for file in files:
                if (path := ONE_SLASH.sub("file:///", file["path"])).startswith(prefix):
                    file |= {"path": f"{self.new}/{path.removeprefix(prefix)}", "timestamp": now}
            body = "\n".join((HEADER, *map(json.dumps, files))).encode()
            own.store.assemble(listed.key, pieces(BytesIO(body).read))


def bring(sink: SinkLog, copies: Mapping[str, Location]) -> list[SinkFile]:
    """Copy files in flight into a sink. Return them as its log names them. May be repeated. Raises ``Damaged`` for a path outside of it."""
    return [sink.copy_in(spark_uri(place.store, place.key_of(copy_of(name))), name) for name, place in copies.items()]
