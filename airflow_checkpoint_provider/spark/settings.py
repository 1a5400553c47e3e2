"""What the driver is told: by its task in Spark confs, or, without Airflow, by its script. Runs in the Spark driver."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_checkpoint_provider.coordinator.assignment import Allowed, allowance
from airflow_checkpoint_provider.errors import InvalidName
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.handover import LaunchPlace, LaunchSettings
from airflow_checkpoint_provider.protocol.keys import History, check_job_id
from airflow_checkpoint_provider.storage import S3Settings, Store, open_store, s3_credentials

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALONE_ROOT = "checkpoints"

_keys: dict[str, str] = {}  # of this process's launch


@dataclass(frozen=True)
class Settings:
    """``launch`` and ``token`` are None for a script without Airflow."""

    root: str
    job: str
    prefix: str  # of the history, below the root
    config: CheckpointConfig
    launch: int | None = None
    token: Token | None = None
    try_number: int = 1
    restore: str = "latest"
    allow_non_restored_state: Allowed = False
    s3: S3Settings | None = None  # how to reach a root in S3; None: as boto3 does by itself
    notes: tuple[str, ...] = ()  # which source won, for the log


@dataclass(frozen=True)
class Launched:
    """Where the task that launched this driver looks for its last words: store, key of the history, number of the launch."""

    store: Store
    prefix: str
    number: int


def launched(spark: SparkSession) -> Launched | None:
    """Return None for a script without Airflow."""
    place = LaunchPlace.from_confs(_confs(spark))
    if place is None:
        return None
    store = open_store(place.root, s3=s3_credentials.received(place.s3, take_keys(spark)))
    return Launched(store, place.history, place.launch)


def take_keys(spark: SparkSession) -> Mapping[str, str]:
    """Take the keys that the task handed over out of the environment, which all processes started here inherit; return them.

    The JVM has them, too, and the Python workers of a local master are its children: theirs are overwritten.
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
    """Return the task's settings, else the script's; the log names the source. Two different job ids are refused."""
    given = LaunchSettings.from_confs(_confs(spark))
    if given is None:
        alone = _alone(job_id, root, checkpointing, restore)
        return replace(alone, allow_non_restored_state=allowance(allow_non_restored_state))
    if job_id is not None and job_id != given.job:
        raise InvalidName(
            f"CheckpointedJob(job_id={job_id!r}), but the task's job id is {given.job!r}: leave it out of the script"
        )
    unused = {
        "root": root,
        "checkpointing": checkpointing and given.checkpointing,
        "allow_non_restored_state": allow_non_restored_state and given.allow_non_restored_state,
    }
    return Settings(
        root=given.root,
        job=given.job,
        prefix=given.history,
        config=given.checkpointing or checkpointing or CheckpointConfig(),
        launch=given.launch,
        token=given.token,
        try_number=given.try_number,
        notes=tuple(f"{name} is the task's; the script's is not used" for name, value in unused.items() if value),
        allow_non_restored_state=given.allow_non_restored_state or allowance(allow_non_restored_state),
        s3=s3_credentials.received(given.s3, take_keys(spark)),
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
