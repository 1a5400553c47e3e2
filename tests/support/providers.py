"""Providers of Airflow that the tests' own environment lacks: uv brings each into one of its own, on first use. Runs on Linux.

    def test_step(amazon: Environment) -> None:  # a fixture of tests/integration/services/conftest.py
        ended = amazon.run("airflow.providers.amazon.aws.operators.emr:EmrAddStepsOperator", {...}, {"AIRFLOW_CONN_...": ...})

An environment has all that the tests' own has, and a provider with its requirements: ``tests/providers/NAME.txt``, which ``make lock``
writes. uv links files from its cache, so the second one takes seconds and little room.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.drivers import ROOT, environment, started

FOLDER = ROOT / ".providers"
INSTALLATION = 1200  # seconds
CALL = 600  # seconds for one task
UV = str(Path(sys.executable).with_name("uv"))


@dataclass(frozen=True)
class Task:
    """How a task ended: its exit code, what it returned (if it did), and what it said."""

    code: int
    log: str

    @property
    def result(self) -> Any:
        return json.loads(self.log.rpartition("RETURNED ")[2].splitlines()[0])


@dataclass(frozen=True)
class Environment:
    python: str

    def run(
        self, operator: str, arguments: Mapping[str, Any], variables: Mapping[str, str], *, try_number: int = 1
    ) -> Task:
        """Run a task of an operator, ``module:Class``, as a process of its own. ``variables`` have Airflow's connections."""
        ended = subprocess.run(
            self._command(operator, arguments, try_number), cwd=ROOT, env=environment(**variables), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=CALL, check=False,
        )  # fmt: skip
        return Task(ended.returncode, ended.stdout)

    @contextmanager
    def running(
        self,
        operator: str,
        arguments: Mapping[str, Any],
        variables: Mapping[str, str],
        log: Path,
        *,
        try_number: int = 1,
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Start a task. SIGTERM lets it call ``on_kill``, as Airflow does; SIGKILL is a lost worker."""
        with started(self._command(operator, arguments, try_number), log, **variables) as process:
            yield process

    def _command(self, operator: str, arguments: Mapping[str, Any], try_number: int) -> list[str]:
        return [self.python, "-m", "tests.support.task_process", operator, json.dumps(arguments), str(try_number)]


def environment_with(provider: str) -> Environment:
    """Return the environment that has a provider, made on first use."""
    folder = FOLDER / provider
    pinned = [str(ROOT / "requirements.lock"), str(ROOT / "tests" / "providers" / f"{provider}.txt")]
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several workers, one makes one at a time
        made, wanted = folder / "complete", "".join(Path(file).read_text() for file in pinned)
        if not made.exists() or made.read_text() != wanted:
            _uv("venv", "--clear", "--python", os.path.realpath(sys.executable), str(folder))
            install = ("pip", "install", "--no-deps", "--python", str(folder / "bin" / "python"))
            _uv(*install, "--require-hashes", "-r", pinned[0], "-r", pinned[1])
            _uv(*install, "--no-build-isolation", "-e", str(ROOT))
            made.write_text(wanted)
    return Environment(str(folder / "bin" / "python"))


def _uv(*words: str) -> None:
    subprocess.run([UV, *words, "--quiet"], check=True, timeout=INSTALLATION, stdin=subprocess.DEVNULL)
