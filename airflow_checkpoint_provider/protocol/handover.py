"""Settings that a task passes to its Spark driver: confs, exit codes, names that both use. Runs anywhere."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self, TypedDict

from airflow_checkpoint_provider import __version__
from airflow_checkpoint_provider.errors import CheckpointError, InvalidConfig, VersionMismatch
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.records import cut

PREFIX = "spark.checkpointed."
LAUNCH_VARIABLE = "CHECKPOINT_LAUNCH"
"""The environment variable with the confs of a launch as JSON, for an operator that has no Spark confs."""
ARCHIVE_VARIABLE = "CHECKPOINT_ARCHIVE"  # the environment variable with the URI of the runtime's archive, for a command
LINE_MARK = "CHECKPOINT_LINE_MARK"  # the environment variable with the mark before each line of the runtime
_S3 = "s3."


class ExitCode(enum.IntEnum):
    """Exit codes of a driver. In client mode spark-submit passes them on; a cluster may change them."""

    FINISHED = 0
    FAILED = 1
    REFUSED = 3  # for good: a retry cannot mend it
    OVER = 79  # replaced, stopped, suspended, or another driver lives


def job_group(uid: str) -> str:
    """Return the Spark job group of the stage ``uid``."""
    return f"checkpointed-{uid}"


@dataclass(frozen=True, kw_only=True)
class LaunchReference:
    """Where a launch's journal is. A driver of another version can still read it, and record there why it ends.

    ``root`` is a URI, ``history`` the key of the history below it, ``launch`` the launch's number. ``s3`` holds the
    settings of a root in S3 (endpoint, region, ...), without secrets. ``savepoint_roots`` are URIs below which savepoints may
    lie besides the root; None: anywhere.
    """

    root: str
    history: str
    launch: int
    s3: Mapping[str, str] = field(default_factory=dict)
    savepoint_roots: tuple[str, ...] | None = None

    @classmethod
    def from_confs(cls, confs: Mapping[str, str]) -> LaunchReference | None:
        """Return None for a script that no task submitted. Raises ``InvalidConfig`` for confs that no task writes."""
        values = _without_prefix(confs)
        with _as_written():
            return LaunchReference(**_reference(values)) if "launch" in values else None


@dataclass(frozen=True, kw_only=True)
class LaunchSettings(LaunchReference):
    """All settings that a task passes to the driver of its launch. If an option is None or False, the script's own applies."""

    job: str
    token: Token
    try_number: int
    version: str = __version__
    checkpointing: CheckpointConfig | None = None
    allow_non_restored_state: bool | str | Mapping[str, str] = False  # by uid: "keep" or "drop"
    restored_from: str | None = None  # the pointer from elsewhere that the task has verified

    def to_confs(self) -> dict[str, str]:
        """Return the Spark confs, with their prefix. Nothing in them is secret."""
        values = {
            "root": self.root,
            "history": self.history,
            "job": self.job,
            "launch": str(self.launch),
            "task": json.dumps({"token": self.token.to_json(), "try": self.try_number}),
            "version": self.version,
        }
        values |= {f"{_S3}{name}": value for name, value in self.s3.items()}
        if self.savepoint_roots is not None:
            values["savepoint_roots"] = json.dumps(self.savepoint_roots)
        if self.checkpointing is not None:
            values["checkpointing"] = json.dumps(self.checkpointing.to_json())
        if self.allow_non_restored_state:
            values["allow_non_restored_state"] = json.dumps(self.allow_non_restored_state)
        if self.restored_from is not None:
            values["restored_from"] = self.restored_from
        return {f"{PREFIX}{name}": value for name, value in values.items()}

    @classmethod
    def from_confs(cls, confs: Mapping[str, str]) -> Self | None:
        """Return None for a script that no task submitted.

        Raises ``VersionMismatch`` if another version wrote the confs, ``InvalidConfig`` for confs that no task writes.
        """
        values = _without_prefix(confs)
        if "launch" not in values:
            return None
        if values.get("version") != __version__:
            raise VersionMismatch(
                f"Airflow launched this driver with version {values.get('version')} of the package, the driver has {__version__}:"
                " install one version on both sides, or leave the package out of the driver's image, since it travels with the job"
            )
        with _as_written():
            task = json.loads(values["task"])
            checkpointing = json.loads(values.get("checkpointing", "null"))
            return cls(
                **_reference(values),
                job=values["job"],
                token=Token.from_json(task["token"]),
                try_number=task["try"],
                checkpointing=CheckpointConfig.from_json(checkpointing) if checkpointing else None,
                allow_non_restored_state=json.loads(values.get("allow_non_restored_state", "false")),
                restored_from=values.get("restored_from"),
            )


def handed_over(confs: Mapping[str, str], variable: str | None) -> dict[str, str]:
    """Return the driver's Spark confs with those of ``variable``, the value of ``LAUNCH_VARIABLE``; an empty one counts as none.

    Raise ``InvalidConfig`` if the two name different launches, or if no task wrote the variable.
    """
    if not variable:
        return dict(confs)
    with _as_written(f"the environment variable {LAUNCH_VARIABLE}"):
        received = {str(name): value for name, value in json.loads(variable).items()}
        named = tuple(received[f"{PREFIX}{name}"] for name in _LAUNCH)
    own = tuple(confs.get(f"{PREFIX}{name}") for name in _LAUNCH)
    if own[-1] is not None and own != named:
        ours, theirs = (f"launch {launch} of {history}" for _, history, launch in (own, named))
        raise InvalidConfig(
            f"the Spark confs name {ours}, and the environment variable {LAUNCH_VARIABLE} names {theirs}. A task hands its launch over in"
            " one of these ways: remove the variable from the environment in which the driver starts"
        )
    return {**confs, **received}


_LAUNCH = ("root", "history", "launch")  # what names a launch


@contextmanager
def _as_written(where: str = f"the Spark confs {PREFIX}*") -> Iterator[None]:
    """Raise ``InvalidConfig`` for the errors of confs that somebody else wrote."""
    try:
        yield
    except CheckpointError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidConfig(
            f"{where} cannot be read ({cut(repr(error))}). The task that submits the job writes that; remove it from everything else,"
            " such as spark-defaults.conf"
        ) from None


def _without_prefix(confs: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(PREFIX): value for name, value in confs.items() if name.startswith(PREFIX)}


class _Reference(TypedDict):
    root: str
    history: str
    launch: int
    s3: Mapping[str, str]
    savepoint_roots: tuple[str, ...] | None


def _reference(values: Mapping[str, str]) -> _Reference:
    s3 = {name.removeprefix(_S3): value for name, value in values.items() if name.startswith(_S3)}
    roots = json.loads(values.get("savepoint_roots", "null"))
    return {
        "root": values["root"],
        "history": values["history"],
        "launch": int(values["launch"]),
        "s3": s3,
        "savepoint_roots": None if roots is None else tuple(roots),
    }
