"""Drivers with other releases of Spark than the installed one. pip brings them; each takes some 500 MB while the test runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_checkpoint_provider.protocol.handover import ExitCode
from tests.support.runs import Home

INSTALLATION = 1200  # seconds


def python_with_spark(folder: Path, release: str) -> str:
    """Return the Python of a new environment that holds the newest PySpark of ``release``, and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=INSTALLATION)
    pip = [str(folder / "bin" / "pip"), "install", "-q", f"pyspark=={release}.*"]
    subprocess.run(pip, check=True, timeout=INSTALLATION)
    return str(folder / "bin" / "python")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("release", ["4.0", "4.1"])
def test_killed_job_continues_on_release(tmp_path: Path, release: str) -> None:
    python = python_with_spark(tmp_path / "spark", release)
    home = Home(tmp_path / "home", python=python)
    home.env["PATH"] = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"  # by it spark-submit finds its Spark

    killed = home.run(("kill", "stage/priced/rows-written"))
    assert (killed.code, set(killed.computed)) == (-9, {"clean", "named", "priced"}), killed.log

    ended = home.run(submit=True)
    assert ended.code == 0, ended.log
    assert set(ended.computed) == {"priced", "totals"}
    names, rows = ended.result["values"]
    assert (names, rows) == (["clean", "named", "priced", "totals"], 3 * 16_000 + 7)
    assert sum(row["sales"] for row in home.report()) == 16_000
    assert all(attempt.versions.spark.startswith(release) for attempt in home.coordinator().state.attempts)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_job_on_spark_3_is_refused_in_one_line(tmp_path: Path) -> None:
    home = Home(tmp_path / "home", python=python_with_spark(tmp_path / "spark", "3.5"))
    refused = home.run()
    assert refused.code == ExitCode.FAILED, refused.log  # without Airflow, nobody would retry
    last = refused.log.splitlines()[-1]
    assert "needs Spark 4.0 or newer, found 3.5." in last
    assert last.endswith("[CKP606]")
    assert home.coordinator().state.attempts == ()
