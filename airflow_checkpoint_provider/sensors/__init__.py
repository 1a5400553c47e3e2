"""Sensors for checkpoints that tasks drive, and for those that a job makes by itself. Runs in Airflow (DAG processor, worker)."""

from airflow_checkpoint_provider.sensors.checkpoint import CheckpointAcknowledgedSensor
from airflow_checkpoint_provider.sensors.completed import CheckpointCompletedSensor

__all__ = ["CheckpointAcknowledgedSensor", "CheckpointCompletedSensor"]
