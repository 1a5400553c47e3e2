"""Drivers that run a job's script in a folder of their own, and what they leave behind. Runs on Linux."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow.parquet

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.protocol.keys import History, Keys
from airflow_checkpoint_provider.storage import LocalStore, S3Store, Store
from tests.support.drivers import ROOT, WITH_S3A, environment, fast_confs
from tests.support.processes import command, find, send
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.s3server import S3Server

JOBS = ROOT / "tests" / "jobs"
CRASH = ROOT / "tests" / "support" / "crash.py"
PATIENCE = 400  # seconds for one driver, which takes ten on an idle machine
GONE = 120  # seconds for the processes that a dead one leaves behind, which take one
Crash = tuple[str, str]
"""An action of ``crash`` and its point."""


@dataclass(frozen=True)
class Ended:
    """A driver that ended: its exit code (a signal's is negative), its log, and its event log of Spark."""

    code: int
    log: str
    events: Path

    @cached_property
    def result(self) -> dict[str, Any]:
        """What the script printed as its result."""
        lines = [line for line in self.log.splitlines() if line.startswith("RESULT ")]
        assert lines, self.log[-5000:]
        found: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
        return found

    @cached_property
    def computed(self) -> list[str]:
        """The stages for which tasks ran, in their order, by Spark's own record."""
        return [name.split("'")[1] for name in self.tasks if name.startswith("stage '")]

    @cached_property
    def tasks(self) -> Counter[str]:
        """Finished tasks by job description."""
        described: dict[int, str] = {}
        tasks = Counter[str]()
        for event in self._events():
            if event["Event"] == "SparkListenerJobStart":
                description = event["Properties"].get("spark.job.description", "")
                described |= dict.fromkeys(event["Stage IDs"], description)
            elif event["Event"] == "SparkListenerTaskEnd":
                tasks[described[event["Stage ID"]]] += 1
        return tasks

    def _events(self) -> Iterator[dict[str, Any]]:
        for path in self.events.iterdir():
            for line in path.read_text().splitlines():
                with suppress(json.JSONDecodeError):  # the last line of a driver that was killed
                    yield json.loads(line)


class Elsewhere(Protocol):
    """A cluster that runs drivers in cluster mode. It knows a driver by what its ``spark-submit`` has said."""

    def driver(self, said: str) -> Iterable[int]:
        """The processes of that driver."""

    def driver_output(self, said: str) -> str:
        """What that driver has printed."""


class Running:
    """A driver and all that it started, in a process group of its own; in cluster mode ``process`` is its ``spark-submit``."""

    def __init__(
        self, process: subprocess.Popen[bytes], log: Path, events: Path, elsewhere: Elsewhere | None = None
    ) -> None:
        self.process, self.log, self.events, self._elsewhere = process, log, events, elsewhere

    def said(self) -> str:
        said = self.log.read_text(errors="replace")
        return f"{said}\n{self._elsewhere.driver_output(said)}" if self._elsewhere else said

    def is_stopped(self) -> bool:
        """Whether SIGSTOP has stopped the driver."""
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def end(self) -> None:
        """All of it, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        send(self._there(), signal.SIGKILL)
        self.process.wait(10)

    def wait(self, patience: float = PATIENCE) -> Ended:
        """Until it ended, and all that it started with it: no JVM and no Python is left alive, whoever was killed."""
        code = self.process.wait(patience)
        wait_until(lambda: not self._left(), GONE, lambda: f"{[command(pid) for pid in self._left()]}\n{self.said()}")
        return Ended(code, self.said(), self.events)

    def _left(self) -> list[int]:
        return [*find(self._has), *self._there()]

    def _there(self) -> Iterable[int]:
        return self._elsewhere.driver(self.log.read_text(errors="replace")) if self._elsewhere else ()

    def _has(self, pid: int) -> bool:
        return os.getpgid(pid) == self.process.pid

    def pythons(self) -> list[int]:
        """The Python driver, wrapped by ``crash``, which may be a child of its JVM; nothing if it has not begun."""
        return list(find(lambda pid: self._has(pid) and command(pid)[1:2] == [str(CRASH)]))

    def send(self, sig: signal.Signals) -> None:
        """To the whole group; in cluster mode to the driver, and not to its ``spark-submit``."""
        if self._elsewhere:
            send(self._there(), sig)
        else:
            os.killpg(self.process.pid, sig)


class Home:
    """A folder with a copy of a job's script, its root of checkpoints, and one folder for each of its drivers.

    With ``s3`` the root is a bucket of that service, which drivers find by ``env``. ``python`` runs the drivers, unless they run
    ``elsewhere``: then each is submitted in cluster mode, with ``env`` for ``spark-submit`` and for the driver.
    """

    elsewhere: Elsewhere | None = None

    def __init__(
        self, folder: Path, script: str = "totals.py", s3: S3Server | None = None, python: str = sys.executable
    ) -> None:
        self.folder, self._drivers, self._python = folder, 0, python
        self.env = {**s3.environment(), **WITH_S3A} if s3 else {}
        self.confs: dict[str, str] = {}  # of all drivers
        self.store: Store = _bucket(s3) if s3 else LocalStore(str(folder / "checkpoints"))
        self.application = folder / "app"
        self.application.mkdir(parents=True)
        self.script = Path(shutil.copy(JOBS / script, self.application))
        self.out = folder / "out"

    # -- drivers -----------------------------------------------------------------------------------------------------

    def run(
        self,
        crash: Crash | None = None,
        *,
        submit: bool = False,
        confs: Mapping[str, str] | None = None,
        patience: float = PATIENCE,
    ) -> Ended:
        """One driver, from its start to its end; alone, unless ``confs`` hold a launch."""
        with self.started(crash, submit=submit, confs=confs) as running:
            return running.wait(patience)

    def killed(self, point: str, *, confs: Mapping[str, str] | None = None) -> Ended:
        """One driver that is killed with -9 at that point."""
        killed = self.run(("kill", point), confs=confs)
        assert killed.code == -signal.SIGKILL, killed.log
        return killed

    @contextmanager
    def started(
        self,
        crash: Crash | None = None,
        *,
        submit: bool = False,
        confs: Mapping[str, str] | None = None,
        below: Sequence[str] = (),
    ) -> Iterator[Running]:
        """With ``python script`` or, if ``submit`` or elsewhere, with ``spark-submit script``; by another process if ``below`` is
        its command. Nothing of it is left afterwards."""
        self._drivers += 1
        folder = self.folder / f"driver-{self._drivers}"
        events = folder / "events"
        events.mkdir(parents=True)
        properties = folder / "spark.properties"
        properties.write_text("".join(f"{name} {value}\n" for name, value in self._confs(folder, confs or {}).items()))
        log = folder / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*below, *self._command(crash, submit, properties)], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                env=self._environment(properties), start_new_session=True,
            )  # fmt: skip
        running = Running(process, log, events, self.elsewhere)
        try:
            yield running
        finally:
            running.end()

    def _command(self, crash: Crash | None, submit: bool, properties: Path) -> list[str]:
        start = [self._python]
        if submit or self.elsewhere:
            start = [str(Path(self._python).with_name("spark-submit")), "--properties-file", str(properties)]
        wrapped = [str(CRASH), *crash] if crash else []
        root = [self.store.uri] if isinstance(self.store, S3Store) or self.elsewhere else []
        return [*start, *wrapped, str(self.script), str(self.out), *root]

    def _environment(self, properties: Path) -> dict[str, str]:
        arguments = f"--properties-file {properties} pyspark-shell"
        return environment(PYSPARK_SUBMIT_ARGS=arguments, **self._variables)

    @property
    def _variables(self) -> dict[str, str]:
        """Of a driver."""
        return {"CHECKPOINT_HEARTBEAT_SECONDS": "1", **self.env}

    def _confs(self, folder: Path, confs: Mapping[str, str]) -> dict[str, str]:
        witness = {
            "spark.master": "local[2]",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file://{folder / 'events'}",
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
        }
        variables = {f"spark.yarn.appMasterEnv.{name}": value for name, value in self._variables.items()}
        there = {"spark.submit.deployMode": "cluster", **variables} if self.elsewhere else {}
        return {**fast_confs(folder), **witness, **there, **self.confs, **confs}

    # -- what they leave ---------------------------------------------------------------------------------------------

    def coordinator(self) -> Coordinator:
        """A reader of the script's own history; its state is caught up."""
        keys = Keys(History(self.script.stem).prefix)
        coordinator = Coordinator(Journal(self.store, keys, By("test", "", "")))
        coordinator.journal.catch_up()
        return coordinator

    def published(self, sink: str) -> list[dict[str, Any]]:
        """The rows that a reader finds who lists the folder of a sink of ``published.py``."""
        rows = []
        for key, body in self._files():
            if key.startswith(f"{sink}/") and not any(part.startswith("_") for part in key.split("/")):
                rows += pyarrow.parquet.read_table(pyarrow.BufferReader(body)).to_pylist()
        return sorted(rows, key=str)

    def staged(self) -> list[str]:
        """What sinks hold ready."""
        return [key for key, _ in self._files() if "/_checkpoint-staging/" in key]

    def _files(self) -> Iterator[tuple[str, bytes]]:
        store: Store = LocalStore(self.out)
        if isinstance(self.store, S3Store):
            store = S3Store(self.store.bucket, f"{self.store.prefix.rstrip('/')}-out", self.store.settings)
        for found in store.list(""):
            yield found.key, b"".join(store.parts(found.key))

    def report(self) -> list[dict[str, Any]]:
        """The rows that the script wrote by plain Spark."""
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(self.out).to_pylist()
        return sorted(rows, key=str)


def _bucket(s3: S3Server) -> S3Store:
    """A new one."""
    name = f"home-{uuid.uuid4().hex[:8]}"
    s3.make_bucket(name)
    return S3Store(name, "ckp", s3.settings())
