"""A real Airflow on this machine: SQLite, LocalExecutor, four processes, free ports; what it started ends with it.

``with Stack(home=tmp_path, dags=...) as stack: run = stack.client.trigger("my_dag")``
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.client import Client
from tests.support.processes import environment, find, free_port, send
from tests.support.waiting import wait_until

PROJECT = Path(__file__).parents[2]
EXAMPLES = PROJECT / "airflow_checkpoint_provider" / "example_dags"
BIN = Path(sys.executable).parent  # airflow and spark-submit lie beside the interpreter
PARTS = ("api-server", "scheduler", "dag-processor", "triggerer")
MARK = "AIRFLOW_STACK_PART"


@dataclass(frozen=True)
class Part:
    """One process of Airflow. ``mark`` stands in its environment and in that of all it starts."""

    mark: str
    process: subprocess.Popen[bytes]

    def all_pids(self) -> list[int]:
        """A task leaves the process group but keeps the session; a detached driver leaves both but has the mark."""
        wanted = f"{MARK}={self.mark}"
        return list(find(lambda pid: os.getsid(pid) == self.process.pid or wanted in environment(pid)))


class Stack:
    """``env`` wins over the settings below, ``api_server`` over both for that part. The logs lie in ``home``; nothing is deleted.

    ``only`` some parts are started, and nobody is logged in, if they are named.
    """

    def __init__(
        self,
        home: Path,
        dags: Path,
        env: Mapping[str, str] | None = None,
        api_server: Mapping[str, str] | None = None,
        only: Sequence[str] = (),
    ) -> None:
        self.home, self.dags, self._only = home, dags, only
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = {**os.environ, **_settings(home, dags, self.url, self.port), **(env or {})}
        # Two requests that write at once may wait for each other inside of the API server, where the others' patience would stop
        # all of Airflow for a minute. After SQLite's own five seconds, one of them fails, and its client sends it again.
        database = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db"}
        self.env_of: dict[str, Mapping[str, str]] = {"api-server": {**database, **(api_server or {})}}
        self.client = Client(self.url)
        self.parts: dict[str, Part] = {}

    def __enter__(self) -> Stack:
        self.home.mkdir(parents=True, exist_ok=True)
        try:
            self.run("airflow", "db", "migrate")
            for name in self._only or PARTS:
                self.start(name)
            self.wait_until_healthy()
            if not self._only:
                self.client.log_in()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run(self, program: str, *arguments: str, seconds: float = 300) -> str:
        """A program beside the interpreter, in the environment of the parts; returns what it printed."""
        return subprocess.run(
            [BIN / program, *arguments],
            env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=seconds, check=True,
        ).stdout  # fmt: skip

    def start(self, name: str) -> None:
        mark = uuid.uuid4().hex
        with open(self.home / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [BIN / "airflow", name],
                env={**self.env, **self.env_of.get(name, {}), MARK: mark}, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.parts[name] = Part(mark, process)

    @property
    def ended(self) -> bool:
        """Whether one of the parts has ended that nobody killed, or all are stopped."""
        parts = [*self.parts.values()]  # another thread may kill one
        return not parts or any(part.process.poll() is not None for part in parts)

    def wait_until_healthy(self, seconds: float = 300) -> None:
        wait_until(self._healthy, seconds, f"Airflow is not healthy; see {self.home}/*.log")

    def kill(self, name: str) -> None:
        """End one part and all it started, as a lost host would: the scheduler takes tasks and drivers along."""
        part = self.parts.pop(name)

        def swept() -> bool:  # a process may start another one while we look
            send(part.all_pids(), signal.SIGKILL)
            return not part.all_pids()

        wait_until(swept, say=lambda: f"{name} left {part.all_pids()}")
        part.process.wait(30)

    def stop(self, grace: float = 5) -> None:
        """Ask all, then end what is left: the scheduler waits for its workers, tasks and drivers wait for nobody."""
        for part in self.parts.values():
            part.process.terminate()
        end = time.monotonic() + grace
        for name, part in list(self.parts.items()):
            with suppress(subprocess.TimeoutExpired):
                part.process.wait(max(0.1, end - time.monotonic()))
            self.kill(name)

    def _healthy(self) -> bool:
        for name, part in self.parts.items():
            if part.process.poll() is not None:
                raise RuntimeError(f"{name} ended with {part.process.returncode}; see {self.home / name}.log")
        try:
            health = self.client.health()
        except OSError:
            return False
        names = {"metadatabase", *(name.replace("-", "_") for name in self.parts)} - {"api_server"}
        return all(health.get(name) == "healthy" for name in names)


def _settings(home: Path, dags: Path, url: str, port: int) -> dict[str, str]:
    settings = {
        "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout=60",  # seconds; a part that waited 5 in vain, ends
        "CORE__DAGS_FOLDER": str(dags),
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": "4",  # LocalExecutor forks as many idle workers
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",  # otherwise tasks talk to port 8080
        "CORE__FERNET_KEY": "",
        "API__HOST": "127.0.0.1",
        "API__PORT": str(port),
        "API__BASE_URL": url,
        "API__WORKERS": "1",
        "API__SECRET_KEY": "s" * 32,
        "API_AUTH__JWT_SECRET": "j" * 64,
        "DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",  # files do not change; each parse costs half a second of CPU
        "DAG_PROCESSOR__PARSING_PROCESSES": "1",
        "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3",
        "LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        "USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    return {
        **{f"AIRFLOW__{name}": value for name, value in settings.items()},
        "AIRFLOW_HOME": str(home),
        "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "PYTHONUNBUFFERED": "1",
    }
