"""``CheckpointStorageHook``: the root of a connection, and fields that are refused. Runs in Airflow (worker)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_checkpoint_provider.errors import NotSupportedYet, StoreMisconfigured
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.connections import ConnectionMalformed, NoConnection


def connect(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> CheckpointStorageHook:
    connection = {"conn_type": "checkpoint_storage", **fields}
    monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", json.dumps(connection))
    return CheckpointStorageHook()


def test_root_is_that_of_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    assert connect(monkeypatch, extra={"root": "/shared/checkpoints"}).get_store().uri == "file:///shared/checkpoints"


def test_connection_may_be_a_uri(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MINE", "checkpoint-storage://?root=file%3A%2F%2F%2Fshared%2Fcheckpoints")
    assert CheckpointStorageHook("mine").get_store().uri == "file:///shared/checkpoints"


def test_connection_wins_over_a_local_master(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, extra={"root": "/shared"})
    assert CheckpointStorageHook(master="local[2]").get_store().uri == "file:///shared"


@pytest.mark.parametrize("root", ["hdfs://namenode/ckp", "gs://lake/ckp"])
def test_unsupported_store_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, root: str) -> None:
    with pytest.raises(StoreMisconfigured, match=root):
        connect(monkeypatch, extra={"root": root}).get_store()


@pytest.mark.parametrize("extra", [{}, {"root": ""}, {"root": "checkpoints"}, {"root": "memory://mine"}, {"root": 7}])
def test_root_that_is_no_absolute_path_is_refused(monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any]) -> None:
    with pytest.raises(StoreMisconfigured, match="absolute path"):
        connect(monkeypatch, extra=extra).get_store()


def test_savepoint_roots_limit_where_savepoints_may_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"root": "/shared/checkpoints", "savepoint_roots": ["file:///shared/savepoints/"]}
    store = connect(monkeypatch, extra=extra).get_store()
    assert store.savepoint_roots == ("file:///shared/checkpoints", "file:///shared/savepoints")


@pytest.mark.parametrize("roots", ["/shared/savepoints", ["savepoints"], [7], {"a": "/b"}, True, ["memory://mine"]])
def test_savepoint_roots_that_are_no_list_of_places_are_refused(monkeypatch: pytest.MonkeyPatch, roots: Any) -> None:
    with pytest.raises(StoreMisconfigured, match=r'savepoint_roots is the list.*\["s3://bucket/savepoints"\]'):
        connect(monkeypatch, extra={"root": "/a", "savepoint_roots": roots}).get_store()


@pytest.mark.parametrize("field", ["login", "password", "host", "schema"])
def test_fields_without_effect_are_refused(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    with pytest.raises(NotSupportedYet, match=f"has {field};"):
        connect(monkeypatch, extra={"root": "/a"}, **{field: "x"}).get_store()


def test_extras_without_effect_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotSupportedYet, match="has endpoint_url, verify;"):
        connect(monkeypatch, extra={"root": "/a", "verify": True, "endpoint_url": "x"}).get_store()


def test_connection_of_another_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreMisconfigured, match="'fs'"):
        connect(monkeypatch, conn_type="fs", extra={"root": "/a"}).get_store()


@pytest.mark.parametrize("master", [None, "yarn", "local[2]"])
def test_unreadable_connection_is_not_missing(monkeypatch: pytest.MonkeyPatch, master: str | None) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", "{not json")
    with pytest.raises(ConnectionMalformed):
        CheckpointStorageHook(master=master).get_store()


def test_missing_connections_are_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistyped name of the Spark connection makes the master yarn, which has no place of its own for checkpoints."""
    monkeypatch.setattr("airflow_checkpoint_provider._airflow.find_connection", lambda _: None)
    with pytest.raises(NoConnection) as error:
        CheckpointStorageHook(master="yarn", spark_conn_id="spark_defualt").get_store()
    both = r"no connection 'checkpoint_default' \(checkpoint_conn_id=\), and no connection 'spark_defualt' \(conn_id=, of Spark"
    assert re.search(both, str(error.value))


def test_missing_connection_names_the_spark_connection_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"spark_cluster": Connection(conn_id="spark_cluster", conn_type="spark")}
    monkeypatch.setattr("airflow_checkpoint_provider._airflow.find_connection", known.get)
    with pytest.raises(NoConnection, match="the master of connection 'spark_cluster' is yarn"):
        CheckpointStorageHook(master="yarn", spark_conn_id="spark_cluster").get_store()


def test_missing_connection_of_an_unknown_job_says_nothing_of_a_master(monkeypatch: pytest.MonkeyPatch) -> None:
    """This text also stands in the log of a task that waits for the job's first launch."""
    monkeypatch.setattr("airflow_checkpoint_provider._airflow.find_connection", lambda _: None)
    with pytest.raises(NoConnection, match=r"has no job 'orders'\. Start the job first, or add the connection: type"):
        CheckpointStorageHook().get_store_of("orders")


ASKED: list[Callable[[CheckpointStorageHook, str], object]] = [
    lambda hook, _: hook.get_store(),
    lambda hook, _: hook.get_store_of("orders"),
    lambda hook, root: hook.get_store_at(root),
    lambda hook, _: hook.get_store_beside(),
]


@pytest.mark.parametrize("asked", ASKED)
def test_folder_of_local_jobs_replaces_only_the_default_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: Callable[[CheckpointStorageHook, str], object]
) -> None:
    """With a mistyped connection name the folder would lead to other checkpoints."""
    there = "airflow_checkpoint_provider.hooks.checkpoint_storage"
    monkeypatch.setattr(f"{there}.find_connection", lambda _: None)  # here is no Airflow to say so
    monkeypatch.setattr(f"{there}.get_airflow_home", lambda: str(tmp_path))
    (tmp_path / "checkpoints" / "jobs" / "orders").mkdir(parents=True)
    root = f"file://{tmp_path}/checkpoints"
    assert getattr(asked(CheckpointStorageHook(master="local"), root), "uri", None) == root
    with pytest.raises(NoConnection, match=r"no connection 'mien'\. Correct the name, or add it"):
        asked(CheckpointStorageHook("mien", master="local"), root)


def test_test_connection_passes_a_good_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ok, text = connect(monkeypatch, extra={"root": str(tmp_path)}).test_connection()
    assert ok
    assert str(tmp_path) in text
    assert os.listdir(tmp_path) == []


def test_test_connection_reports_a_folder_that_does_not_exist_and_creates_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ok, text = connect(monkeypatch, extra={"root": str(tmp_path / "mistyped")}).test_connection()
    assert not ok
    assert text.startswith(f"the folder {tmp_path}/mistyped does not exist. Create it")
    assert os.listdir(tmp_path) == []


def test_folder_of_local_jobs_without_a_connection_is_created(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there = "airflow_checkpoint_provider.hooks.checkpoint_storage"
    monkeypatch.setattr(f"{there}.find_connection", lambda _: None)
    monkeypatch.setattr(f"{there}.get_airflow_home", lambda: str(tmp_path))
    CheckpointStorageHook(master="local").get_store().create("key", b"")
    assert (tmp_path / "checkpoints" / "key").exists()


def test_test_connection_does_not_say_the_name_that_airflow_makes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ok, text = connect(monkeypatch, extra={"root": "checkpoints"}).test_connection()
    assert not ok
    assert text.startswith("This connection must say")


def test_test_connection_reports_an_unusable_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ok, text = connect(monkeypatch, extra={"root": str(tmp_path / "file")}).test_connection()
    assert not ok
    assert "CKP61" in text
