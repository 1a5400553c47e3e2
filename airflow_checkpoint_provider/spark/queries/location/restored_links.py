"""How a restored query was connected to others, and what must change where it starts now. Runs in the Spark driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.errors import SinkMoved
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.query_details import Edge
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.java_classes import hadoop_path
from airflow_checkpoint_provider.spark.queries.location.table_move import TableMove
from airflow_checkpoint_provider.spark.queries.sinks.base import StreamSink
from airflow_checkpoint_provider.spark.queries.sinks.delta import DeltaStreamSink
from airflow_checkpoint_provider.spark.queries.sinks.links import InFlight, Move
from airflow_checkpoint_provider.spark.queries.sinks.sink_log import logged
from airflow_checkpoint_provider.spark.queries.sources.sources import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Links:
    """The files in flight from a restored query, and its sources whose paths have changed."""

    in_flight: InFlight
    moves: tuple[Move | TableMove, ...] = ()


def restored_links(
    spark: SparkSession,
    attempt: Attempt,
    uid: str,
    restored: Mapping[str, StateSnapshot],
    upstreams: Mapping[str, Sequence[Source]],
    sinks: Mapping[str, StreamSink],
) -> Links:
    """Return how the query was connected to others in the checkpoint whose states are ``restored``. ``upstreams``: its sources now that
    read from the ``sinks`` of running queries. Raises ``SinkMoved``.
    """
    query = restored[uid].query if uid in restored else None
    moves = list[Move | TableMove]()
    for edge in query.edges if query else ():
        for source in upstreams.get(edge.upstream, ()):
            sink = sinks[edge.upstream]
            _refuse_apart(uid, edge, source)
            if isinstance(sink, DeltaStreamSink):
                moves.append(TableMove(uid, source.offset, edge, sink))
            elif source.path != edge.path:
                moves.append(Move(source.folder, _logged(spark, edge.path), _logged(spark, source.path)))
    return Links(InFlight(attempt, uid, restored.values()), tuple(moves))


def _refuse_apart(uid: str, edge: Edge, source: Source) -> None:
    """Raise ``SinkMoved`` if the checkpoint does not name the rows that the query has yet to read, and the query reads another path now."""
    if edge.apart and source.path != edge.path:
        raise SinkMoved(
            f"query '{uid}' would read {source.path}. When the checkpoint was taken, '{edge.upstream}' ran and '{uid}' was not started, so"
            f" rows that it has yet to read may be in {edge.path} alone. The query was not started. Start from a checkpoint that was"
            " taken while both ran"
        )


def _logged(spark: SparkSession, folder: str) -> str:
    return logged(hadoop_path(spark, folder))
