"""The runtime in the driver: what a job imports. Runs in the Spark driver; never imports Airflow."""

from airflow_checkpoint_provider.spark import versions  # noqa: F401 - first: it refuses a PySpark that is too old for the others
from airflow_checkpoint_provider.spark.job import CheckpointedJob
from airflow_checkpoint_provider.spark.job_run import CheckpointRef
from airflow_checkpoint_provider.spark.loops.frame import Frame
from airflow_checkpoint_provider.spark.loops.keyed import KeyedState
from airflow_checkpoint_provider.spark.open_checkpoint import OpenedCheckpoint, open_checkpoint
from airflow_checkpoint_provider.spark.queries.query import Query
from airflow_checkpoint_provider.spark.queries.sinks.batch import batch_sink
from airflow_checkpoint_provider.spark.sinks.base import OpenSink, Prepared, Sink, SinkContext
from airflow_checkpoint_provider.spark.sinks.delta import DeltaSink
from airflow_checkpoint_provider.spark.sinks.files import FileSink, read_sink
from airflow_checkpoint_provider.spark.sinks.iceberg import IcebergSink
from airflow_checkpoint_provider.spark.sinks.jdbc import JdbcSink
from airflow_checkpoint_provider.spark.sinks.writer import SinkWriter
from airflow_checkpoint_provider.spark.state.registered import (
    CheckpointedObject,
    InitializationContext,
    SnapshotContext,
)
from airflow_checkpoint_provider.spark.state.value import Value

__all__ = [
    "CheckpointRef",
    "CheckpointedJob",
    "CheckpointedObject",
    "DeltaSink",
    "FileSink",
    "Frame",
    "IcebergSink",
    "InitializationContext",
    "JdbcSink",
    "KeyedState",
    "OpenSink",
    "OpenedCheckpoint",
    "Prepared",
    "Query",
    "Sink",
    "SinkContext",
    "SinkWriter",
    "SnapshotContext",
    "Value",
    "batch_sink",
    "open_checkpoint",
    "read_sink",
]
