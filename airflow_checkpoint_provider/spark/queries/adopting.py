"""The checkpoint location of a query that ran without this package: found, and looked at before it is sealed. Runs in the Spark driver."""

from __future__ import annotations

import re

from airflow_checkpoint_provider.coordinator.query_location import METADATA, NOTHING, OFFSETS, Location, Position
from airflow_checkpoint_provider.coordinator.sealing import newest_batch, poison_in
from airflow_checkpoint_provider.errors import Damaged, NotSupportedYet, WrongUse
from airflow_checkpoint_provider.spark.queries.sink import Sink
from airflow_checkpoint_provider.spark.queries.writer import FORMAT_VERSION
from airflow_checkpoint_provider.storage import LocalStore, Store

_LOCAL = re.compile(r"^file:/+")  # Hadoop writes one slash, a URI has three


def adopted_location(store: Store, uri: str) -> Location:
    """Return the checkpoint location at ``uri``, a path or URI as Spark takes it. ``store`` holds this job's checkpoints.

    Raises ``WrongUse`` for a location that cannot be reached like ``store``, and ``StoreMisconfigured``.
    """
    folder, _, name = _LOCAL.sub("/", uri).rstrip("/").rpartition("/")
    beside = store.beside(folder or "/", limited=False)
    if isinstance(beside, LocalStore) != isinstance(store, LocalStore):
        raise WrongUse(
            f"adopt={uri!r} cannot be reached like {store.uri}, where this job keeps its checkpoints: both must be local, or both in S3."
            " Give the job a root of the same kind"
        )
    return Location(beside, name)


def uri_of(location: Location) -> str:
    """Return the URI of a location, as the journal names it."""
    return f"{location.store.uri}/{location.key}"


def examine_adopted(location: Location, uid: str, incarnation: str, sink: Sink) -> None:
    """Raise an error if the query cannot be taken over from ``location``. Nothing is changed, and it may still run.

    Raises ``WrongUse``, ``NotSupportedYet``, ``Damaged``, and ``SinkMoved``.
    """
    where = uri_of(location)
    if location.store.read(location.name(METADATA)) is None:
        raise WrongUse(
            f"query '{uid}': adopt={where!r} is no checkpointLocation of a query that ran. Nothing was changed"
        )
    begun, _ = newest_batch(location)
    poison = poison_in(location.store.read(location.name(f"{OFFSETS}/{begun + 1}")))
    if poison and (poison.incarnation, poison.uid) != (incarnation, uid):
        raise WrongUse(
            f"query '{uid}': {where} was taken over before, by {poison.by} as query '{poison.uid}'. It goes on there. Nothing was changed"
        )
    if begun != NOTHING:
        _refuse_format(location, begun, uid)
    # The query may have begun the next batch since
    sink.meet(Position(begun + 1, location.committed()), None)


def _refuse_format(location: Location, batch: int, uid: str) -> None:
    """Raise ``NotSupportedYet`` for a state that was written in a format that loses a query whose sink skips a batch."""
    confs = location.offsets(batch).confs
    if not confs:
        raise Damaged(f"{location.name(f'{OFFSETS}/{batch}')} names no confs; Spark writes them since release 2.3")
    version = confs.get(FORMAT_VERSION, "1")
    if version != "1":
        raise NotSupportedYet(
            f"query '{uid}': the state in {uri_of(location)} has format {version} ({FORMAT_VERSION}), with which Spark cannot go on behind a"
            " batch that the sink has. Nothing was changed"
        )
