"""Operators that drive checkpointed Spark jobs. Runs in Airflow (DAG processor, worker)."""

from airflow_checkpoint_provider.operators.checkpoint import (
    AbortCheckpointOperator,
    FinalizeCheckpointOperator,
    NotifyCheckpointCompleteOperator,
    TriggerCheckpointOperator,
)
from airflow_checkpoint_provider.operators.restore import RestoreOperator
from airflow_checkpoint_provider.operators.savepoint import (
    DisposeSavepointOperator,
    StopWithSavepointOperator,
    TriggerSavepointOperator,
)
from airflow_checkpoint_provider.operators.spark_submit import CheckpointedSparkSubmitOperator

__all__ = [
    "AbortCheckpointOperator",
    "CheckpointedSparkSubmitOperator",
    "DisposeSavepointOperator",
    "FinalizeCheckpointOperator",
    "NotifyCheckpointCompleteOperator",
    "RestoreOperator",
    "StopWithSavepointOperator",
    "TriggerCheckpointOperator",
    "TriggerSavepointOperator",
]
