"""Sensors for checkpoints that tasks trigger, and for checkpoints that a job takes by itself. Runs in Airflow (DAG processor, worker)."""

from airflow_checkpoint_provider.sensors.checkpoint import CheckpointAcknowledgedSensor, CheckpointCompletedSensor

__all__ = ["CheckpointAcknowledgedSensor", "CheckpointCompletedSensor"]
