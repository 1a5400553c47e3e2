"""The public face: configuration, retention policies and errors, for authors of DAGs and jobs. Runs anywhere."""

from airflow_checkpoint_provider.errors import (
    CheckpointError,
    CheckpointNotFound,
    CommitStateUnknown,
    Damaged,
    JobAlreadyRunning,
    JobSuspended,
    StateRequired,
    StoreDenied,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
    Superseded,
)
from airflow_checkpoint_provider.policies.retention import KeepAll, KeepLatest, KeepWithin
from airflow_checkpoint_provider.protocol.config import CheckpointConfig

__all__ = [
    "CheckpointConfig",
    "CheckpointError",
    "CheckpointNotFound",
    "CommitStateUnknown",
    "Damaged",
    "JobAlreadyRunning",
    "JobSuspended",
    "KeepAll",
    "KeepLatest",
    "KeepWithin",
    "StateRequired",
    "StoreDenied",
    "StoreError",
    "StoreMisconfigured",
    "StoreUnavailable",
    "Superseded",
]
