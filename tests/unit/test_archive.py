"""The archive that a driver gets: its content is what this package holds, whatever lies there already. Runs in Airflow (worker)."""

from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path

import pytest

from airflow_checkpoint_provider.hooks.archive import driver_archive


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
