"""The protocol: words, state machine, journal, coordinator, metadata, retention, restore, errors. Runs anywhere.

What is exported here is what authors of DAGs and jobs write; the rest is for this package.
"""

from airflow_checkpoint_provider.checkpoint.config import CheckpointConfig
from airflow_checkpoint_provider.checkpoint.errors import (
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
from airflow_checkpoint_provider.checkpoint.retention import KeepAll, KeepLatest, KeepWithin

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
