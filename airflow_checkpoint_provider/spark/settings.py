"""How a launch reaches the driver: Spark confs ``spark.checkpointed.*``, or nothing, then the script runs alone. Runs in the Spark driver."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_checkpoint_provider import __version__
from airflow_checkpoint_provider.coordinator.assignment import Allowed, allowance
from airflow_checkpoint_provider.errors import InvalidName, VersionMismatch
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.keys import History, check_job_id
from airflow_checkpoint_provider.storage import S3Settings, Store, open_store, s3_handover

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX = "spark.checkpointed."
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
    """None for a script without Airflow."""
    confs = _confs(spark)
    if "launch" not in confs:
        return None
    store = open_store(confs["root"], s3=s3_handover.received(confs, take_keys(spark)))
    return Launched(store, confs["history"], int(confs["launch"]))


def take_keys(spark: SparkSession) -> Mapping[str, str]:
    """The keys that the task handed over: taken out of the environment, which all that this process starts inherits.

    The JVM has it, too, and the Python workers of a local master are its children: theirs is overwritten.
    """
    _keys.update({name: os.environ.pop(name) for name in s3_handover.KEYS.values() if name in os.environ})
    spark.sparkContext.environment.update(dict.fromkeys(_keys, ""))
    return _keys


def _confs(spark: SparkSession) -> dict[str, str]:
    everything = spark.sparkContext.getConf().getAll()
    return {key.removeprefix(PREFIX): value for key, value in everything if key.startswith(PREFIX)}


def settings_of(
    spark: SparkSession,
    *,
    job_id: str | None,
    root: str | None,
    checkpointing: CheckpointConfig | None,
    restore: str,
    allow_non_restored_state: bool | Sequence[str],
) -> Settings:
    """Confs win over arguments, and the log names the source; two different job ids are refused."""
    confs = _confs(spark)
    if "launch" not in confs:
        alone = _alone(job_id, root, checkpointing, restore)
        return replace(alone, allow_non_restored_state=allowance(allow_non_restored_state))
    _refuse_others(confs, job_id)
    task = json.loads(confs["task"])
    config = (
        CheckpointConfig.from_json(json.loads(confs["checkpointing"])) if "checkpointing" in confs else checkpointing
    )
    allowed = allow_non_restored_state
    if "allow_non_restored_state" in confs:
        allowed = json.loads(confs["allow_non_restored_state"])
    mine = {"root": root, "checkpointing": checkpointing, "allow_non_restored_state": allow_non_restored_state}
    notes = [
        f"{name} is the task's; the script's is not used" for name, given in mine.items() if given and name in confs
    ]
    return Settings(
        root=confs["root"], job=confs["job"], prefix=confs["history"], config=config or CheckpointConfig(), launch=int(confs["launch"]),
        token=Token.from_json(task["token"]), try_number=task["try"], notes=tuple(notes),
        allow_non_restored_state=allowance(allowed), s3=s3_handover.received(confs, take_keys(spark)),
    )  # fmt: skip


def _refuse_others(confs: Mapping[str, str], job_id: str | None) -> None:
    """Another version of the package, or another job."""
    if confs.get("version") != __version__:
        raise VersionMismatch(
            f"Airflow launched this driver with version {confs.get('version')} of the package, the driver has {__version__}:"
            " install one version on both sides, or leave the package out of the driver's image, since it travels with the job"
        )
    if job_id is not None and job_id != confs["job"]:
        raise InvalidName(
            f"CheckpointedJob(job_id={job_id!r}), but the task's job id is {confs['job']!r}: leave it out of the script"
        )


def _alone(job_id: str | None, root: str | None, checkpointing: CheckpointConfig | None, restore: str) -> Settings:
    job = check_job_id(job_id if job_id is not None else script().stem)
    where = root or str(Path(ALONE_ROOT).absolute())
    return Settings(
        root=where, job=job, prefix=History(job).prefix, config=checkpointing or CheckpointConfig(), restore=restore
    )


def script() -> Path:
    """The main script of this process."""
    return Path(sys.argv[0] or "job").absolute()
