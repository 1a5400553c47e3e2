"""One folder, one query: refuses a second query that writes to a folder, or one that reads its own. Runs in the Spark driver.

The log of a file sink counts batches, but does not know their query. If two queries write batch 7 there, one of the two batches is silently
left out. Tables count the batches of each query by its id, so queries may share a table.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from airflow_checkpoint_provider.errors import SinkTaken
from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.query_details import DELTA, FILE_SINKS, ICEBERG
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.spark.queries.sinks.base import StreamSink
from airflow_checkpoint_provider.spark.queries.sources.sources import Source

_PARTS = re.compile(r"([a-z][a-z0-9+.-]*):(?://([^/]*))?(/.*)", re.IGNORECASE | re.DOTALL)
_S3 = ("s3", "s3a", "s3n")
_WHY = "Both would count their batches in the log of that folder, which takes each number once, so rows of one would be lost"


def same_folder(one: str, other: str) -> bool:
    """Return whether two paths, as ``spelled`` spells them, are one folder: also by a symbolic link or another name of a file system on
    this host, by another scheme of S3, and with the port that is HDFS's own.
    """
    if _resolved(one) == _resolved(other):
        return True
    if not (one.startswith("file:/") and other.startswith("file:/")):
        return False
    with contextlib.suppress(OSError):  # one of them is not there yet
        return os.path.samefile(_local(one), _local(other))
    return False


def _resolved(path: str) -> str:
    parts = _PARTS.fullmatch(path)
    if parts is None:  # a table of a catalog
        return path
    scheme, authority, below = parts[1].lower(), (parts[2] or "").lower(), parts[3].rstrip("/")
    if scheme == "file":
        return f"file:{os.path.realpath(below or '/')}"
    return f"{'s3' if scheme in _S3 else scheme}://{authority.removesuffix(':8020')}{below}"


def _local(path: str) -> str:
    return path.removeprefix("file:")


def refuse_own_rows(uid: str, sink: StreamSink, sources: Sequence[Source]) -> None:
    """Raise ``SinkTaken`` for a query that reads the folder to which it writes files. When it starts again, Spark's log is there, and
    the source reads only what the log names.
    """
    if sink.target.format in FILE_SINKS and sink.path:
        for source in sources:
            if same_folder(source.path, sink.path):
                raise SinkTaken(
                    f"query '{uid}' reads {source.path} and writes to it. From its next start on, Spark would read only the files that"
                    " the query has written, and files that others put there would be lost. Nothing was started. Write to another folder"
                )


def refuse_second_writer(uid: str, sink: StreamSink, started: Mapping[str, StreamSink]) -> None:
    """Raise ``SinkTaken`` if a query that is ``started`` writes to the folder of ``sink``."""
    for other, its in started.items():
        shared = sink.path and its.path and same_folder(sink.path, its.path)
        if shared and not (_counts_by_id(sink) and _counts_by_id(its)):
            raise SinkTaken(
                f"query '{uid}' would write to {sink.path}, where query '{other}' of this job writes{also_spelled(its.path, sink.path)}. {_WHY}."
                f" '{uid}' was not started. Write .option(\"path\", ...) of another folder, or let one query write the union of both"
            )


def refuse_path_of_another(
    uid: str, sink: StreamSink, started: Mapping[str, StreamSink], state: State, restored: Mapping[str, StateSnapshot]
) -> None:
    """Raise ``SinkTaken`` if a query of the job that is not ``started`` has written to the folder of ``sink``: the script may start it
    later. ``restored``: the states of the newest checkpoint.
    """
    if sink.path is None or _counts_by_id(sink):
        return
    for other in not_started(uid, started, state, restored):
        if other.path and same_folder(sink.path, other.path):
            raise SinkTaken(
                f"query '{uid}' would write to {sink.path}, where query {other.wrote}{also_spelled(other.path, sink.path)}. {_WHY}."
                f" '{uid}' was not started. Write .option(\"path\", ...) of another folder. {_ways_out(uid, other.uid, state)}"
            )


def _counts_by_id(sink: StreamSink) -> bool:
    return sink.target.format in (DELTA, ICEBERG)


@dataclass(frozen=True)
class NotStarted:
    """A query of the job that this attempt has not started: the path and the format to which it has written, as far as they are known."""

    uid: str
    path: str | None
    format: str | None
    what: str

    @property
    def wrote(self) -> str:
        """Say what it did where it wrote."""
        return f"'{self.uid}' of this job {self.what}"


def not_started(
    uid: str, started: Mapping[str, StreamSink], state: State, restored: Mapping[str, StateSnapshot]
) -> Iterator[NotStarted]:
    """Yield the queries of the job, of the newest checkpoint and those that were released, except for ``uid`` and the ``started`` ones."""
    return (one for one in _of_job(state, restored) if one.uid != uid and one.uid not in started)


def _of_job(state: State, restored: Mapping[str, StateSnapshot]) -> Iterator[NotStarted]:
    for query in state.queries:
        newest = query.newest
        yield NotStarted(query.uid, newest.sink, newest.format, "has written; it is not started yet")
    for released in state.released:
        wrote = f"wrote before it was released to {released.to}; it may still do"
        path, format_ = (
            (released.locations[-1].sink, released.locations[-1].format) if released.locations else (None, None)
        )
        yield NotStarted(released.uid, path, format_, wrote)
    known = {query.uid for query in state.queries}
    for uid, snapshot in restored.items():
        if snapshot.query and uid not in known:
            path, format_ = snapshot.query.path, snapshot.query.sink
            yield NotStarted(uid, path, format_, "has written by the checkpoint; it is not started yet")


def also_spelled(path: str | None, ours: str | None) -> str:
    """Name the other spelling of a path."""
    return "" if path == ours else f" ({path})"


def _ways_out(uid: str, other: str, state: State) -> str:
    if state.released_query(other):
        return f"Or take '{other}' over again, under its name"
    moved = f"If '{other}' writes elsewhere now, start it before '{uid}'"
    if state.query(uid):
        return moved
    restore = wording.restore(state, "latest", "--rename", f"{other}={uid}")
    return f"{moved}. If '{uid}' is its new name: `{restore}`"
