"""Operators that drive checkpointed Spark jobs. Runs in Airflow (DAG processor, worker)."""

from airflow_checkpoint_provider.operators.lifecycle import (
    AbortCheckpointOperator,
    FinalizeCheckpointOperator,
    NotifyCheckpointCompleteOperator,
)
from airflow_checkpoint_provider.operators.restore import RestoreOperator
from airflow_checkpoint_provider.operators.savepoint import (
    DisposeSavepointOperator,
    StopWithSavepointOperator,
    TriggerSavepointOperator,
)
from airflow_checkpoint_provider.operators.spark_submit import CheckpointedSparkSubmitOperator
from airflow_checkpoint_provider.operators.trigger import TriggerCheckpointOperator

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
