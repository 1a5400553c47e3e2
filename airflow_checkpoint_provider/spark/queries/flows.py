"""What runs between two queries, by the sink of the one that writes. Runs in the Spark driver."""

from __future__ import annotations

from airflow_checkpoint_provider.spark.queries.delta_flow import DeltaFlow
from airflow_checkpoint_provider.spark.queries.delta_sink import DeltaSink
from airflow_checkpoint_provider.spark.queries.file_flow import FileFlow
from airflow_checkpoint_provider.spark.queries.file_sink import FileSink
from airflow_checkpoint_provider.spark.queries.flow import Flow
from airflow_checkpoint_provider.spark.queries.running import RunningQuery


def flow_between(upstream: RunningQuery, downstream: RunningQuery) -> Flow:
    """Return what runs between two queries. ``edges.upstreams`` has refused any other sink."""
    sink = upstream.sink
    if isinstance(sink, DeltaSink):
        return DeltaFlow(upstream, downstream, sink)
    assert isinstance(sink, FileSink)
    return FileFlow(upstream, downstream, sink)
