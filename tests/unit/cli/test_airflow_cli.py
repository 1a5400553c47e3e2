"""``airflow checkpoints``, as Airflow's own command runs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from airflow_checkpoint_provider.storage import LocalStore, S3Store
from tests.support.acting import Job
from tests.support.recorded import Recorded, three_stages
from tests.support.s3server import S3Server
from tests.unit.cli.conftest import FLIGHTS, Done

VARIABLE = "AIRFLOW_CONN_CHECKPOINT_DEFAULT"


def airflow(home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return subprocess.run(
        [sys.executable, "-m", "airflow", *arguments],
        env={**inherited, "AIRFLOW_HOME": str(home), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def connection(root: Path) -> str:
    return json.dumps({"conn_type": "checkpoint_storage", "extra": {"root": str(root)}})


def test_import_loads_only_the_verbs() -> None:
    code = (
        "import json, sys, airflow_checkpoint_provider.cli.airflow_cli;"
        " print(json.dumps([name for name in sys.modules if name.startswith(('airflow.', 'rich', 'airflow_checkpoint_provider.'))]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    package = "airflow_checkpoint_provider.cli"
    assert set(json.loads(done.stdout)) == {package, f"{package}.airflow_cli", f"{package}.verbs"}


# -- several commands in one process, because each process imports Airflow for seconds -----------------------------------

COMMANDS = {
    "jobs": ("jobs", "--output", "json"),
    "savepoint": ("savepoint", "orders", "--name", "by Airflow", "--no-wait", "--output", "json"),
    "stop of an unknown job": ("stop", "nobody", "--yes"),
    "list of an unknown job": ("list", "nobody"),
    "jobs in S3": ("jobs", "--conn-id", "in_s3"),
}
RUN_ALL = """
import json, os, sys, tempfile
results = {}
stdout = os.dup(1)
for name, arguments in json.load(sys.stdin).items():
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        os.dup2(out.fileno(), 1), os.dup2(err.fileno(), 2)
        sys.argv, code = ["airflow", "checkpoints", *arguments], 0
        try:
            from airflow.__main__ import main
            main()
        except SystemExit as ended:
            code = ended.code
        sys.stdout.flush(), sys.stderr.flush()
        out.seek(0), err.seek(0)
        results[name] = [code, out.read().decode(), err.read().decode()]
os.write(stdout, json.dumps(results).encode())
"""


class Ran(NamedTuple):
    job: Job  # ``orders``, in the local root
    results: dict[str, Done]


@pytest.fixture(scope="module")
def ran(written: Path, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Run ``COMMANDS`` on a local root with three jobs, and on a root in S3 with one."""
    root = tmp_path_factory.mktemp("airflow") / "lake"
    shutil.copytree(written, root)
    job = Job(LocalStore(str(root)))
    job.start()
    job.beat()  # without a heartbeat ``jobs`` would watch the driver for 30 s
    s3_server.make_bucket("lake-of-airflow")
    in_s3 = S3Store("lake-of-airflow", "ckp", s3_server.settings())
    recorded = Recorded(in_s3, job="job.in.s3")
    three_stages(recorded)
    recorded.ended("03:00:00")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        input=json.dumps(COMMANDS),
        env={
            **inherited,
            "AIRFLOW_HOME": str(root.parent / "home"),
            VARIABLE: connection(root),
            "AIRFLOW_CONN_IN_S3": json.dumps(s3_server.connection(in_s3.uri)),
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return Ran(job, {name: Done(*result) for name, result in json.loads(done.stdout).items()})


def test_jobs_lists_jobs_below_the_root_of_the_connection(ran: Ran) -> None:
    done = ran.results["jobs"]
    assert (done.code, done.err) == (0, "")
    newest_first = [job["job"] for job in json.loads(done.out)]
    assert newest_first == ["orders", FLIGHTS, "etl.orders"]


def test_savepoint_is_triggered_below_the_root_of_the_connection(ran: Ran) -> None:
    done = ran.results["savepoint"]
    assert (done.code, done.err) == (0, "")
    assert (json.loads(done.out)["name"], ran.job.checkpoint(1).kind) == ("by Airflow", "savepoint")


@pytest.mark.parametrize("command", ["stop of an unknown job", "list of an unknown job"])
def test_failed_verb_exits_with_its_code(ran: Ran, command: str) -> None:
    done = ran.results[command]
    assert (done.code, done.err[-9:]) == (4, "[CKP624]\n")


def test_root_in_s3_is_read_with_the_credentials_of_the_connection(ran: Ran) -> None:
    done = ran.results["jobs in S3"]
    assert done.code == 0, done.err
    assert "job.in.s3" in done.out


@pytest.mark.slow
def test_store_is_found_without_a_variable(lake: LocalStore, root: Path, tmp_path: Path) -> None:
    """An unreadable database is an error. Without a connection the folder of local jobs is used; a connection wins over it."""
    home = tmp_path / "home"
    unreadable = airflow(home, "checkpoints", "jobs")
    assert (unreadable.returncode, unreadable.stdout) == (1, "")
    assert unreadable.stderr.endswith("[CKP640]\n")
    assert airflow(home, "db", "migrate").returncode == 0
    nothing = airflow(home, "checkpoints", "jobs")
    assert (nothing.returncode, nothing.stderr[-9:]) == (2, "[CKP641]\n")
    Recorded(LocalStore(str(home / "checkpoints")), job="local.job").launched("22:00:20")
    assert "local.job" in airflow(home, "checkpoints", "jobs").stdout
    assert airflow(home, "connections", "add", "checkpoint_default", "--conn-json", connection(root)).returncode == 0
    assert FLIGHTS in airflow(home, "checkpoints", "jobs").stdout
    another = airflow(home, "checkpoints", "jobs", "--conn-id", "another")
    assert (another.returncode, another.stdout, another.stderr[-9:]) == (2, "", "[CKP641]\n")
