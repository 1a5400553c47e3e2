"""Retry policies for the tasks of jobs. Runs in Airflow (DAG processor, worker)."""

from airflow_checkpoint_provider.retry_policies.checkpoint import CheckpointRetryPolicy

__all__ = ["CheckpointRetryPolicy"]
