"""``airflow checkpoints``, as Airflow's own command runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from airflow_checkpoint_provider.cli import airflow_cli, verbs
from airflow_checkpoint_provider.storage import LocalStore
from tests.support.acting import Job
from tests.support.recorded import Recorded
from tests.unit.cli.conftest import FLIGHTS

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


def test_jobs_lists_jobs_below_the_root_of_the_connection(lake: LocalStore, root: Path, tmp_path: Path) -> None:
    done = airflow(tmp_path / "home", "checkpoints", "jobs", "--output", "json", **{VARIABLE: connection(root)})
    assert (done.returncode, done.stderr) == (0, "")
    assert [job["job"] for job in json.loads(done.stdout)] == [FLIGHTS, "etl.orders"]


def test_savepoint_is_triggered_below_the_root_of_the_connection(job: Job, root: Path, tmp_path: Path) -> None:
    asks = ("checkpoints", "savepoint", "orders", "--name", "by Airflow", "--no-wait", "--output", "json")
    done = airflow(tmp_path / "home", *asks, **{VARIABLE: connection(root)})
    assert (done.returncode, done.stderr) == (0, "")
    assert (json.loads(done.stdout)["name"], job.checkpoint(2).kind) == ("by Airflow", "savepoint")
    refused = airflow(tmp_path / "home", "checkpoints", "stop", "nobody", "--yes", **{VARIABLE: connection(root)})
    assert (refused.returncode, refused.stderr[-9:]) == (4, "[CKP624]\n")


def test_failed_verb_exits_with_its_code(
    lake: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, connection(root))
    options = Namespace(job="nobody", run=None, limit=20, output="table", conn_id=airflow_cli.CONNECTION)
    with pytest.raises(SystemExit) as ended:
        airflow_cli.run(verbs.list_, options)
    assert ended.value.code == 4
    assert capsys.readouterr().err.endswith("[CKP624]\n")


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
