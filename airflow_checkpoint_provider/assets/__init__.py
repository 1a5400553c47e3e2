"""Assets whose events are checkpoints. Runs in Airflow (DAG processor, worker)."""

from airflow_checkpoint_provider.assets.checkpoint import checkpoint_asset, triggering_checkpoint

__all__ = ["checkpoint_asset", "triggering_checkpoint"]
