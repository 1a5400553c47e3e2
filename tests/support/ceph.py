"""A real S3 service for slow tests: Ceph's gateway before one monitor and one object store in memory. Runs on Debian 12.

    with Ceph(tmp_path) as ceph:
        ceph.make_bucket("lake")
        store = open_store("s3://lake/ckp", s3=ceph.settings())

The programs are Debian's own, downloaded and unpacked below the checkout on first use: nothing is installed, and no root
rights are needed. A map of the cluster that is made beforehand spares Ceph's command line, which needs its own Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
import uuid
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import boto3

from airflow_checkpoint_provider.storage import S3Settings
from tests.support import debian
from tests.support.processes import free_port
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

UNPACKED = Path(__file__).parents[2] / ".ceph"
PACKAGES = ("ceph-mon", "ceph-osd", "radosgw")
START = 60.0  # seconds, for one step; all together take less than ten
TAIL = 2_000  # bytes of each log

CONFIGURATION = """
[global]
mon host = {monitor}
public network = 127.0.0.0/8
auth cluster required = none
auth service required = none
auth client required = none
# Without authentication the default, "secure", stalls each connection for a minute.
ms mon client mode = crc
mon data = {home}/mon
debug rocksdb = 0
# A nearly full disk is no reason to stop.
mon data avail crit = 1
# Making a pool takes a few of these seconds.
paxos propose interval = 0.1
osd data = {home}/osd
osd objectstore = memstore
osd class dir = {libraries}/rados-classes
osd pool default size = 1
osd pool default pg num = 4
osd pool default pg autoscale mode = off
erasure code dir = {libraries}/ceph/erasure-code
rgw frontends = beast endpoint={gateway} tcp_nodelay=1
run dir = {home}
# A socket's path may not be as long as a test's.
admin socket =
mon cluster log file = {home}/cluster.log
"""


NoCeph = debian.NoPackages


class Ceph:
    """``url`` is the gateway's. All is below ``home``, a log per program, and nothing outlives this process."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._root = unpacked()
        self._libraries = next(self._root.glob("usr/lib/*/ceph")).parent
        self._monitor = f"[v2:127.0.0.1:{free_port()}]"
        self._gateway = f"127.0.0.1:{free_port()}"
        self.url = f"http://{self._gateway}"
        self._keys: dict[str, str] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException as error:
            self.__exit__()
            error.add_note(self._logs())
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """At once: asked to end, the object store would write its memory to the disk."""
        for process in self._running.values():
            process.kill()
            process.wait(10)

    def settings(self, **other: Any) -> S3Settings:
        """To reach the gateway, with the keys of its one user."""
        known = {
            "endpoint_url": self.url, "access_key_id": self._keys["access_key"],
            "secret_access_key": self._keys["secret_key"],
        }  # fmt: skip
        return S3Settings(**known | other)

    @cached_property
    def client(self) -> S3Client:
        """One with boto3's defaults, of which the store knows nothing."""
        return boto3.Session().client(
            "s3", endpoint_url=self.url, region_name="us-east-1", aws_access_key_id=self._keys["access_key"],
            aws_secret_access_key=self._keys["secret_key"],
        )  # fmt: skip

    def make_bucket(self, name: str) -> None:
        self.client.create_bucket(Bucket=name)

    def _start(self) -> None:
        self._configure()
        self._run("monmaptool", "--create", "--addv", "a", self._monitor, "monmap")
        self._run("osdmaptool", "--createsimple", "1", "osdmap")
        self._run("ceph-mon", "--mkfs", "-i", "a", "--monmap=monmap", "--osdmap=osdmap")
        self._begin("ceph-mon", "-d", "-i", "a")
        self._run("ceph-osd", "--mkfs", "-i", "0", f"--osd-uuid={uuid.uuid4()}")
        self._begin("ceph-osd", "-d", "-i", "0")
        user = self._run("radosgw-admin", "user", "create", "--uid=checkpoints", "--display-name=checkpoints")
        self._keys = json.loads(user)["keys"][0]
        self._begin("radosgw", "-d", "-n", "client.rgw.a")
        wait_until(self._answers, START, "Ceph's gateway does not answer")

    def _configure(self) -> None:
        for name in ("mon", "osd"):
            (self.home / name).mkdir(parents=True)
        (self.home / "ceph.conf").write_text(
            CONFIGURATION.format(
                home=self.home, libraries=self._libraries, monitor=self._monitor, gateway=self._gateway
            )
        )

    @cached_property
    def _environment(self) -> dict[str, str]:
        """Nothing of the user's own."""
        libraries = (self._libraries, self._libraries / "ceph", self._root / "lib" / self._libraries.name)
        return {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
            "CEPH_CONF": str(self.home / "ceph.conf"),
        }

    def _run(self, name: str, *arguments: str) -> str:
        """To its end; returns what it printed."""
        with open(self.home / f"{name}.log", "ab") as log:
            return subprocess.run(
                [self._root / "usr/bin" / name, *arguments],
                cwd=self.home, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                text=True, timeout=START, check=True,
            ).stdout  # fmt: skip

    def _begin(self, name: str, *arguments: str) -> None:
        """It runs until ``__exit__``, or until this process ends in whatever way."""
        with open(self.home / f"{name}.log", "ab") as log:
            self._running[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig=KILL", self._root / "usr/bin" / name, *arguments],
                cwd=self.home, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def _answers(self) -> bool:
        for name, process in self._running.items():
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended with {process.returncode}")
        try:
            with urllib.request.urlopen(self.url, timeout=5):
                return True
        except OSError:
            return False

    def _logs(self) -> str:
        return "\n".join(
            f"== {log}\n{log.read_text(errors='replace')[-TAIL:]}" for log in sorted(self.home.glob("*.log"))
        )


def unpacked() -> Path:
    """The folder with the programs, laid out like ``/``. Raises ``NoCeph``."""
    return debian.unpacked(UNPACKED, PACKAGES, "ceph|lib|rados")
