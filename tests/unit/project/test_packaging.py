"""The wheel: what is in it, and that each place imports what it may and works where nothing else is installed."""

from __future__ import annotations

import configparser
import email
import importlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag

import airflow_checkpoint_provider

ROOT = Path(airflow_checkpoint_provider.__file__).parents[1]
PACKAGE = "airflow_checkpoint_provider"
PAGE = ROOT / "docs" / "start" / "versions.md"

# argv: JSON of packages, then folders for sys.path. Prints what was imported that neither Python nor we brought.
IMPORT_ALL = """
import importlib, json, pkgutil, sys, sysconfig
sys.path += sys.argv[2:]
for name in json.loads(sys.argv[1]):
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        importlib.import_module(module.name)
python = sysconfig.get_path("stdlib")
loaded = [(name.partition(".")[0], getattr(module, "__file__", None) or python) for name, module in sys.modules.items()]
foreign = {name for name, file in loaded if not file.startswith(python)}
print(json.dumps(sorted(foreign - {"airflow_checkpoint_provider"})))
"""


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy, so that no build touches the working tree."""
    source, dist = tmp_path_factory.mktemp("tree") / "source", tmp_path_factory.mktemp("dist")
    built = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")
    shutil.copytree(
        ROOT,
        source,
        ignore=lambda folder, names: {
            *built(folder, names),
            *(name for name in names if name.startswith(".") and Path(folder) == ROOT),  # .git, .venv, caches
        },
    )
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", dist, source)
    (made,) = dist.iterdir()
    return made


@pytest.fixture(scope="session")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the ``bin`` of an environment that holds only the wheel, not even pip."""
    home = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", "--without-pip", home)
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        home / "bin" / "python",
        "install",
        "-q",
        "--no-index",
        "--no-deps",
        wheel,
    )
    return home / "bin"


def borrowed(tmp_path: Path, *names: str) -> Path:
    """Return a folder with links to these packages of the own environment."""
    for name in names:
        (tmp_path / name).symlink_to(Path(str(importlib.import_module(name).__file__)).parent)
    return tmp_path


def imported(clean: Path, *packages: str, path: Path | None = None) -> list[str]:
    names = json.dumps([f"{PACKAGE}.{package}" for package in packages])
    found: list[str] = json.loads(run(clean / "python", "-I", "-c", IMPORT_ALL, names, *([path] if path else [])))
    return found


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == {
        str(file.relative_to(ROOT))
        for file in (ROOT / PACKAGE).rglob("*")
        if file.suffix in (".py", ".html", ".css", ".js") or file.name in ("py.typed", ".airflowignore")
    }
    assert f"{PACKAGE}/py.typed" in held


def test_example_dags_of_the_wheel_are_parsed_and_find_their_jobs(wheel: Path, tmp_path: Path) -> None:
    """As Airflow does it with ``load_examples``: from the files of the wheel, wherever they lie."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    folder = tmp_path / PACKAGE / "example_dags"
    bag = DagBag(folder, load_op_links=False)
    assert bag.import_errors == {}
    files = {dag.fileloc for dag in bag.dags.values()}
    assert files == {str(file) for file in folder.glob("*.py")}
    arguments = [getattr(task, "partial_kwargs", None) or vars(task) for dag in bag.dags.values() for task in dag.tasks]
    jobs = [str(given["application"]) for given in arguments if "application" in given]
    assert {Path(job) for job in jobs if "{{" not in job} >= {*(folder / "jobs").glob("*.py")}


def test_wheel_has_the_entry_points(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt"))
        written = configparser.ConfigParser()
        written.read_string(archive.read(name).decode())
    assert {group: dict(written[group]) for group in written.sections()} == {
        "apache_airflow_provider": {"provider_info": f"{PACKAGE}.get_provider_info:get_provider_info"},
        "airflow.plugins": {"checkpoints": f"{PACKAGE}.ui.plugin:CheckpointsPlugin"},
        "console_scripts": {"checkpoints": f"{PACKAGE}.cli.main:main"},
    }


def test_wheel_states_and_holds_its_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (folder,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        metadata = email.message_from_bytes(archive.read(f"{folder}/METADATA"))
        assert metadata["License-Expression"] == "Apache-2.0"
        assert metadata.get_all("License-File") == ["LICENSE"]
        assert archive.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_classifiers_name_each_version_of_python_that_is_accepted(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    versions = [line.split(" :: ")[2] for line in metadata.get_all("Classifier") or () if "Python :: 3." in line]
    assert versions == ["3.11", "3.12", "3.13"]
    assert metadata["Requires-Python"] == f">={versions[0]}"


def test_page_states_the_versions_of_the_metadata() -> None:
    rows = re.findall(r"^\| (\w+)[^|]* \| ([\d.]+)", PAGE.read_text().split("## Versions")[1], re.MULTILINE)
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    stated = dict(rows)
    assert f"apache-airflow>={stated['Airflow']}," in metadata["options"]["install_requires"]
    assert metadata["options"]["python_requires"] == f">={stated['Python']}"
    assert "pandas<3" in metadata["options.extras_require"]["spark"].splitlines()


def test_newest_entry_of_the_changelog_is_this_version() -> None:
    (newest, *_) = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest == airflow_checkpoint_provider.__version__


def test_metadata_has_the_version_of_the_package(clean: Path) -> None:
    code = f"import importlib.metadata as m, {PACKAGE} as p; print(m.version({PACKAGE!r}) == p.__version__)"
    assert run(clean / "python", "-I", "-c", code) == "True\n"


def test_checkpoint_and_storage_need_only_the_standard_library(clean: Path) -> None:
    assert imported(clean, "checkpoint", "storage") == []


def test_driver_needs_only_pyspark(clean: Path, tmp_path: Path) -> None:
    path = borrowed(tmp_path, "pyspark", "py4j")
    assert imported(clean, "checkpoint", "storage", "spark", path=path) == ["py4j", "pyspark"]


def test_command_runs_without_airflow(clean: Path) -> None:
    assert "--root" in run(clean / "checkpoints", "--help")


def test_lock_pins_all_requirements() -> None:
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    asked = [metadata["options"]["install_requires"], *metadata["options.extras_require"].values()]
    names = {re.split(r"[=<>\[]", line)[0] for lines in asked for line in lines.split()}
    pinned = {line.split("==")[0] for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line}
    assert names <= pinned


def test_lock_has_hashes_of_all_packages_and_no_host() -> None:
    text = (ROOT / "requirements.lock").read_text()
    packages = re.findall(r"^\S+==(?:.*\\\n)*.*", text, re.MULTILINE)
    assert len(packages) > 100
    assert not [package for package in packages if "--hash=sha256:" not in package]
    assert "://" not in text
    assert "-url" not in text
