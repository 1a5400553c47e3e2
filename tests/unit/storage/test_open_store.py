"""From a URI to a store, and what the package offers. Runs anywhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from airflow_checkpoint_provider import storage
from airflow_checkpoint_provider.checkpoint.errors import StoreMisconfigured
from airflow_checkpoint_provider.storage import MemoryStore, open_store


def test_exports_are_what_they_were() -> None:
    assert storage.__all__ == ["Listed", "LocalStore", "MemoryStore", "Put", "Store", "open_store", "probe", "put"]
    assert all(hasattr(storage, name) for name in storage.__all__)


@pytest.mark.parametrize("module", ["storage", "storage.base", "storage.local", "checkpoint", "checkpoint.errors"])
def test_each_part_can_be_imported_first(module: str) -> None:
    code = f"import airflow_checkpoint_provider.{module}, sys; print('boto3' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize(
    ("uri", "root"),
    [
        ("/data/ckp", "/data/ckp"),
        ("/data/ckp/", "/data/ckp"),
        ("/data/./x/../ckp", "/data/ckp"),
        ("file:///data/ckp", "/data/ckp"),
        ("file:/data/ckp", "/data/ckp"),
        ("FILE:///data/ckp/", "/data/ckp"),
        (" file:///data/ckp\n", "/data/ckp"),
        ("file:///data/a%20b c", "/data/a%20b c"),
        ("/data/a:b", "/data/a:b"),
    ],
)
def test_a_directory(uri: str, root: str) -> None:
    assert open_store(uri).uri == f"file://{root}"


@pytest.mark.parametrize("uri", ["checkpoints", "./checkpoints", "./a:b"])
def test_a_relative_path_is_made_absolute(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store(uri).uri == f"file://{tmp_path / uri}"


def test_a_store_in_memory_is_one_per_name() -> None:
    one, again, other = open_store("memory://one"), open_store("memory://one"), open_store("memory://other")
    one.create("a", b"x")
    assert one is again
    assert one.uri == "memory://one"
    assert again.read("a") == b"x"
    assert other.read("a") is MemoryStore("one").read("a") is None


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("s3://lake/ckp", "S3 is not supported by this version yet. Write file:///"),
        ("s3a://lake/ckp", "S3 is not supported by this version yet. Write file:///"),
        ("hdfs://namenode/ckp", "no checkpoints on hdfs: rows could go there, the journal could not. Write file:///"),
        ("gs://lake/ckp", "no checkpoints on gs: "),
        ("abfss://c@a.dfs.core.windows.net/ckp", "no checkpoints on abfss: "),
        ("dbfs:/ckp", "no checkpoints on dbfs: "),
        ("s3:/lake", "S3 is not supported"),
        ("a:b", "a relative path with a colon begins with ./"),
        ("file://host/ckp", "names no directory of this machine. Write file:///"),
        ("file://", "names no directory"),
        ("file:///", "names no directory"),
        ("file:ckp", "names no directory"),
        ("/", "names no directory"),
        ("", "names no directory"),
        ("  ", "names no directory"),
        ("~/ckp", "~ is another directory for each user. Write /"),
        ("memory://", "Write memory://name"),
        ("memory://a/b", "Write memory://name"),
    ],
)
def test_what_cannot_be_a_store_is_refused_with_what_to_write(uri: str, says: str) -> None:
    with pytest.raises(StoreMisconfigured) as refused:
        open_store(uri)
    assert says in str(refused.value)
