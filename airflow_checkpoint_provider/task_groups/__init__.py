"""Task groups: several steps in one line. Runs in Airflow (DAG processor)."""

from airflow_checkpoint_provider.task_groups.checkpoint import CheckpointTaskGroup

__all__ = ["CheckpointTaskGroup"]
