"""Spark drivers of benchmarks: fresh processes that tell their moments, and where they keep rows. Runs on Linux.

The tests' S3 server runs in the process of the benchmark, which only waits meanwhile. Its work competes with the driver's for the
processors, for every variant alike.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import Any

from airflow_checkpoint_provider.storage import S3Store
from benchmarks.answers import Size
from tests.support.drivers import WITH_S3A, environment, fast_confs, quick_jvms
from tests.support.processes import find
from tests.support.s3server import S3Server
from tests.support.waiting import wait_until

LOCAL, S3 = "local disk", "S3"
BUCKET = "lake"
JOBS = Path(__file__).parent / "jobs"
PATIENCE = 900  # seconds for one driver
GONE = 60  # seconds for the JVM that a killed driver leaves behind
KILLED = -signal.SIGKILL


class Driver:
    """A driver, and what it has told: seconds from its start to each moment, and its result.

    ``requests``: how many the S3 server had answered at each moment. ``seconds`` is its whole life, once it ended.
    """

    def __init__(self, process: subprocess.Popen[str], began: float, log: Path, s3: S3Server | None) -> None:
        self._process, self._began, self._log, self._s3 = process, began, log, s3
        self.moments: dict[str, float] = {}
        self.requests: dict[str, int] = {}
        self.result: dict[str, Any] = {}
        self.seconds = 0.0

    def between(self, first: str, second: str) -> float:
        """Return the seconds between two moments."""
        return self.moments[second] - self.moments[first]

    def wait(self) -> int:
        """Note all that it tells until it ends. Return its exit code."""
        while self._note():
            pass
        code = self._process.wait()
        self.seconds = time.monotonic() - self._began
        return code

    def ask(self, line: str) -> dict[str, Any]:
        """Write a line to its standard input, and return the result that it tells then."""
        assert self._process.stdin
        with suppress(BrokenPipeError):  # it has ended, and answers nothing
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        self.result = {}
        while not self.result:
            if not self._note():
                raise RuntimeError(f"the driver ended and did not answer {line!r}:\n{self.log()}")
        return self.result

    def log(self) -> str:
        """Return the end of its log."""
        return self._log.read_text(errors="replace")[-5000:]

    def _note(self) -> bool:
        """Note one line; return False if there is none any more."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        kind, _, rest = line.strip().partition(" ")
        if kind == "MOMENT":
            name, _, at = rest.rpartition(" ")
            self.moments[name] = float(at) - self._began
            if self._s3:
                self.requests[name] = self._s3.requests.total()
        elif kind == "RESULT":
            self.result = json.loads(rest)
        return bool(line)


class Drivers:
    """Starts drivers in ``folder``, whose rows and checkpoints lie there too, or in a bucket of ``s3``.

    ``quick``: with JVMs that are good for little work. ``confs`` are Spark's, besides those of every driver. ``python`` runs them,
    with ``variables`` in its environment.
    """

    def __init__(
        self,
        folder: Path,
        s3: S3Server | None = None,
        *,
        quick: bool = False,
        confs: Mapping[str, str] | None = None,
        python: str = sys.executable,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.s3, self._python = folder, s3, python
        self._roots, self._logs = itertools.count(), itertools.count()
        given = {**_confs(folder), **(_s3a(s3) if s3 else {}), **(confs or {})}
        options = [word for name, value in given.items() for word in ("--conf", f"{name}={value}")]
        self._environment = environment(
            PYSPARK_SUBMIT_ARGS=shlex.join(["--master", "local[2]", *options, "pyspark-shell"]),
            PYSPARK_PYTHON=python,
            **(quick_jvms() if quick else {}),
            **({**s3.environment(), **WITH_S3A} if s3 else {}),
            **(variables or {}),
        )
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)  # with it, each driver would compile all that it imports

    def new_root(self, scheme: str = "s3") -> str:
        """Return a place where nothing lies. ``scheme`` is for S3: boto3's, or ``s3a``."""
        return f"{scheme}://{BUCKET}/{next(self._roots)}" if self.s3 else str(self.folder / f"root-{next(self._roots)}")

    def remove(self, root: str) -> None:
        """Delete all that lies there."""
        if self.s3:
            S3Store(BUCKET, "", self.s3.settings()).delete_under(root.rpartition("/")[2])
        else:
            shutil.rmtree(root, ignore_errors=True)

    def run(self, script: str, *arguments: str, code: int = 0, **variables: str) -> Driver:
        """Run a script of ``jobs`` to its end, and return what it told. Raises ``RuntimeError`` if it ends with another code."""
        with self.started(script, *arguments, **variables) as driver:
            ended = driver.wait()
        if ended != code:
            raise RuntimeError(f"{script} {arguments} ended with {ended}, not with {code}:\n{driver.log()}")
        return driver

    @contextmanager
    def started(self, script: str, *arguments: str, **variables: str) -> Iterator[Driver]:
        """Start a script of ``jobs``. It does not outlive ``PATIENCE``, and nothing of it is left afterwards."""
        began, file = time.monotonic(), self.folder / f"log-{next(self._logs)}"
        with file.open("wb") as log:
            process = subprocess.Popen(
                [self._python, str(JOBS / script), *arguments],
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**self._environment, **variables},
                start_new_session=True,
            )
        late = Timer(PATIENCE, _kill, (process.pid,))
        late.start()
        try:
            yield Driver(process, began, file, self.s3)
        finally:
            late.cancel()
            _kill(process.pid)
            process.communicate()
            wait_until(lambda: not _left(process.pid), GONE, lambda: f"processes {_left(process.pid)} do not end")


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _left(group: int) -> list[int]:
    return list(find(lambda pid: os.getpgid(pid) == group))


@contextmanager
def drivers_on(
    where: str,
    size: Size,
    confs: Mapping[str, str] | None = None,
    python: str = sys.executable,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Drivers]:
    """Yield the drivers that keep their rows on the local disk or in S3. Nothing is left of what they wrote."""
    quick = size is Size.TINY
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmarks-"))
        s3 = stack.enter_context(S3Server()) if where == S3 else None
        if s3:
            s3.make_bucket(BUCKET)
            stack.callback(s3.empty_bucket, BUCKET)  # all servers of a process share their buckets
        yield Drivers(Path(folder), s3, quick=quick, confs=confs, python=python, variables=variables)


def _confs(folder: Path) -> dict[str, str]:
    """Return the confs of the tests' drivers, but those of little work."""
    real = {"spark.driver.memory": "2g", "spark.log.level": "ERROR", "spark.sql.shuffle.partitions": "8"}
    return {**fast_confs(folder), **real}


def _s3a(s3: S3Server) -> dict[str, str]:
    """Return the confs by which Spark reaches the server, as the author of a job writes them who keeps stages by hand."""
    variables = s3.environment()
    confs = {
        "endpoint": s3.url,
        "endpoint.region": variables["AWS_REGION"],
        "path.style.access": "true",
        "access.key": variables["AWS_ACCESS_KEY_ID"],
        "secret.key": variables["AWS_SECRET_ACCESS_KEY"],
    }
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in confs.items()}
