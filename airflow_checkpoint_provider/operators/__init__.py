"""Operators that drive checkpointed Spark jobs. Runs in Airflow (DAG processor, worker)."""

from airflow_checkpoint_provider.operators.spark_submit import CheckpointedSparkSubmitOperator

__all__ = ["CheckpointedSparkSubmitOperator"]
