"""Settings of the driver: from its task in Spark confs, or, without Airflow, from its script. Runs in the Spark driver."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.coordinator.assignment import AllowanceOption, Allowed, check_allowance
from airflow_checkpoint_provider.errors import InvalidConfig, InvalidName, WrongUse
from airflow_checkpoint_provider.policies.retention import retention_from_json
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.handover import (
    LAUNCH_VARIABLE,
    PREFIX,
    LaunchReference,
    LaunchSettings,
    handed_over,
)
from airflow_checkpoint_provider.protocol.keys import History, check_job_id
from airflow_checkpoint_provider.spark.java_classes import java_class
from airflow_checkpoint_provider.storage import S3Settings, Store, open_store, s3_credentials
from airflow_checkpoint_provider.text import state_messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALONE_ROOT = "checkpoints"
ALONE_CONFS = ("root", "job", "restore", "checkpointing")  # below PREFIX, for a script without Airflow

_taken: dict[str, str] = {}  # what the launch of this process has left in its environment, by the name of the variable


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
    savepoint_roots: tuple[str, ...] | None = None  # of the connection
    notes: tuple[str, ...] = ()  # which source won, for the log

    def open_store(self) -> Store:
        """Return the store at the root. Nothing is read or written yet."""
        return open_store(self.root, s3=self.s3, savepoint_roots=self.savepoint_roots)


@dataclass(frozen=True)
class Launched:
    """Where the task that launched this driver reads its refusal: store, key of the history, number of the launch."""

    store: Store
    prefix: str
    number: int


def launched(spark: SparkSession) -> Launched | None:
    """Return where the task reads a refusal; None for a script without Airflow."""
    reference = LaunchReference.from_confs(launch_confs(spark))
    if reference is None:
        return None
    s3 = s3_credentials.received(reference.s3, take_variables(spark))
    store = open_store(reference.root, s3=s3, savepoint_roots=reference.savepoint_roots)
    return Launched(store, reference.history, reference.launch)


def take_variables(spark: SparkSession) -> Mapping[str, str]:
    """Remove from the environment the keys and the launch that the task handed over, and return them: child processes would inherit them.

    The JVM has them, too, and starts the Python workers of a local master. The variables of those workers are overwritten.
    """
    names = (*s3_credentials.KEYS.values(), LAUNCH_VARIABLE)
    _taken.update({name: os.environ.pop(name) for name in names if name in os.environ})
    spark.sparkContext.environment.update(dict.fromkeys(_taken, ""))
    return _taken


def launch_confs(spark: SparkSession) -> dict[str, str]:
    """Return the Spark confs with those that the task handed over in the environment. Raise ``InvalidConfig`` if they do not fit."""
    return handed_over(spark_confs(spark), take_variables(spark).get(LAUNCH_VARIABLE))


def spark_confs(spark: SparkSession) -> dict[str, str]:
    """Return the confs of the session's SparkContext."""
    # One question to the JVM. ``getAll()`` of PySpark asks three for each conf.
    confs = spark.sparkContext._conf._jconf.getAll()  # type: ignore[union-attr]
    text: str = java_class(spark, "scala.collection.immutable.ArraySeq").unsafeWrapArray(confs).mkString("\0")
    pairs = (pair.removeprefix("(").removesuffix(")").partition(",") for pair in text.split("\0"))
    return {name: value for name, _, value in pairs}


def settings_of(
    spark: SparkSession,
    *,
    job_id: str | None,
    root: str | None,
    checkpointing: CheckpointConfig | None,
    restore: str,
    allow_non_restored_state: AllowanceOption,
) -> Settings:
    """Return the task's settings, else the script's. ``notes`` say which of the script's settings are not used.

    Raises ``InvalidName`` if task and script give different job ids.
    """
    confs = launch_confs(spark)
    task = LaunchSettings.from_confs(confs)
    if task is None:
        alone = settings_alone(confs, script(), job_id, root, checkpointing, restore)
        return replace(alone, allow_non_restored_state=check_allowance(allow_non_restored_state))
    settings = _settings_of_task(task, job_id, root, checkpointing, allow_non_restored_state)
    return replace(settings, s3=s3_credentials.received(task.s3, take_variables(spark)))


def _settings_of_task(
    task: LaunchSettings,
    job_id: str | None,
    root: str | None,
    checkpointing: CheckpointConfig | None,
    allow_non_restored_state: AllowanceOption,
) -> Settings:
    """Return the settings of the task that launched this driver, without those for S3."""
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
        restore=task.restored_from or "latest",
        notes=tuple(f"{name} of the task is used, not {name} of the script" for name, value in unused.items() if value),
        allow_non_restored_state=check_allowance(task.allow_non_restored_state or allow_non_restored_state),
        savepoint_roots=task.savepoint_roots,
    )


def settings_alone(
    confs: Mapping[str, str],
    script: Path | None,
    job_id: str | None,
    root: str | None,
    checkpointing: CheckpointConfig | None,
    restore: str,
) -> Settings:
    """Return the settings of a script without Airflow: those of ``spark-submit --conf``, else the script's own, else defaults.

    ``notes`` name the source of each. Raises ``InvalidName``, ``InvalidConfig``, ``WrongUse``.
    """
    given = _alone_confs(confs)
    job, job_source = _job_alone(given.get("job"), job_id, script)
    folder = str(Path(ALONE_ROOT).absolute())
    where, source = _first((given.get("root"), f"{PREFIX}root"), (root or None, "root="), (folder, "default"))
    config = config_of_conf(given["checkpointing"]) if "checkpointing" in given else checkpointing or CheckpointConfig()
    unused = {"root": root, "checkpointing": checkpointing, "restore": restore != "latest"}
    return Settings(
        root=where,
        job=check_job_id(job),
        prefix=History(job).prefix,
        config=config,
        restore=given.get("restore", restore),
        notes=(
            state_messages.settings_alone(job, job_source, where, source),
            *(f"{name} is {given[name]} ({PREFIX}{name})" for name in ("restore", "checkpointing") if name in given),
            *(
                f"{PREFIX}{name} is used, not {name} of the script"
                for name, own in unused.items()
                if own and name in given
            ),
        ),
    )


def _job_alone(conf: str | None, job_id: str | None, script: Path | None) -> tuple[str, str]:
    """Return the job id and its source. Raises ``InvalidName`` if conf and script differ, and ``WrongUse`` if nothing gives one."""
    if conf and job_id is not None and conf != job_id:
        raise InvalidName(
            f"CheckpointedJob(job_id={job_id!r}) differs from {PREFIX}job={conf!r}. Leave out one of them"
        )
    name = script.stem if script else None
    job, source = _first((conf, f"{PREFIX}job"), (job_id, "job_id="), (name, "the script's name"))
    if not source:
        raise WrongUse(
            "a program without a file (a notebook, a REPL, -c or standard input) has no name that its job could take."
            ' Write CheckpointedJob(job_id="...")'
        )
    return job, source


def _first(*candidates: tuple[str | None, str]) -> tuple[str, str]:
    """Return the first value that is given, with its source; empty texts if none is."""
    return next(((value, source) for value, source in candidates if value is not None), ("", ""))


def _alone_confs(confs: Mapping[str, str]) -> dict[str, str]:
    """Return the confs of this package that are set, without their prefix. Raises ``InvalidConfig`` for one that has no effect."""
    given = {name.removeprefix(PREFIX): value for name, value in confs.items() if name.startswith(PREFIX) and value}
    if unknown := sorted(given.keys() - set(ALONE_CONFS)):
        listed = ", ".join(f"{PREFIX}{name}" for name in ALONE_CONFS)
        raise InvalidConfig(
            f"{', '.join(PREFIX + name for name in unknown)}: a script without Airflow knows only {listed}. Remove it from --conf"
        )
    return given


def config_of_conf(text: str) -> CheckpointConfig:
    """Return the configuration in the JSON of a conf, whose keys are the options of ``CheckpointConfig``.

    A key may end with ``_s``, and ``retention`` is an object, as a task writes both. Raises ``InvalidConfig``.
    """
    name = f"{PREFIX}checkpointing"
    try:
        data = json.loads(text)
    except ValueError as error:
        raise InvalidConfig(f"{name}={text!r} is not JSON ({error})") from None
    if not isinstance(data, dict):
        raise InvalidConfig(f'{name}={text!r} is not an object: write {{"timeout": "10 min"}}')
    options: dict[str, Any] = {key.removesuffix("_s"): value for key, value in data.items()}
    if unknown := sorted(options.keys() - {field.name for field in fields(CheckpointConfig)}):
        raise InvalidConfig(f"{name}: {', '.join(unknown)}: CheckpointConfig has no such option")
    if "retention" in options:
        options["retention"] = retention_from_json(options["retention"])
    return CheckpointConfig(**options)


def script() -> Path | None:
    """Return the main script of this process; None for a notebook, a REPL, ``-c`` and standard input."""
    # A notebook has no ``__file__``, though its kernel was started by a file.
    has_file = hasattr(sys.modules["__main__"], "__file__")
    path = Path(sys.argv[0]).absolute() if has_file and sys.argv[0] else None
    return path if path and path.is_file() else None
