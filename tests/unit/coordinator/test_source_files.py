"""Which files the log of a file source names, also where it is compacted, and which of them a restore finds gone. Runs anywhere."""

from __future__ import annotations

import json
from pathlib import Path

from airflow_checkpoint_provider.coordinator.query_location import Location
from airflow_checkpoint_provider.coordinator.restored_files import ReadAgain, read_again
from airflow_checkpoint_provider.coordinator.source_files import logged_files
from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.protocol.metadata import File, FileSet, QueryDetail, StateSnapshot
from airflow_checkpoint_provider.storage import MemoryStore

HISTORY = Keys("jobs/job/shared")


def entry(*files: tuple[str, int]) -> bytes:
    lines = [json.dumps({"path": path, "timestamp": 5, "batchId": number}) for path, number in files]
    return "\n".join(("v1", *lines)).encode()


def logged(location: Location, **entries: bytes) -> Location:
    for name, body in entries.items():
        location.store.overwrite(location.name(f"sources/0/{name.removeprefix('e').replace('_', '.')}"), body)
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
