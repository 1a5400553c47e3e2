"""A real PostgreSQL server for tests, and its driver for Spark. Runs on Linux.

    with Postgres(tmp_path) as server:
        server.sql("create table delays (id bigint)")
        JdbcSink(server.url, "delays", properties=server.login)

The programs are this machine's, else Debian's own, unpacked below the checkout on first use (``tests/support/debian.py``). The driver is a
jar of Maven (``tests/postgresql``).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import pyspark
from py4j.java_gateway import JavaGateway

from airflow_checkpoint_provider.sinks.postgresql_names import STAGING
from tests.support import debian
from tests.support.drivers import QUICK_JVM, ROOT
from tests.support.jars import fetched
from tests.support.processes import free_port
from tests.support.waiting import wait_until

UNPACKED = ROOT / ".postgresql-server"
PY4J = next((Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar"))
PACKAGES = ("postgresql-15", "postgresql-client-15")
INSTALLED = Path("/usr/lib/postgresql")  # where Debian puts it, beside the PATH
START = 60.0  # seconds, for one step; all together take three
TAIL = 2_000  # bytes of the log
OWNER, PASSWORD = "owner", "its:secret?&word"
QUICK = "quick"  # needs no password: to compare one takes most of the time of a connection
NOBODY = "65534"  # the server refuses root
READS_ALL = "+dac_read_search,+dac_override"  # also folders of tests, which belong to root

CONFIGURATION = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
# Nothing outlives a test, so no write need reach the disk.
fsync = off
full_page_writes = off
max_connections = 60
shared_buffers = 32MB
log_statement = all
"""


NoPostgres = debian.NoPackages


class Postgres:
    """``url`` and ``login`` are what a sink takes. All is below ``home``, and nothing outlives this process."""

    def __init__(self, home: Path) -> None:
        self.home, self._port = home / "postgresql", free_port()
        self.url = f"jdbc:postgresql://127.0.0.1:{self._port}/postgres"
        self.login = {"user": OWNER, "password": PASSWORD}
        self._programs = programs()
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._make()
            self.start()
            self.sql(f"create role {QUICK} superuser login")
        except BaseException as error:
            self.__exit__()
            error.add_note(self._log())
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """At once, but in order: killed, it would leave a piece of the system's shared memory."""
        if self._server:
            self._server.send_signal(signal.SIGQUIT)
            self._server.wait(START)

    def _make(self) -> None:
        data = self.home / "data"
        data.mkdir(parents=True, mode=0o700)
        if os.geteuid() == 0:
            os.chown(data, int(NOBODY), int(NOBODY))
        password = self.home / "password"
        password.write_text(PASSWORD)
        options = ["-U", OWNER, "-A", "scram-sha-256", f"--pwfile={password}", "--no-sync", "--no-locale", "-E", "UTF8"]
        done = subprocess.run(
            [*_as_plain_user(), self._programs / "initdb", "-D", data, *options],
            cwd=self.home, env=self._environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=START, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"initdb ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        with (data / "postgresql.conf").open("a") as configuration:
            configuration.write(CONFIGURATION)
        rules = data / "pg_hba.conf"
        rules.write_text(f"host all {QUICK} 127.0.0.1/32 trust\n{rules.read_text()}")

    def start(self) -> None:
        """Start it, or start it again. Return when it answers."""
        with open(self.home / "log", "ab") as log:
            self._server = subprocess.Popen(
                [*_as_plain_user(), "setpriv", "--pdeathsig=QUIT", self._programs / "postgres", "-D", self.home / "data", "-p", str(self._port)],
                cwd=self.home, env=self._environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        wait_until(self._answers, START, self._log, every=0.05)

    def _answers(self) -> bool:
        assert self._server
        if self._server.poll() is not None:
            raise RuntimeError(f"PostgreSQL ended with {self._server.returncode}")
        return self._psql("select 1").returncode == 0

    def sql(self, text: str, user: str = OWNER) -> list[str]:
        """Return the lines of the last answer, with ``|`` between columns. ``PASSWORD`` is everybody's."""
        done = self._psql(text, user)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout.splitlines()

    def staging(self, schema: str = "public") -> list[str]:
        """Return the staging tables that are in a schema."""
        return self.sql(
            f"select tablename from pg_tables where schemaname = '{schema}' and tablename like '{STAGING}%'"
        )

    def _psql(self, text: str, user: str = OWNER) -> subprocess.CompletedProcess[str]:
        place = ["-h", "127.0.0.1", "-p", str(self._port), "-U", user, "-d", "postgres"]
        return subprocess.run(
            [self._programs / "psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *place, "-c", text],
            env={**self._environment(), "PGPASSWORD": PASSWORD}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=START, check=False,
        )  # fmt: skip

    def _environment(self) -> dict[str, str]:
        """Nothing of the user's own."""
        libraries = map(str, UNPACKED.glob("usr/lib/*-linux-gnu*"))
        return {"PATH": os.environ["PATH"], "LC_ALL": "C", "LD_LIBRARY_PATH": os.pathsep.join(libraries)}

    def _log(self) -> str:
        log = self.home / "log"
        return log.read_text(errors="replace")[-TAIL:] if log.exists() else ""


def staging_tables(schema: str) -> str:
    """Return the query for the staging tables in a schema."""
    return f"select tablename from pg_tables where schemaname = '{schema}' and tablename like '{STAGING}%'"


def _as_plain_user() -> list[str]:
    if os.geteuid() != 0:
        return []
    who = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return ["setpriv", *who, f"--inh-caps={READS_ALL}", f"--ambient-caps={READS_ALL}"]


def programs() -> Path:
    """Return the folder with the server's programs. Raises ``NoPostgres``."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    for root in (INSTALLED, UNPACKED / "usr/lib/postgresql"):
        if here := sorted(root.glob("*/bin/initdb")):
            return here[-1].parent
    debian.unpacked(UNPACKED, PACKAGES, "postgresql-|lib")
    return programs()


class Client:
    """Java's JDBC in a JVM of its own, which has no Spark: what a sink does with a database takes milliseconds there."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        java = ["-Xmx128m", *QUICK_JVM.split()]
        self._gateway = JavaGateway.launch_gateway(
            jarpath=str(PY4J), classpath=f"{jars()}/*", die_on_exit=True, javaopts=java
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._gateway.shutdown()
        self._gateway.java_process.stdin.close()  # at which it ends
        self._gateway.java_process.wait(START)

    def connect_anew(self) -> None:
        """Use a socket of this process's own. Called in a fork, which shares that of its parent, and all it knows of the JVM's objects."""
        inherited = self._gateway
        inherited._gateway_client.is_connected = False  # so it releases none of its parent's objects
        self._gateway = JavaGateway(gateway_parameters=inherited.gateway_parameters)
        self._inherited = inherited, self.__dict__.pop("_connection", None)

    def sql(self, text: str) -> list[str]:
        """Run statements as ``Postgres.sql`` does, a little faster."""
        statement = self._connection.createStatement()
        try:
            if not statement.execute(text):
                return []
            found, lines = statement.getResultSet(), list[str]()
            columns = range(1, found.getMetaData().getColumnCount() + 1)
            while found.next():
                lines.append("|".join(str(found.getString(column) or "") for column in columns))
            return lines
        finally:
            statement.close()

    @cached_property
    def _connection(self) -> Any:
        return self.connect()

    def connect(self, user: str = QUICK) -> Any:
        """Return a new ``java.sql.Connection``."""
        return self._gateway.jvm.java.sql.DriverManager.getConnection(self._server.url, user, PASSWORD)


def jars() -> Path:
    """Return the folder with the driver's jar. Raises ``NoJars``."""
    return fetched("postgresql")
