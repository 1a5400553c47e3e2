"""The archive that a driver gets: its content is what this package holds, whatever lies there already. Runs in Airflow (worker)."""

from __future__ import annotations

import errno
import importlib
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from airflow_checkpoint_provider.errors import StoreMisconfigured
from airflow_checkpoint_provider.hooks.archive import driver_archive, publish
from airflow_checkpoint_provider.storage import open_store
from tests.support.s3server import S3Server

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


# -- where the cluster reads it ------------------------------------------------------------------------------------------


def test_published_archive_is_written_once(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir(mode=0o755)
    uri = publish(str(code), None, f"file://{tmp_path}/checkpoints")
    (archive,) = code.iterdir()
    assert uri == archive.as_uri()
    assert archive.read_bytes() == driver_archive().read_bytes()
    written = archive.stat()
    assert publish(code.as_uri(), None, f"file://{tmp_path}/checkpoints") == uri
    assert archive.stat().st_ino == written.st_ino


@pytest.mark.parametrize("below", ["", "/code", "/jobs/etl.job/code"])
def test_archive_is_not_published_where_checkpoints_are_written(tmp_path: Path, below: str) -> None:
    with pytest.raises(StoreMisconfigured, match="lies below the root of the checkpoints"):
        publish(f"{tmp_path}/checkpoints{below}", None, f"file://{tmp_path}/checkpoints")
    assert not (tmp_path / "checkpoints").exists()


def test_place_beside_the_root_with_a_longer_name_is_used(tmp_path: Path) -> None:
    (tmp_path / "checkpoints-code").mkdir(mode=0o700)
    assert publish(f"{tmp_path}/checkpoints-code", None, f"file://{tmp_path}/checkpoints").endswith(".zip")


def test_place_that_a_link_leads_below_the_root_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "code").mkdir(parents=True)
    (tmp_path / "code").symlink_to(tmp_path / "checkpoints" / "code")
    with pytest.raises(StoreMisconfigured, match="lies below the root of the checkpoints"):
        publish(f"{tmp_path}/code", None, f"file://{tmp_path}/checkpoints")


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777, 0o1777])
def test_archive_is_not_published_where_other_users_may_write(tmp_path: Path, mode: int) -> None:
    code = tmp_path / "code"
    code.mkdir()
    code.chmod(mode)
    with pytest.raises(StoreMisconfigured, match=rf"owner \d+, mode {mode:o}.*chmod go-w {code}"):
        publish(str(code), None, "s3://lake/checkpoints")
    assert not list(code.iterdir())


def test_missing_place_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreMisconfigured, match=r"code='.*/absent' cannot be used: No such file or directory"):
        publish(f"{tmp_path}/absent", None, "s3://lake/checkpoints")


def test_place_that_cannot_be_written_is_named_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "code").mkdir(mode=0o755)
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(
        StoreMisconfigured, match=r"code/airflow_checkpoint_provider-.*cannot be written: No space left"
    ):
        publish(f"{tmp_path}/code", None, "s3://lake/checkpoints")
    assert not list((tmp_path / "code").iterdir())


def test_archive_in_a_bucket_is_written_once_and_named_as_the_connection_does(s3: S3Server, bucket: str) -> None:
    settings = s3.settings()
    uris = {publish(f"s3a://{bucket}/code/", settings, f"s3://{bucket}/checkpoints") for _ in range(2)}
    (uri,) = uris
    name = uri.removeprefix(f"s3a://{bucket}/code/")
    store = open_store(f"s3://{bucket}/code", s3=settings)
    assert [listed.key for listed in store.list("")] == [name]
    assert store.read(name) == driver_archive().read_bytes()


def test_archive_in_a_bucket_with_another_content_is_refused(s3: S3Server, bucket: str) -> None:
    settings = s3.settings()
    name = publish(f"s3://{bucket}/code", settings, "file:///checkpoints").rpartition("/")[2]
    store = open_store(f"s3://{bucket}/code", s3=settings)
    store.overwrite(name, b"print('planted')")
    with pytest.raises(StoreMisconfigured, match=rf"{name} does not hold what this package would write there"):
        publish(f"s3://{bucket}/code", settings, "file:///checkpoints")
    assert store.read(name) == b"print('planted')"
