"""What a launch hands over to the operator that submits its driver. Runs in Airflow (worker)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.hooks.spark_confs import PY_FILES, confs_in, program_in, split_options
from airflow_checkpoint_provider.operators._parameters import refuse_own_confs
from airflow_checkpoint_provider.protocol.handover import ARCHIVE_VARIABLE, LAUNCH_VARIABLE


@dataclass(frozen=True)
class HandOver:
    """What a launch tells its driver. Nothing in it is secret.

    ``confs`` are Spark confs by name. ``archive`` is the URI or the path of the zip with the driver's part of this package, for
    ``--py-files``; None: the driver's image has the package. The driver takes the confs, or the variables with the same content.
    """

    confs: Mapping[str, str]
    archive: str | None

    @property
    def variables(self) -> dict[str, str]:
        """Return the launch as environment variables of the driver, for an operator that has no Spark confs."""
        archive = {ARCHIVE_VARIABLE: self.archive} if self.archive else {}
        return {LAUNCH_VARIABLE: json.dumps(dict(self.confs)), **archive}

    def with_confs(self, confs: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the operator's Spark confs with those of the launch. Raise ``InvalidConfig`` if they hold confs that only a task writes."""
        refuse_own_confs(confs)
        return {**(confs or {}), **self.confs}

    def with_archive(self, py_files: Sequence[str] | None) -> list[str]:
        """Return the operator's list of Python files with the archive."""
        return [*(py_files or ()), *([self.archive] if self.archive else [])]

    def with_options(self, command: Sequence[Any]) -> list[str]:
        """Return the words of a command that calls ``spark-submit``, with the options of the launch.

        Raise ``InvalidConfig`` if it calls another program, or holds confs that only a task writes.
        """
        words = [str(word) for word in command]
        program = program_in(words)
        if program is None:
            raise InvalidConfig(
                f"the command {' '.join(words[:3])!r}… does not call spark-submit, so its driver cannot be told its launch. Write"
                " spark-submit and its options there"
            )
        before, options, rest = words[: program + 1], *split_options(words[program + 1 :])
        confs = confs_in(options)
        refuse_own_confs(confs)
        files = [confs[PY_FILES]] if confs.get(PY_FILES) else []  # the option replaces this conf
        files += [value for name, value in options if name == "--py-files"]  # the last option counts
        kept = [(name, value) for name, value in options if name != "--py-files"]
        kept += [("--conf", f"{name}={value}") for name, value in self.confs.items()]
        kept += [("--py-files", ",".join(paths))] if (paths := self.with_archive(files[-1:])) else []
        return [*before, *(word for name, value in kept for word in filter(None, (name, value))), *rest]
