"""Task groups: several steps in one line. Runs in Airflow (DAG processor)."""

from airflow_checkpoint_provider.task_groups.lifecycle import checkpoint

__all__ = ["checkpoint"]
