"""Whether two paths are one folder, and which queries may share a sink. Runs anywhere."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import SinkTaken
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.protocol.query_records import QueryLocation, QueryRecord, Released
from airflow_checkpoint_provider.spark.queries.location.adopting import refuse_copy
from airflow_checkpoint_provider.spark.queries.sources.one_writer import (
    refuse_path_of_another,
    refuse_second_writer,
    same_folder,
)
from airflow_checkpoint_provider.storage import LocalStore


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("s3a://lake/out", "s3://lake/out/", True),
        ("s3n://lake/out", "s3a://lake/out", True),
        ("s3a://lake/out", "s3a://lake/Out", False),
        ("s3a://lake/o%75t", "s3a://lake/out", False),
        ("s3a://lake/out", "s3a://other/out", False),
        ("hdfs://NameNode:8020/out", "hdfs://namenode/out", True),
        ("hdfs://namenode:9000/out", "hdfs://namenode/out", False),
        ("file:/data/out", "hdfs://namenode/data/out", False),
        ("lake.sales.orders", "lake.sales.orders", True),
        ("lake.sales.orders", "lake.sales.Orders", False),
    ],
)
def test_paths_that_are_one_folder(one: str, other: str, same: bool) -> None:
    assert same_folder(one, other) is same_folder(other, one) is same


def test_names_of_one_folder_on_this_host(tmp_path: Path) -> None:
    """A link counts also before the folder is there."""
    (tmp_path / "link").symlink_to(tmp_path / "data")
    assert same_folder(f"file:{tmp_path}/link/out", f"file:{tmp_path}/data/out")
    (tmp_path / "data" / "out").mkdir(parents=True)
    assert same_folder(f"file:{tmp_path}/link/out", f"file:{tmp_path}/data/out")
    assert not same_folder(f"file:{tmp_path}/data", f"file:{tmp_path}/data/out")


def sink(path: str, kind: str = "parquet") -> Any:
    return SimpleNamespace(path=path, target=SimpleNamespace(format=kind))


@pytest.mark.parametrize(
    ("kind", "other", "refused"),
    [("parquet", "json", True), ("delta", "delta", False), ("delta", "parquet", True), ("parquet", "delta", True)],
)
def test_tables_are_shared_and_folders_are_not(kind: str, other: str, refused: bool) -> None:
    def start() -> None:
        refuse_second_writer("b", sink("file:/out", kind), {"a": sink("file:/out", other)})

    if refused:
        with pytest.raises(SinkTaken, match="query 'b' would write to file:/out, where query 'a' of this job writes"):
            start()
    else:
        start()


def test_folder_of_a_released_query_stays_its_own() -> None:
    at = QueryLocation(path="query/a/1-abc", branch=0, sink="file:/out")
    released = Released(uid="a", to="file:///plain", begun=3, committed=3, locations=(at,))
    state: Any = SimpleNamespace(queries=(), released=(released,), released_query=lambda uid: released)
    with pytest.raises(
        SinkTaken, match=r"'a' of this job wrote before it was released to file:///plain.*take 'a' over"
    ):
        refuse_path_of_another("b", sink("file:/out"), {}, state, {})


def test_query_that_is_started_counts_where_it_writes_now() -> None:
    query = QueryRecord(uid="a", locations=(QueryLocation(path="query/a/1-abc", branch=0, sink="file:/out"),))
    state: Any = SimpleNamespace(queries=(query,), released=())
    refuse_path_of_another("b", sink("file:/out"), {"a": sink("file:/new")}, state, {})


def test_copy_of_the_location_of_another_query_is_not_taken_over(tmp_path: Path) -> None:
    """Spark takes both for one query by the id in it, and stops the first one."""
    for name, number in (("first", "1"), ("copied", "1"), ("third", "3")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metadata").write_text(f'{{"id":"{number}"}}')
    store = LocalStore(tmp_path)
    others = {"a": Location(store, "first"), "never begun": Location(store, "empty")}
    with pytest.raises(SinkTaken, match="copied is a copy of a location of query 'a': both have Spark's id 1"):
        refuse_copy(Location(store, "copied"), "b", others)
    refuse_copy(Location(store, "third"), "b", others)
