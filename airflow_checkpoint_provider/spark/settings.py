"""Settings of the driver: from its task in Spark confs, or, without Airflow, from its script. Runs in the Spark driver."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.coordinator.assignment import Allowed, check_allowance
from airflow_checkpoint_provider.errors import InvalidName
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.handover import LaunchPlace, LaunchSettings
from airflow_checkpoint_provider.protocol.keys import History, check_job_id
from airflow_checkpoint_provider.storage import S3Settings, Store, open_store, s3_credentials

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALONE_ROOT = "checkpoints"

_keys: dict[str, str] = {}  # S3 keys of this process's launch, by the name of their environment variable


@dataclass(frozen=True)
class Settings:
    """The settings of one driver. ``launch`` and ``token`` are None for a script without Airflow."""

    root: str
    job: str
    prefix: str  # of the history, below the root
    config: CheckpointConfig
    launch: int | None = None
    token: Token | None = None
    try_number: int = 1
    restore: str = "latest"
    allow_non_restored_state: Allowed = False
    s3: S3Settings | None = None  # how to reach a root in S3; None: boto3's own defaults
    notes: tuple[str, ...] = ()  # which source won, for the log


@dataclass(frozen=True)
class Launched:
    """Where the task that launched this driver reads its refusal: store, key of the history, number of the launch."""

    store: Store
    prefix: str
    number: int


def launched(spark: SparkSession) -> Launched | None:
    """Return where the task reads a refusal; None for a script without Airflow."""
    place = LaunchPlace.from_confs(_confs(spark))
    if place is None:
        return None
    store = open_store(place.root, s3=s3_credentials.received(place.s3, take_keys(spark)))
    return Launched(store, place.history, place.launch)


def take_keys(spark: SparkSession) -> Mapping[str, str]:
    """Remove the keys that the task handed over from the environment, and return them: child processes would inherit them.

    The JVM has them, too, and starts the Python workers of a local master. The keys of those workers are overwritten.
    """
    _keys.update({name: os.environ.pop(name) for name in s3_credentials.KEYS.values() if name in os.environ})
    spark.sparkContext.environment.update(dict.fromkeys(_keys, ""))
    return _keys


def _confs(spark: SparkSession) -> dict[str, str]:
    return dict(spark.sparkContext.getConf().getAll())


def settings_of(
    spark: SparkSession,
    *,
    job_id: str | None,
    root: str | None,
    checkpointing: CheckpointConfig | None,
    restore: str,
    allow_non_restored_state: bool | Sequence[str],
) -> Settings:
    """Return the task's settings, else the script's. ``notes`` say which of the script's settings are not used.

    Raises ``InvalidName`` if task and script give different job ids.
    """
    task = LaunchSettings.from_confs(_confs(spark))
    if task is None:
        alone = _alone(job_id, root, checkpointing, restore)
        return replace(alone, allow_non_restored_state=check_allowance(allow_non_restored_state))
    if job_id is not None and job_id != task.job:
        raise InvalidName(
            f"CheckpointedJob(job_id={job_id!r}) differs from the task's job id {task.job!r}. Leave job_id out of the script"
        )
    unused = {
        "root": root,
        "checkpointing": checkpointing and task.checkpointing,
        "allow_non_restored_state": allow_non_restored_state and task.allow_non_restored_state,
    }
    return Settings(
        root=task.root,
        job=task.job,
        prefix=task.history,
        config=task.checkpointing or checkpointing or CheckpointConfig(),
        launch=task.launch,
        token=task.token,
        try_number=task.try_number,
        notes=tuple(f"{name} of the task is used, not {name} of the script" for name, value in unused.items() if value),
        allow_non_restored_state=task.allow_non_restored_state or check_allowance(allow_non_restored_state),
        s3=s3_credentials.received(task.s3, take_keys(spark)),
    )


def _alone(job_id: str | None, root: str | None, checkpointing: CheckpointConfig | None, restore: str) -> Settings:
    job = check_job_id(job_id if job_id is not None else script().stem)
    where = root or str(Path(ALONE_ROOT).absolute())
    return Settings(
        root=where, job=job, prefix=History(job).prefix, config=checkpointing or CheckpointConfig(), restore=restore
    )


def script() -> Path:
    """Return the main script of this process."""
    return Path(sys.argv[0] or "job").absolute()
