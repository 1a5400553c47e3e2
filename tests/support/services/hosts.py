"""The machine on which a service runs what it is asked to run. Nothing of the test's environment is there. Runs on Linux.

    with Host(tmp_path / "host") as host, Livy(host) as livy:
        ...

What did not travel with the request is not there by luck: neither a variable, nor this package, which the tests' own environment has.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Self

from tests.support.drivers import fast_confs, quick_jvms
from tests.support.processes import environment, find
from tests.support.runs import CRASH
from tests.support.services.submission import Submission
from tests.support.waiting import wait_until

GRACE = 1.0  # seconds between SIGTERM and SIGKILL
GONE = 60.0  # seconds until killed processes are gone, which take none
PATIENCE = 300.0  # seconds for one driver, which takes ten on an idle machine


class Hosted:
    """A command that runs in a process group and a folder of its own, and writes to a file. It outlives the service."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self.command, self.environment, self.folder = list(command), dict(environment), folder
        self.log = folder / "log"
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(
                self.command, cwd=folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        self._one_at_a_time = RLock()

    @property
    def pid(self) -> int:
        """Return the process id of the command, which is also its process group. Of a driver it is the JVM."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Return the exit code; None until it ended. A signal's is negative."""
        with self._one_at_a_time:
            return self._process.poll()

    @property
    def shell_code(self) -> int | None:
        """Return the exit code as shells and containers say it: 137 after ``kill -9``."""
        code = self.code
        return 128 - code if code is not None and code < 0 else code

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def lines(self) -> list[str]:
        return self.said().splitlines()

    def left(self) -> list[int]:
        """Return the living processes of the group. Its number may be another's by now: they have this host's configuration, too."""
        mark = f"SPARK_CONF_DIR={self.environment['SPARK_CONF_DIR']}"
        return list(find(lambda pid: os.getpgid(pid) == self.pid and mark in environment(pid)))

    def kill(self, sig: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the whole group, as a cluster manager does that ends a container."""
        if self.code is None or self.left():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, sig)

    def end(self, grace: float = GRACE) -> None:
        """Send SIGTERM, after ``grace`` seconds SIGKILL, and wait until nothing of the group lives."""
        self.kill(signal.SIGTERM)
        with suppress(TimeoutError):
            wait_until(lambda: self.code is not None and not self.left(), grace, every=0.05)
        self.kill()
        wait_until(lambda: self.code is not None and not self.left(), GONE, lambda: str(self.left()), every=0.05)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Return the exit code as soon as the command has ended. Raise ``TimeoutError`` with its log after ``seconds``."""
        wait_until(lambda: self.code is not None, seconds, self.said, every=0.05)
        code = self.code
        assert code is not None
        return code

    def wait_for(self, text: str, seconds: float = PATIENCE) -> None:
        """Wait until the log has ``text``. Fail if the command ends without it."""
        wait_until(lambda: text in self.said() or self.code is not None, seconds, self.said, every=0.05)
        assert text in self.said(), self.said()


@dataclass
class Host:
    """``confs`` are the machine's ``spark-defaults.conf``, beside what makes small work quick. ``variables`` are in the environment of
    each process, as an image's are. ``spark_submit`` stands before the words of a submission. ``python`` is that of an environment with another
    release of Spark than the tests' own, from ``tests/support/sparks.py``.

    ``started`` has all that ran here, in its order. At the end nothing of it lives.
    """

    folder: Path
    confs: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    spark_submit: Sequence[str] = ("spark-submit",)
    python: str = ""
    started: list[Hosted] = field(default_factory=list)
    _crashes: list[tuple[str, str]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _over: bool = False
    _one_at_a_time: RLock = field(default_factory=RLock)

    def __post_init__(self) -> None:
        python = self.folder / "bin" / "python3"
        python.parent.mkdir(parents=True)
        python.symlink_to(Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}"))
        defaults = {**fast_confs(self.folder), "spark.log.level": "WARN", **self.confs}
        (self.folder / "conf").mkdir()
        written = "".join(f"{name} {value}\n" for name, value in defaults.items())
        (self.folder / "conf" / "spark-defaults.conf").write_text(written)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._one_at_a_time:
            self._over = True
            for hosted in self.started:
                hosted.end(0)

    @property
    def environment(self) -> dict[str, str]:
        """What a machine of a cluster has. Packages beside PySpark are those of the tests, but not this one: Python does not read the
        link to it in a folder of ``PYTHONPATH``.
        """
        spark = self._spark()
        java = {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ}
        return {
            "PATH": f"{self.folder / 'bin'}:{spark / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(spark.parent), "SPARK_HOME": str(spark), "SPARK_CONF_DIR": str(self.folder / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1",
            **java, **quick_jvms(), **self.variables,
        }  # fmt: skip

    def _spark(self) -> Path:
        """Return the folder of PySpark."""
        if self.python:
            (spark,) = Path(self.python).parents[1].glob("lib/python3.*/site-packages/pyspark")
            return spark
        found = importlib.util.find_spec("pyspark")
        assert found is not None
        assert found.origin is not None
        return Path(found.origin).parent

    def crash_next(self, action: str, point: str) -> None:
        """Let the next driver end itself at a named step of the runtime: ``crash_next("kill", "stage/priced/rows-written")``.

        The script that does it, ``tests/support/crash.py``, imports the runtime, which must have travelled.
        """
        self._crashes.append((action, point))

    def submit(self, submission: Submission) -> Hosted:
        """Start a driver."""
        with self._one_at_a_time:
            if self._crashes:
                submission = submission.below(str(CRASH), *self._crashes.pop(0))
        return self.run([*self.spark_submit, *submission.words()], submission.environment)

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> Hosted:
        """Start a command with more variables. Raise ``OSError`` if the machine does not have it, and ``RuntimeError`` after its end."""
        with self._one_at_a_time:
            if self._over:  # a service may still carry out a request
                raise RuntimeError("this host is gone")
            folder = self.folder / f"process-{next(self._numbers)}"
            folder.mkdir()
            have = {**self.environment, **environment}
            hosted = Hosted(command, have, folder)
            self.started.append(hosted)
            return hosted
