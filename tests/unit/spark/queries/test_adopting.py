"""What is refused of a location from elsewhere, before anything is changed there. Runs anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import CheckpointError, Damaged, NotSupportedYet, SinkMoved, WrongUse
from airflow_checkpoint_provider.location.fence import FenceEntry
from airflow_checkpoint_provider.location.files import Location, Position, location_at
from airflow_checkpoint_provider.spark.queries.location.adopting import examine_adopted, refuse_fenced
from airflow_checkpoint_provider.storage import LocalStore

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
OURS = "1ncarnation"


def offsets(version: str = "v1", **conf: str) -> bytes:
    return f'{version}\n{json.dumps({"batchWatermarkMs": 0, "conf": {"spark.sql.shuffle.partitions": "2"} | conf})}\n{{"logOffset":1}}'.encode()


def fenced(incarnation: str, uid: str) -> bytes:
    return FenceEntry(incarnation, uid, "nonce", "attempt 1 of orders").to_bytes()


def location(folder: Path, **files: bytes) -> Location:
    """Return a location with two committed batches, and ``files`` instead of its own; ``offsets_1`` is ``offsets/1``."""
    found = Location(LocalStore(folder), "plain")
    known = {"metadata": b"{}", "offsets_0": offsets(), "offsets_1": offsets(), "commits_0": b"v1", "commits_1": b"v1"}
    for name, body in (known | files).items():
        found.store.create(found.key_of(name.replace("_", "/")), body)
    return found


def sink(met: list[Position], error: Exception | None = None) -> Any:
    """Return a sink that records the positions that it checks."""

    def check_can_continue(position: Position, before: str | None) -> None:
        met.append(position)
        if error:
            raise error

    return SimpleNamespace(check_can_continue=check_can_continue)


def contents(found: Location) -> dict[str, bytes]:
    return {name: found.read(name) for name in found.sizes()}


@pytest.mark.parametrize(
    ("files", "error", "says"),
    [
        ({"offsets_1": offsets("v2")}, NotSupportedYet, "the offsets in .* have format 2"),
        ({"offsets_1": offsets(**{FORMAT: "2"})}, NotSupportedYet, "the state in .* has format 2"),
        ({"offsets_1": b""}, Damaged, "offsets/1 is not what Spark writes"),
        ({"offsets_1": b"v1\n{"}, Damaged, "offsets/1 is not what Spark writes"),
        ({"offsets_2": fenced("another", "rows")}, WrongUse, "was taken over by attempt 1 of orders"),
        ({"offsets_2": fenced(OURS, "others")}, WrongUse, "as query 'others'"),
    ],
    ids=["offsets v2", "state v2", "empty", "torn", "another history's", "another query's"],
)
def test_location_that_cannot_be_taken_over_is_refused_and_stays_as_it_is(
    tmp_path: Path, files: dict[str, bytes], error: type[CheckpointError], says: str
) -> None:
    found, met = location(tmp_path, **files), list[Position]()
    before = contents(found)
    with pytest.raises(error, match=says):
        examine_adopted(found, "rows", OURS, sink(met))
    assert contents(found) == before
    assert not met


def test_location_that_this_query_has_fenced_is_taken_over_again(tmp_path: Path) -> None:
    """An attempt may have been killed after its fence."""
    met = list[Position]()
    examine_adopted(location(tmp_path, offsets_2=fenced(OURS, "rows")), "rows", OURS, sink(met))
    assert met == [Position(2, 1)]


def test_sink_that_does_not_fit_is_met_before_the_location_is_fenced(tmp_path: Path) -> None:
    found = location(tmp_path)
    with pytest.raises(SinkMoved):
        examine_adopted(found, "rows", OURS, sink([], SinkMoved("lacks batches", sink=0, checkpoint=1)))
    assert found.batches("offsets") == [0, 1]


def test_folder_without_a_query_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="is not a checkpointLocation of a query that ran"):
        examine_adopted(Location(LocalStore(tmp_path), "nothing"), "rows", OURS, sink([]))


def test_location_that_lacks_a_file_is_refused_before_it_is_fenced(tmp_path: Path) -> None:
    found = location(tmp_path)
    found.store.delete([found.key_of("commits/1"), found.key_of("commits/0"), found.key_of("offsets/0")])
    with pytest.raises(Damaged, match="offsets/0 is missing"):
        examine_adopted(found, "rows", OURS, sink([]))
    assert found.batches("offsets") == [1]


def test_location_that_another_job_has_just_fenced_is_not_taken(tmp_path: Path) -> None:
    found = location(tmp_path)
    refuse_fenced(found, "rows", OURS)
    found.store.create(found.key_of("offsets/2"), fenced("another", "rows"))
    with pytest.raises(WrongUse, match="was taken over by attempt 1 of orders as query 'rows'"):
        refuse_fenced(found, "rows", OURS)


@pytest.mark.parametrize(
    "uri",
    [
        "/data/orders ckp/plain",
        "/data/orders ckp/plain/",
        "file:/data/orders ckp/plain",
        "file:///data/orders ckp/plain/",
    ],
)
def test_location_is_found_however_its_path_is_written(tmp_path: Path, uri: str) -> None:
    found = location_at(LocalStore(tmp_path), uri)
    assert (found.uri, found.key) == ("file:///data/orders ckp/plain", "plain")


@pytest.mark.parametrize("uri", ["", "orders", "/", "file://host/orders", "hdfs://host/orders", "s3a:///orders"])
def test_place_that_is_none_is_refused(uri: str, tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="write an absolute path"):
        location_at(LocalStore(tmp_path), uri)


def test_location_of_another_kind_of_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="both must be local, or both in S3"):
        location_at(LocalStore(tmp_path), "s3a://lake/orders")
