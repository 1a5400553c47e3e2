"""The queries whose rows a streaming query reads, as ``after`` names them. Runs in the Spark driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.errors import NotSupportedYet, WrongUse
from airflow_checkpoint_provider.protocol.query_details import ICEBERG
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.queries.sinks.base import StreamSink
from airflow_checkpoint_provider.spark.queries.sources.sources import Source, path_sources
from airflow_checkpoint_provider.text import query_messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def upstreams(
    spark: SparkSession, uid: str, writer: DataStreamWriter, after: Sequence[str], sinks: Mapping[str, StreamSink]
) -> dict[str, list[Source]]:
    """Return the sources with which the query reads each query that ``after`` names. ``sinks`` are those of the started queries.

    Raises ``WrongUse`` and ``NotSupportedYet``.
    """
    sources = path_sources(spark, writer) if sinks else []  # else no query is started that it could read
    found = {upstream: _read_of(uid, upstream, sources, sinks) for upstream in after}
    for upstream, sink in sinks.items():
        if upstream not in after and any(source.path == sink.path for source in sources):
            say(query_messages.not_in_after(uid, upstream))
    return found


def _read_of(uid: str, upstream: str, sources: Sequence[Source], sinks: Mapping[str, StreamSink]) -> list[Source]:
    if upstream not in sinks:
        raise WrongUse(
            f"query '{uid}' is to read what '{upstream}' writes, which is not started. Start '{upstream}' first"
        )
    sink = sinks[upstream]
    if sink.path is None or sink.target.format == ICEBERG:
        raise NotSupportedYet(
            f"query '{uid}' is to read what '{upstream}' writes to {sink.target.format}. Nobody can tell what it has read of that:"
            " only files and Delta tables are known. Leave after= out"
        )
    found = [source for source in sources if source.path == sink.path]
    if leaves_out := next((source.leaves_out for source in found if source.leaves_out), None):
        raise NotSupportedYet(
            f"query '{uid}' reads what '{upstream}' writes with the option {leaves_out}, so nobody can tell what it has yet to read. Filter"
            " the rows instead, or leave after= out"
        )
    if not found:
        reads = ", ".join(source.path for source in sources) or "no path"
        raise WrongUse(
            f"query '{uid}' reads {reads}, and '{upstream}' writes to {sink.path}. Read that path, or leave after= out"
        )
    return found
