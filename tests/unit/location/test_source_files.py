"""Which files the log of a file source names, also where it is compacted, and which of them a restore finds gone. Runs anywhere."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from airflow_checkpoint_provider.coordinator.preflight import newest_files
from airflow_checkpoint_provider.errors import Damaged
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.location.restored_files import ReadAgain, read_again
from airflow_checkpoint_provider.location.source_files import logged_files
from airflow_checkpoint_provider.protocol.file_records import File, FileSet
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.protocol.query_details import QueryDetail
from airflow_checkpoint_provider.spark.queries.sinks.links import Move
from airflow_checkpoint_provider.spark.queries.sources.sources import SourceLog
from airflow_checkpoint_provider.storage import LocalStore, MemoryStore, base

HISTORY = Keys("jobs/job/shared")


def entry(*files: tuple[str, int]) -> bytes:
    lines = [json.dumps({"path": path, "timestamp": 5, "batchId": number}) for path, number in files]
    return "\n".join(("v1", *lines)).encode()


def logged(location: Location, **entries: bytes) -> Location:
    for name, body in entries.items():
        location.store.overwrite(location.key_of(f"sources/0/{name.removeprefix('e').replace('_', '.')}"), body)
    return location


def test_compacted_entry_stands_for_all_before_it() -> None:
    """Where a number has both, the compacted one counts. Of files that were read before, none is named."""
    compacted = entry(*((f"file:///in/{number}", number) for number in range(10)))
    location = logged(
        Location(MemoryStore(), "here"), e8=b"torn", e9=b"torn", e9_compact=compacted, e10=entry(("file:///in/10", 10))
    )
    assert list(logged_files(location, 0)) == [f"file:///in/{number}" for number in range(11)]
    assert list(logged_files(location, 0, after=8)) == ["file:///in/9", "file:///in/10"]
    assert list(logged_files(location, 0, after=9)) == ["file:///in/10"]
    assert list(logged_files(location, 0, after=10)) == []
    assert list(logged_files(location, 1)) == []


def test_log_of_very_many_files_is_read_moved_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compacted entry names all files that the source has ever read: 400,000 have more bytes than this package reads of its own objects."""
    monkeypatch.setattr(base, "LARGEST", 1000)
    monkeypatch.setattr(base, "PART", 300)
    paths = [f"file:///in/{number}" for number in range(100)]
    location, key = Location(LocalStore(tmp_path), "here"), "here/sources/0/9.compact"
    location.store.assemble(key, [entry(*((path, 9) for path in paths))])
    with pytest.raises(Damaged, match="more than 1000 bytes"):
        location.store.read(key)
    assert list(logged_files(location, 0)) == paths
    assert len(SourceLog(location, 0).read(9)) == len(paths)
    assert newest_files(location, {0}) == {0: paths[-1]}
    Move(0, "file:///in", "file:///moved").carry_out(location)
    assert list(logged_files(location, 0)) == [path.replace("/in/", "/moved/") for path in paths]


def test_restore_finds_what_is_gone_on_this_host(tmp_path: Path) -> None:
    """Files of folders that are not here, of a store, and of other sources are not asked for; nor are those that queries write again."""
    store, here, sink = MemoryStore(), f"file://{tmp_path}/in", f"file:{tmp_path}/sink"
    for folder in ("in", "sink"):
        (tmp_path / folder).mkdir()
    (tmp_path / "in" / "1 %").touch()
    logged(Location(store, HISTORY.file_set("query/q/1-a")), e0=entry((f"{here}/0", 0)))
    paths = [
        f"{here}/0",
        f"{here}/1%20%25",
        f"{here}/2",
        f"{here}/3",
        f"file://{tmp_path}/sink/4",
        "file:///not here/5",
        "s3a://b/6",
    ]
    left = logged(Location(store, "newest"), **{f"e{n}": entry((path, n)) for n, path in enumerate(paths)})
    file_set = FileSet(path="query/q/1-a", files=(File(name="sources/0/0", bytes=1, rows=0),))
    query = QueryDetail(
        location="query/q/1-a",
        batch=0,
        begun=0,
        sink="parquet",
        path=sink,
        sources={"0": '{"logOffset":0}'},
        watermark_ms=0,
    )
    state = StateSnapshot(uid="q", kind="query", run="r", file_sets=(file_set,), query=query)
    found = read_again("q", state, query, store, HISTORY, left, [sink])
    assert found == ReadAgain("q", 3, (f"{tmp_path}/in/2", f"{tmp_path}/in/3"), not_asked=True)
    assert read_again("q", state, query, store, HISTORY, None, [sink]) is None
    of_hosts = logged(Location(store, "local"), e1=entry((f"{here}/1%20%25", 1)))
    assert read_again("q", state, query, store, HISTORY, of_hosts, []) == ReadAgain("q", 1, (), not_asked=False)


@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        b"v2\n",
        b"v1\n" + b"[" * 100_000,
        b'v1\n{"path":7,"batchId":0}',
        b'v1\n{"path":"a"}',
        b'v1\n{"path":"a","batchId":"0"x}',
        b'v1\n{"path":"a","batchId":0,"timestamp":1e999}',
        b'v1\n{"path":"a","batchId":' + b"9" * 30 + b"}",
        b"v1\n[]",
    ],
)
def test_entry_that_spark_never_writes_is_damaged(body: bytes) -> None:
    """Each reader of such a log says so: that of the files, of those of one query that reads another's, and what moves them."""
    location = logged(Location(MemoryStore(), "here"), e0=body)
    for read in (
        lambda: logged_files(location, 0),
        lambda: SourceLog(location, 0).read(0),
        lambda: Move(0, "file:///old", "file:///new").carry_out(location),
    ):
        with pytest.raises(Damaged, match="here/sources/0/0 is not what Spark writes"):
            read()


@pytest.mark.parametrize(
    "planted", ["999999999999", "999999999999.compact", "x.compact", "٣.compact", "9999999999999999999.compact"]
)
def test_log_that_counts_to_any_number_is_read_as_far_as_it_goes(planted: str) -> None:
    location = logged(Location(MemoryStore(), "here"), e0=entry(("file:///in/0", 0)))
    location.store.create(location.key_of(f"sources/0/{planted}"), entry(("file:///in/1", 1)))
    if "99" in planted and not planted.startswith("9" * 19):
        newest = int(planted.removesuffix(".compact"))
        with contextlib.suppress(Damaged):
            SourceLog(location, 0).read(newest)
    assert dict(SourceLog(location, 0).read(0)) == {"0": 0}
