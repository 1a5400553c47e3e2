"""Processes of the tests that download the same: on a new checkout, all begin at once. Runs anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.downloads import put


def made(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "driver.jar").write_text(text)
    return folder


def test_first_of_two_downloads_stays(tmp_path: Path) -> None:
    target = tmp_path / ".jars"
    for name in ("first", "second"):
        put(made(tmp_path / name, name), target)
    assert (target / "driver.jar").read_text() == "first"


def test_download_that_cannot_be_put_there_fails(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        put(made(tmp_path / "first", ""), tmp_path / "no folder" / ".jars")
