"""Cluster managers on this machine: their executors are processes of their own. Runs on Linux."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.drivers import WITH_S3A, quick_jvms, started
from tests.support.processes import free_port
from tests.support.runs import Elsewhere, Home
from tests.support.waiting import wait_until
from tests.support.yarn import Yarn

if TYPE_CHECKING:
    from tests.support.s3server import S3Server

START = 120.0  # seconds until a cluster manager works, which takes five
SMALL = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.instances": "2",
    "spark.executor.extraJavaOptions": quick_jvms()["SPARK_SUBMIT_OPTS"],
}
"""Two executors with one core and half a gigabyte each."""
SPARK_CLASS = str(Path(sys.executable).with_name("spark-class"))
MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"


@dataclass(frozen=True)
class Cluster:
    """``confs`` are those of a driver that works there; ``environment`` is for its process. ``elsewhere`` is set in cluster mode."""

    confs: dict[str, str]
    environment: dict[str, str] = field(default_factory=dict)
    elsewhere: Elsewhere | None = None

    def home(self, folder: Path, script: str, s3: S3Server | None = None) -> Home:
        """Return a new home whose drivers work there."""
        home = Home(folder, script, s3=s3)
        home.confs |= self.confs
        home.env |= self.environment
        home.elsewhere = self.elsewhere
        return home


@contextmanager
def local_cluster(_: Path) -> Iterator[Cluster]:
    """Yield a master and two workers in the JVM of each driver, with executors that are not."""
    yield Cluster({"spark.master": "local-cluster[2,1,1024]", **SMALL})


@contextmanager
def standalone(folder: Path) -> Iterator[Cluster]:
    """Yield a standalone master and two workers. They have no scripts in the wheel of PySpark."""
    port, page = free_port(), free_port()
    address = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:

        def start(name: str, host: str, main: str, *arguments: str) -> None:
            environment = {"SPARK_DAEMON_MEMORY": "200m", "SPARK_LOCAL_IP": host, **WITH_S3A}
            command = [SPARK_CLASS, main, *arguments, "--host", host]
            stack.enter_context(started(command, folder / f"{name}.log", **environment))

        start("master", "127.0.0.1", MASTER, "--port", str(port), "--webui-port", str(page))
        for number in (1, 2):  # each on a host of its own: Spark speculates only on another host
            name = f"worker-{number}"
            place = ["--work-dir", str(folder / name), "--webui-port", str(free_port())]
            start(name, f"127.0.0.{number}", WORKER, *place, "--cores", "1", "--memory", "1g", address)
        wait_until(lambda: _workers(page) == 2, START, (folder / "master.log").read_text)
        yield Cluster({"spark.master": address, **SMALL})


@contextmanager
def cluster_mode(folder: Path) -> Iterator[dict[str, int]]:
    """Yield the ports of a standalone master, ``rpc`` and ``rest``, whose worker also runs drivers: one at a time, with one executor."""
    rpc, rest, page = free_port(), free_port(), free_port()
    small = ["env", "SPARK_DAEMON_MEMORY=200m", "SPARK_LOCAL_IP=127.0.0.1"]
    asked = f"SPARK_MASTER_OPTS=-Dspark.master.rest.enabled=true -Dspark.master.rest.port={rest}"
    master = [*small, asked, SPARK_CLASS, MASTER, "--host", "127.0.0.1", "--port", str(rpc), "--webui-port", str(page)]
    worker = [*small, SPARK_CLASS, WORKER, "--host", "127.0.0.1", "--webui-port", str(free_port())]
    room = ["--work-dir", str(folder / "work"), "--cores", "4", "--memory", "3g", f"spark://127.0.0.1:{rpc}"]
    with started(master, folder / "master.log"), started([*worker, *room], folder / "worker.log"):
        wait_until(lambda: _workers(page) == 1, START, (folder / "master.log").read_text)
        yield {"rpc": rpc, "rest": rest}


@contextmanager
def yarn(folder: Path) -> Iterator[Cluster]:
    """Yield a resource manager with one node, for drivers in client mode. Raises ``NoJars``."""
    with Yarn(folder / "yarn") as started:
        yield Cluster({**started.confs, **SMALL}, started.environment)


@contextmanager
def yarn_cluster(folder: Path) -> Iterator[Cluster]:
    """Yield the same for drivers in cluster mode."""
    with Yarn(folder / "yarn") as started:
        yield in_cluster_mode(started)


def in_cluster_mode(yarn: Yarn) -> Cluster:
    """Return the cluster for drivers in cluster mode. By default, YARN does not start them again."""
    return Cluster({**yarn.confs, **SMALL, "spark.yarn.maxAppAttempts": "1"}, yarn.environment, yarn)


def _workers(page: int) -> int:
    """Return how many workers the page of a master lists as alive. A master that starts answers this address with its page at first."""
    address = f"http://127.0.0.1:{page}/json/"
    with suppress(OSError, json.JSONDecodeError), urllib.request.urlopen(address, timeout=5) as answer:
        return int(json.load(answer)["aliveworkers"])
    return 0
