"""The wheel on each Python that the README names, installed as docs/start/first-job.md says. Each takes 1.5 GB while the test runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.drivers import ROOT
from tests.support.first_job import blocks
from tests.support.runs import Home

INSTALLATION = 1800  # seconds
RELEASES = ("3.12", "3.13")  # all other tests run with 3.11
PARTS = ("cli", "hooks", "operators", "sensors", "triggers", "task_groups")
IMPORT = "; ".join(f"import airflow_checkpoint_provider.{part}" for part in PARTS)


def interpreter(release: str) -> str:
    """Return a Python of this release, or skip. pyenv's shims run only the release that is chosen."""
    places = map(str, Path.home().glob(f".pyenv/versions/{release}.*/bin/python3"))
    for place in filter(None, (shutil.which(f"python{release}"), *places)):
        version = subprocess.run([place, "--version"], capture_output=True, text=True, timeout=60, check=False)
        if version.stdout.startswith(f"Python {release}."):
            return place
    pytest.skip(f"this machine has no Python {release}")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy, so that no build touches the working tree."""
    source, dist = tmp_path_factory.mktemp("tree") / "source", tmp_path_factory.mktemp("dist")
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist"))
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(dist),
        str(source),
    ]
    subprocess.run(pip, check=True, timeout=INSTALLATION)
    (built,) = dist.iterdir()
    return built


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("release", RELEASES)
def test_wheel_works_on_python(tmp_path: Path, wheel: Path, release: str) -> None:
    _, install = blocks(1)
    commands = install.replace("python3 -m venv", f"{interpreter(release)} -m venv")
    commands = commands.replace("../airflow-checkpoint-provider[", f"{wheel}[")
    assert str(wheel) in commands
    subprocess.run(["bash", "-ec", commands], cwd=tmp_path, check=True, timeout=INSTALLATION)
    folder = tmp_path / "first" / ".venv" / "bin"
    home = Home(tmp_path / "home", python=str(folder / "python"))
    home.env |= {"PATH": f"{folder}:/usr/bin:/bin", "PYTHONPATH": "", "AIRFLOW_HOME": str(tmp_path / "airflow")}

    subprocess.run([folder / "python", "-c", IMPORT], env={**home.env}, cwd=tmp_path, check=True, timeout=120)
    shown = subprocess.run(
        [folder / "airflow", "providers", "list"],
        env=home.env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "airflow-checkpoint-provider" in shown.stdout

    killed = home.run(("kill", "stage/priced/rows-written"))
    assert (killed.code, set(killed.computed)) == (-9, {"clean", "named", "priced"}), killed.log
    ended = home.run(submit=True)
    assert ended.code == 0, ended.log
    assert set(ended.computed) == {"priced", "totals"}
    assert sum(row["sales"] for row in home.report()) == 16_000
