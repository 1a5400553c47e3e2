"""Sensors that wait for checkpoints. Runs in Airflow (DAG processor, worker)."""

from airflow_checkpoint_provider.sensors.checkpoint import CheckpointAcknowledgedSensor

__all__ = ["CheckpointAcknowledgedSensor"]
