"""Notifications about the tasks of jobs. Runs in Airflow (DAG processor, worker)."""

from airflow_checkpoint_provider.notifications.checkpoint import CheckpointNotifier

__all__ = ["CheckpointNotifier"]
