"""From a URI to a store, and what the package offers. Runs anywhere."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_checkpoint_provider import storage
from airflow_checkpoint_provider.errors import StoreError, StoreMisconfigured
from airflow_checkpoint_provider.storage import LocalStore, MemoryStore, S3Settings, S3Store, open_store, s3_credentials


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
        ("~\0x", "'~\\x00x' contains a line break or another character that cannot be printed. Write file:///"),
        ("/tmp/x\0y", "cannot be printed"),
        ("file:///tmp/x\ny", "cannot be printed"),
        ("s3://lake/\x1b[2Jckp", "cannot be printed"),
        ("memory://\u202eone", "cannot be printed"),
        ("/tmp/\udcff", "cannot be printed"),
        ("~/ckp", "~ is a different directory for each user. Write /"),
        ("memory://", "Write memory://name"),
        ("memory://a/b", "Write memory://name"),
    ],
)
def test_invalid_uri_is_refused_with_what_to_write(uri: str, says: str) -> None:
    with pytest.raises(StoreMisconfigured) as refused:
        open_store(uri)
    assert says in str(refused.value)


ODD = st.text("a/:.~%[]@?#\0\n\x1b\u202e\udcff-_é ", max_size=20) | st.text(max_size=20)
BEGINNINGS = st.sampled_from(["", "/", "~", "./", "file:///", "memory://", "s3://", "s3a://lake/"])


@given(BEGINNINGS, ODD)
def test_any_text_is_refused_or_opens_a_store_that_can_be_used(beginning: str, text: str) -> None:
    try:
        store = open_store(f"{beginning}{text}")
    except StoreMisconfigured:
        return
    assert store.uri.isprintable()
    if isinstance(store, LocalStore):
        with contextlib.suppress(StoreError):  # such as a name of too many bytes
            assert store.read("absent") is None


FIELDS = ("region_name", "role_arn", "profile_name", "verify", "session_token", "access_key_id", "secret_access_key")


@given(st.fixed_dictionaries({"endpoint_url": ODD.map("http://{}".format)}, optional=dict.fromkeys(FIELDS, ODD)))
def test_any_s3_settings_are_refused_or_reach_the_driver(fields: dict[str, str]) -> None:
    """Environment variables and arguments hold no NUL, and headers hold ASCII only."""
    try:
        store = S3Store("lake", "ckp", S3Settings(**fields))
    except StoreMisconfigured:
        return
    handed_over = {**s3_credentials.confs(store), **s3_credentials.keys(store)}
    assert all(value.isprintable() for value in handed_over.values())
    assert all(value.isascii() for value in s3_credentials.keys(store).values())
