"""From a URI to a store, and what the package offers. Runs anywhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from airflow_checkpoint_provider import storage
from airflow_checkpoint_provider.errors import StoreMisconfigured
from airflow_checkpoint_provider.storage import MemoryStore, S3Settings, S3Store, open_store


def test_exports_of_storage() -> None:
    assert storage.__all__ == [
        "Listed",
        "LocalStore",
        "MemoryStore",
        "Put",
        "S3Settings",
        "S3Store",
        "Store",
        "copy_all",
        "open_store",
        "probe",
    ]
    assert all(hasattr(storage, name) for name in storage.__all__)


@pytest.mark.parametrize("module", ["storage", "storage.base", "storage.local", "storage.s3", "checkpoint", "errors"])
def test_module_can_be_imported_first_without_boto3(module: str) -> None:
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
def test_uri_of_a_directory_opens_a_local_store(uri: str, root: str) -> None:
    assert open_store(uri).uri == f"file://{root}"


@pytest.mark.parametrize("uri", ["checkpoints", "./checkpoints", "./a:b"])
def test_relative_path_becomes_absolute(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store(uri).uri == f"file://{tmp_path / uri}"


@pytest.mark.parametrize(
    ("uri", "root"),
    [
        ("s3://lake/ckp", "s3://lake/ckp"),
        ("s3a://lake/ckp/", "s3://lake/ckp"),
        ("S3://lake/a/b=c d%20", "s3://lake/a/b=c d%20"),
        (" s3://lake\n", "s3://lake"),
        ("s3://lake/", "s3://lake"),
    ],
)
def test_uri_of_a_bucket_opens_an_s3_store(uri: str, root: str) -> None:
    settings = S3Settings(region_name="eu-central-1")
    store = open_store(uri, s3=settings)
    assert isinstance(store, S3Store)
    assert (store.uri, store.settings) == (root, settings)
    assert open_store(uri).uri == root


def test_beside_a_store_in_s3_its_settings_are_good_for_other_buckets(tmp_path: Path) -> None:
    ours = open_store("s3://lake/ckp", s3=S3Settings(region_name="eu-central-1"))
    theirs = ours.beside("s3a://other")
    assert isinstance(theirs, S3Store)
    assert isinstance(ours, S3Store)
    assert (theirs.uri, theirs.settings) == ("s3://other", ours.settings)
    assert open_store(str(tmp_path)).beside("s3://other").uri == "s3://other"


def test_keys_in_a_root_are_refused_and_not_shown() -> None:
    with pytest.raises(StoreMisconfigured, match="more than bucket and prefix") as refused:
        open_store("s3://AKIAX:secret@lake/ckp")
    assert "secret" not in str(refused.value)


def test_memory_store_is_one_per_name() -> None:
    first, again, other = open_store("memory://one"), open_store("memory://one"), open_store("memory://other")
    first.create("a", b"x")
    assert first is again
    assert first.uri == "memory://one"
    assert again.read("a") == b"x"
    assert other.read("a") is MemoryStore("one").read("a") is None


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("hdfs://namenode/ckp", "checkpoints on hdfs are not supported. Write file:///"),
        ("gs://lake/ckp", "checkpoints on gs are not supported"),
        ("abfss://c@a.dfs.core.windows.net/ckp", "checkpoints on abfss are not supported"),
        ("dbfs:/ckp", "checkpoints on dbfs are not supported"),
        ("s3:/lake", "has no bucket, or more than bucket and prefix. Write s3://bucket/prefix"),
        ("s3:lake", "has no bucket"),
        ("s3://", "has no bucket"),
        ("s3:///ckp", "has no bucket"),
        ("s3://lake?endpoint=x", "has no bucket"),
        ("s3://lake//ckp/../x", "is not a valid key"),
        ("s3a://lake/a//b", "is not a valid key"),
        ("a:b", "begin a relative path that contains a colon with ./"),
        ("file://host/ckp", "is not a directory of this machine. Write file:///"),
        ("file://", "is not a directory"),
        ("file:///", "is not a directory"),
        ("file:ckp", "is not a directory"),
        ("/", "is not a directory"),
        ("", "is not a directory"),
        ("  ", "is not a directory"),
        ("~/ckp", "~ is a different directory for each user. Write /"),
        ("memory://", "Write memory://name"),
        ("memory://a/b", "Write memory://name"),
    ],
)
def test_invalid_uri_is_refused_with_what_to_write(uri: str, says: str) -> None:
    with pytest.raises(StoreMisconfigured) as refused:
        open_store(uri)
    assert says in str(refused.value)
