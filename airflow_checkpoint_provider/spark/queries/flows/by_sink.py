"""The flow between two queries, by the sink of the upstream. Runs in the Spark driver."""

from __future__ import annotations

from airflow_checkpoint_provider.spark.queries.flows.delta import DeltaFlow
from airflow_checkpoint_provider.spark.queries.flows.files import FileFlow
from airflow_checkpoint_provider.spark.queries.flows.flow import Flow
from airflow_checkpoint_provider.spark.queries.running import RunningQuery
from airflow_checkpoint_provider.spark.queries.sinks.delta import DeltaStreamSink
from airflow_checkpoint_provider.spark.queries.sinks.files import FileStreamSink


def flow_between(upstream: RunningQuery, downstream: RunningQuery) -> Flow:
    """Return the flow between two queries. ``edges.upstreams`` has refused any other sink."""
    sink = upstream.sink
    if isinstance(sink, DeltaStreamSink):
        return DeltaFlow(upstream, downstream, sink)
    assert isinstance(sink, FileStreamSink)
    return FileFlow(upstream, downstream, sink)
