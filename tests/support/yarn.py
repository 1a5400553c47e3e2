"""A real Hadoop YARN for slow tests: a resource manager and one node manager, two JVMs of 400 MB. Runs on Linux.

    with Yarn(tmp_path) as yarn:
        yarn.applications()

A driver works there that has ``yarn.confs`` and, in its environment, ``yarn.environment``.

The default file system is ``file:///``: rows and checkpoints lie on the local disk. A container lies below ``home``, too: its
output in ``logs/APPLICATION/CONTAINER``. The daemons end with this process, and containers without daemons end within two minutes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import pyspark

from tests.support import processes
from tests.support.drivers import QUICK_JVM
from tests.support.jars import fetched
from tests.support.processes import free_port
from tests.support.waiting import wait_until

START = 180.0  # seconds until a daemon answers, which takes five
ANSWER = 10  # seconds, for one request
TAIL = 2_000  # bytes of a log
DAEMONS = ("resourcemanager.ResourceManager", "nodemanager.NodeManager")
FIRST = "_000001"  # ends the name of the container of an application master
MASTER = "org.apache.spark.deploy.yarn.ApplicationMaster"
LISTENING = ("resource-tracker.address", "scheduler.address", "admin.address", "address", "webapp.address")
LOG4J = """
log4j.rootLogger=WARN,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.SimpleLayout
"""


class Yarn:
    """``webapp`` is the address of the resource manager's REST API. All is below ``home``. Raises ``NoJars``.

    With ``recovers`` the resource manager keeps its state there, and has it again after a restart.
    """

    def __init__(self, home: Path, settings: Mapping[str, str] | None = None, *, recovers: bool = False) -> None:
        self.home, self._jars = home, fetched("yarn")
        self._settings = {**(self._recovery if recovers else {}), **(settings or {})}
        self._ports = {name: free_port() for name in LISTENING}
        self.webapp = f"http://127.0.0.1:{self._ports['webapp.address']}"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self._configure()
            for name in DAEMONS:
                self.start(name)
            wait_until(self._nodes, START, self._said)
        except BaseException as error:
            self.__exit__()
            error.add_note(self._said())
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in [*self._daemons]:
            self.kill(name)
        wait_until(self._no_container_lives, START, "containers live on")

    # -- its daemons -------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a daemon, or start it again after a kill."""
        with open(self.home / f"{name}.log", "ab") as log:
            self._daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig=KILL", "java", *QUICK_JVM.split(), "-Xmx400m", "-cp", f"{self._conf}:{self._jars}/*",
                 f"org.apache.hadoop.yarn.server.{name}"],
                cwd=self.home, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **self.environment},
            )  # fmt: skip

    def kill(self, name: str) -> None:
        """Kill a daemon as ``kill -9`` does."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait(START)

    def restart(self, *, forgets: bool = False) -> None:
        """Kill the resource manager, and start it again; without the state of the one before if it ``forgets``."""
        manager = DAEMONS[0]
        self.kill(manager)
        if forgets:
            shutil.rmtree(self._state)
        self.start(manager)
        wait_until(self._nodes, START, self._said)

    def _configure(self) -> None:
        self._conf.mkdir(parents=True)
        (self._conf / "log4j.properties").write_text(LOG4J)
        core = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(self.home / "tmp")}
        (self._conf / "core-site.xml").write_text(_site(core))
        (self._conf / "yarn-site.xml").write_text(_site(self._site | self._settings))

    @property
    def _site(self) -> dict[str, str]:
        scheduler = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"
        return {
            "yarn.resourcemanager.hostname": "127.0.0.1",
            **{f"yarn.resourcemanager.{name}": f"127.0.0.1:{port}" for name, port in self._ports.items()},
            "yarn.resourcemanager.scheduler.class": scheduler,
            "yarn.resourcemanager.connect.max-wait.ms": "20000",
            "yarn.nodemanager.hostname": "127.0.0.1",
            "yarn.nodemanager.address": f"127.0.0.1:{free_port()}",
            "yarn.nodemanager.localizer.address": f"127.0.0.1:{free_port()}",
            "yarn.nodemanager.webapp.address": f"127.0.0.1:{free_port()}",
            "yarn.nodemanager.resource.memory-mb": "8192",
            "yarn.nodemanager.resource.cpu-vcores": "4",
            "yarn.scheduler.minimum-allocation-mb": "256",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.enable": "false",
            "yarn.nodemanager.delete.debug-delay-sec": "3600",
            "yarn.nodemanager.local-dirs": str(self.home / "local"),
            "yarn.nodemanager.log-dirs": str(self.home / "logs"),
        }

    @property
    def _recovery(self) -> dict[str, str]:
        return {
            "yarn.resourcemanager.recovery.enabled": "true",
            "yarn.resourcemanager.store.class": "org.apache.hadoop.yarn.server.resourcemanager.recovery.FileSystemRMStateStore",
            "yarn.resourcemanager.fs.state-store.uri": f"file://{self._state}",
            "yarn.resourcemanager.connect.max-wait.ms": "120000",
            "yarn.resourcemanager.connect.retry-interval.ms": "1000",
        }

    @property
    def _state(self) -> Path:
        return self.home / "state"

    @property
    def _conf(self) -> Path:
        return self.home / "conf"

    def _nodes(self) -> bool:
        for name, daemon in self._daemons.items():
            if daemon.poll() is not None:
                raise RuntimeError(f"{name} ended with {daemon.returncode}")
        with suppress(OSError):
            found = self._ask("GET", "nodes")["nodes"] or {}
            return any(node["state"] == "RUNNING" for node in found.get("node", []))
        return False

    def _said(self) -> str:
        logs = (self.home / f"{name}.log" for name in DAEMONS)
        return "\n".join(log.read_text(errors="replace")[-TAIL:] for log in logs if log.exists())

    # -- for its clients ---------------------------------------------------------------------------------------------

    @cached_property
    def environment(self) -> dict[str, str]:
        """Return what ``spark-submit`` needs in its environment."""
        java = shutil.which("java")
        assert java
        return {
            "HADOOP_CONF_DIR": str(self._conf),
            "JAVA_HOME": str(Path(java).resolve().parents[1]),
            "PYSPARK_PYTHON": sys.executable,
        }

    @cached_property
    def confs(self) -> dict[str, str]:
        """Return the confs with which Spark finds its jars where they are: it would copy 400 MB for each application."""
        return {
            "spark.master": "yarn",
            "spark.yarn.stagingDir": f"file://{self.home}/staging",
            "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*",
            "spark.yarn.am.memory": "512m",
        }

    # -- its applications --------------------------------------------------------------------------------------------

    def applications(self) -> list[dict[str, Any]]:
        """Return all applications, the oldest first, as the REST API describes them."""
        found = self._ask("GET", "apps")["apps"] or {}
        return sorted(found.get("app", []), key=lambda app: str(app["id"]))

    def attempts(self, application: str) -> list[dict[str, Any]]:
        answer = self._ask("GET", f"apps/{application}/appattempts")
        return sorted(answer["appAttempts"]["appAttempt"], key=lambda attempt: int(attempt["id"]))

    def end(self, application: str) -> None:
        """Kill an application as an administrator does."""
        self._ask("PUT", f"apps/{application}/state", {"state": "KILLED"})

    def driver(self, said: str) -> Iterator[int]:
        """Yield the processes of a driver in cluster mode, which lives in the first container of its application. ``said``: what its
        ``spark-submit`` has printed."""
        name = _application(said)
        return self._containers(f"{name}/container_", FIRST) if name else iter(())

    def driver_output(self, said: str) -> str:
        """Return what a driver in cluster mode has printed."""
        name = _application(said)
        logs = sorted((self.home / "logs").glob(f"{name}/container_*{FIRST}/std*")) if name else []
        return "\n".join(log.read_text(errors="replace") for log in logs)

    def masters(self, application: str) -> list[int]:
        """Return the process ids of an application's masters: in cluster mode the JVM of its driver."""
        return [pid for pid in self._containers(application) if MASTER in processes.command(pid)]

    def output(self) -> str:
        """Return what the containers have printed, in the order of their names."""
        logs = sorted((self.home / "logs").glob("application_*/container_*/std*"))
        return "\n".join(log.read_text(errors="replace") for log in logs)

    def _ask(self, method: str, what: str, body: Mapping[str, str] | None = None) -> Any:
        request = urllib.request.Request(
            f"{self.webapp}/ws/v1/cluster/{what}",
            method=method,
            data=json.dumps(body).encode() if body else None,
            headers={"Content-Type": "application/json", "Accept": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=ANSWER) as answer:
            return json.load(answer)

    def _containers(self, begin: str = "", end: str = "") -> Iterator[int]:
        """Yield the processes of the containers whose names, with that of their application before, begin and end so."""
        begin = f"LOG_DIRS={self.home}/logs/{begin}"
        return processes.find(
            lambda pid: any(line.startswith(begin) and line.endswith(end) for line in processes.environment(pid))
        )

    def _no_container_lives(self) -> bool:
        """End the containers: without a node manager nobody does. Return whether none is left."""
        processes.send(self._containers(), signal.SIGKILL)
        return not any(self._containers())


def _application(said: str) -> str | None:
    """Return the application that ``spark-submit`` has submitted."""
    found = re.search(r"Submitted application (application_\w+)", said)
    return found and found[1]


def _site(values: Mapping[str, str]) -> str:
    rows = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>\n" for name, value in values.items()
    )
    return f"<configuration>\n{rows}</configuration>\n"
