"""The runtime in the driver: what a job imports. Runs in the Spark driver; never imports Airflow."""

from airflow_checkpoint_provider.spark.job import CheckpointedJob, CheckpointRef
from airflow_checkpoint_provider.spark.opened import OpenedCheckpoint, open_checkpoint
from airflow_checkpoint_provider.spark.states import Value

__all__ = ["CheckpointRef", "CheckpointedJob", "OpenedCheckpoint", "Value", "open_checkpoint"]
