"""Sensors for checkpoints on request, for those of a job itself, and for its health. Runs in Airflow (DAG processor, worker)."""

from airflow_checkpoint_provider.sensors.checkpoint import CheckpointAcknowledgedSensor, CheckpointCompletedSensor
from airflow_checkpoint_provider.sensors.health import CheckpointHealthSensor

__all__ = ["CheckpointAcknowledgedSensor", "CheckpointCompletedSensor", "CheckpointHealthSensor"]
