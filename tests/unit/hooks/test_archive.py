"""The archive that a driver gets: its content is what this package holds, whatever lies there already. Runs in Airflow (worker)."""

from __future__ import annotations

import importlib
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from airflow_checkpoint_provider.hooks.archive import driver_archive

# argv: the archive, then a folder with what a driver has besides. Prints how many modules were imported.
IMPORT_ALL = """
import importlib, pkgutil, sys
sys.path[:0] = sys.argv[1:]
package = importlib.import_module("airflow_checkpoint_provider")
assert package.__file__.startswith(sys.argv[1]), package.__file__
print(sum(1 for found in pkgutil.walk_packages(package.__path__, package.__name__ + ".") if importlib.import_module(found.name)))
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    return tmp_path


def test_archive_is_written_once_and_can_be_read_by_other_users() -> None:
    """Airflow may run the tasks of one worker as several users."""
    archive = driver_archive()
    written = archive.stat()
    assert stat.S_IMODE(written.st_mode) == 0o644
    assert "airflow_checkpoint_provider/errors.py" in zipfile.ZipFile(archive).namelist()
    assert driver_archive() == archive
    assert archive.stat().st_ino == written.st_ino
    assert os.listdir(archive.parent) == [archive.name]


def test_driver_that_has_pyspark_and_the_archive_can_import_all_of_it(tmp_path: Path) -> None:
    """Other tests run where the package is installed: there a folder that the archive lacks is found all the same."""
    for name in ("pyspark", "py4j"):
        (tmp_path / name).symlink_to(Path(str(importlib.import_module(name).__file__)).parent)
    archive = driver_archive()
    python = [sys.executable, "-I", "-S", "-c", IMPORT_ALL, str(archive), str(tmp_path)]
    done = subprocess.run(python, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    held = [name for name in zipfile.ZipFile(archive).namelist() if name != "airflow_checkpoint_provider/__init__.py"]
    assert int(done.stdout) == len(held)


def test_archive_with_another_content_is_not_used() -> None:
    archive = driver_archive()
    body = archive.read_bytes()
    archive.write_bytes(b"print('planted')")
    assert driver_archive().read_bytes() == body


def test_links_in_the_folder_of_the_archive_are_not_written_through(home: Path) -> None:
    archive = driver_archive()
    body = archive.read_bytes()
    archive.unlink()
    victim = home / "victim"
    victim.write_text("mine")
    for name in (archive.name, f".{archive.name}.{os.getpid()}"):
        (archive.parent / name).symlink_to(victim)
    assert driver_archive().read_bytes() == body
    assert not archive.is_symlink()
    assert victim.read_text() == "mine"
