"""The checkpoint location of a query that ran without this package: examined before it is fenced. Runs in the Spark driver."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_checkpoint_provider.errors import Damaged, NotSupportedYet, SinkTaken, WrongUse
from airflow_checkpoint_provider.location.fence import fence_entry_of, reached
from airflow_checkpoint_provider.location.files import (
    METADATA,
    NOTHING,
    OFFSETS,
    Location,
    LocationFiles,
    Position,
    needed_files,
)
from airflow_checkpoint_provider.spark.queries.sinks.base import StreamSink
from airflow_checkpoint_provider.spark.queries.writer import FORMAT_VERSION


def examine_adopted(location: Location, uid: str, incarnation: str, sink: StreamSink) -> None:
    """Raise an error if the query cannot be taken over from ``location``. Changes nothing. The query may still run there.

    Raises ``WrongUse``, ``NotSupportedYet``, ``Damaged``, and ``SinkMoved``.
    """
    where = location.uri
    if location.store.read(location.key_of(METADATA)) is None:
        raise WrongUse(
            f"query '{uid}': adopt={where!r} is not a checkpointLocation of a query that ran. Nothing was changed"
        )
    refuse_fenced(location, uid, incarnation)
    position = reached(location)
    if position.begun != NOTHING:
        _refuse_format(location, position.begun, uid)
    needed_files(LocationFiles(location), position)
    # The query may have begun the next batch since
    sink.check_can_continue(Position(position.begun + 1, location.committed()), ())


def refuse_copy(location: Location, uid: str, others: Mapping[str, Location]) -> None:
    """Raise ``SinkTaken`` if another query of the job has the same Spark id as the query in ``location``.

    Spark runs only one query with an id, and stops the other one without an error. ``others``: the locations of the job's queries.
    """
    query_id = location.query_id()
    for other, its in others.items():
        if query_id and its.query_id() == query_id:
            raise SinkTaken(
                f"query '{uid}': {location.uri} is a copy of a location of query '{other}': both have Spark's id {query_id}. Spark would stop"
                f" '{other}', and a table could not tell their batches apart. Nothing was changed. Leave adopt out, so that '{uid}'"
                " starts from its beginning"
            )


def refuse_fenced(location: Location, uid: str, incarnation: str) -> None:
    """Raise ``WrongUse`` if another query than ``uid`` of this history has fenced the location."""
    entry = fence_entry_of(location)
    if entry and (entry.incarnation, entry.uid) != (incarnation, uid):
        raise WrongUse(
            f"query '{uid}': {location.uri} was taken over by {entry.by} as query '{entry.uid}'. If that job is to give it up,"
            " `checkpoints release` makes a location of its own from it. Nothing was changed"
        )


def _refuse_format(location: Location, batch: int, uid: str) -> None:
    """Raise ``NotSupportedYet`` for offsets and state in formats with which Spark cannot always continue. Spark keeps the format that it
    finds.
    """
    if location.read(f"{OFFSETS}/{batch}").startswith(b"v2\n"):
        raise NotSupportedYet(
            f"query '{uid}': the offsets in {location.uri} have format 2, with which Spark cannot continue in the middle of a batch. Nothing"
            " was changed"
        )
    confs = location.offsets(batch).confs
    if not confs:
        raise Damaged(
            f"{location.key_of(f'{OFFSETS}/{batch}')} names no confs. Spark writes them since release 2.3; run the query once with a newer one"
        )
    version = confs.get(FORMAT_VERSION, "1")
    if version != "1":
        raise NotSupportedYet(
            f"query '{uid}': the state in {location.uri} has format {version} ({FORMAT_VERSION}), with which Spark cannot continue after a"
            " batch that the sink has. Nothing was changed"
        )
