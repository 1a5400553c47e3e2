"""The sink of a query, by the format that its writer names. Runs in the Spark driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_checkpoint_provider.protocol.query_details import DELTA, FILE_SINKS, ICEBERG
from airflow_checkpoint_provider.spark.queries.sinks.base import StreamSink
from airflow_checkpoint_provider.spark.queries.sinks.delta import DeltaStreamSink
from airflow_checkpoint_provider.spark.queries.sinks.files import FileStreamSink
from airflow_checkpoint_provider.spark.queries.sinks.iceberg import IcebergStreamSink
from airflow_checkpoint_provider.spark.queries.writer import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def sink_of(spark: SparkSession, uid: str, target: Target, writer: DataStreamWriter | None = None) -> StreamSink:
    """Return the sink of a query. Without its ``writer``, the sink is only read."""
    if target.format in FILE_SINKS:
        return FileStreamSink(spark, uid, target)
    if target.format == DELTA:
        return DeltaStreamSink(spark, uid, target, writer)
    if target.format == ICEBERG:
        return IcebergStreamSink(spark, uid, target)
    return StreamSink(uid, target)
