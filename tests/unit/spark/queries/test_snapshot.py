"""To which file sets of earlier checkpoints the snapshot of a query refers. Runs anywhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.protocol.file_records import File, FileSet
from airflow_checkpoint_provider.protocol.metadata import Measures, StateSnapshot
from airflow_checkpoint_provider.protocol.query_details import QueryDetail
from airflow_checkpoint_provider.spark.queries.snapshot import OLDER, QuerySnapshot, reused
from airflow_checkpoint_provider.storage.memory import MemoryStore

ENOUGH = 20  # versions of the state between two snapshots of it


def file_set(nonce: str, **sizes: int) -> FileSet:
    files = tuple(File(name=name, bytes=size, rows=0) for name, size in sizes.items())
    return FileSet(path=f"state/q/1-{nonce}", files=files)


def names(file_sets: tuple[FileSet, ...]) -> list[list[str]]:
    return [[file.name for file in one.files] for one in file_sets]


def refers(needed: dict[str, int], *before: FileSet) -> list[list[str]]:
    return names(reused(needed, before, {one.path: one.bytes for one in before}))


def test_snapshot_refers_to_files_that_it_still_needs() -> None:
    before = file_set("a", old=10, same=20, other=30)
    assert refers({"same": 20, "other": 30, "new": 5}, before) == [["same", "other"]]


def test_file_of_another_size_is_another_file() -> None:
    assert refers({"same": 21}, file_set("a", same=20)) == []


def test_file_set_of_which_little_is_needed_is_not_kept_for_it() -> None:
    before = file_set("a", large=60, small=40)
    assert refers({"large": 60}, before) == [["large"]]
    assert refers({"small": 40}, before) == []


def test_half_of_the_bytes_is_half_of_the_whole_file_set() -> None:
    """Also if the checkpoint before has listed a part of it."""
    part = file_set("a", large=60)
    assert names(reused({"large": 60}, [part], {part.path: 120})) == [["large"]]
    assert names(reused({"large": 60}, [part], {part.path: 121})) == []


def test_snapshot_refers_to_the_largest_ones_of_many_file_sets() -> None:
    before = [file_set(f"n{number}", **{f"file{number}": number}) for number in range(1, OLDER + 3)]
    needed = {f"file{number}": number for number in range(1, OLDER + 3)}
    assert refers(needed, *before) == [[f"file{number}"] for number in range(OLDER + 2, 2, -1)]


def needed_at(batch: int) -> dict[str, int]:
    """Return the files of a query whose state is a snapshot of 1,000 bytes, and changes of 50 since."""
    base = (batch + 1) // ENOUGH * ENOUGH
    changes = {f"{version}.delta": 50 for version in range(base + 1, batch + 2)}
    return {"metadata": 1, f"offsets/{batch}": 2, f"commits/{batch}": 1, f"{base}.snapshot": 1_000, **changes}


def test_a_thousand_checkpoints_keep_few_files() -> None:
    """Each checkpoint refers to few file sets, whose bytes are at most twice the needed ones, and copies little."""
    bytes_of, before, copied = dict[str, int](), tuple[FileSet, ...](), 0
    for batch in range(1_000):
        needed = needed_at(batch)
        kept = reused(needed, before, bytes_of)
        held = {file.name for one in kept for file in one.files}
        new = file_set(str(batch), **{name: size for name, size in needed.items() if name not in held})
        bytes_of[new.path] = new.bytes
        before = (*kept, new)
        copied += new.bytes
        assert len(before) <= OLDER + 1
        assert {file.name: file.bytes for one in before for file in one.files} == needed
        assert sum(bytes_of[one.path] for one in before) <= 2 * sum(needed.values())
    whole = sum(sum(needed_at(batch).values()) for batch in range(1_000))
    assert copied < whole / 5


def test_file_set_of_a_full_checkpoint_is_as_large_as_it_is_listed() -> None:
    """It was copied when it was asked for, not by the query."""
    before = file_set("full", large=60, small=40)
    assert names(reused({"large": 60}, [before], {})) == [["large"]]
    assert names(reused({"small": 40}, [before], {})) == []


def test_query_without_a_batch_is_saved_again_when_it_knows_where_it_begins() -> None:
    """Kafka's source writes that before the first batch, and nothing else tells it."""
    detail = QueryDetail(
        location="query/rows/1-abc", batch=-1, begun=-1, sink="kafka", path="", sources={}, watermark_ms=0
    )
    own = Location(MemoryStore(), "rows")
    own.store.create(own.key_of("metadata"), b"{}")
    running = cast(Any, SimpleNamespace(located=SimpleNamespace(own=own)))
    snapshot = QuerySnapshot(cast(Any, None), running, "run", "barrier", None)

    def holds(*files: str) -> bool:
        measures = Measures(barrier="barrier")
        sets = (file_set("a", **dict.fromkeys(files, 1)),)
        before = StateSnapshot(uid="rows", kind="query", run="run", file_sets=sets, measures=measures, query=detail)
        return snapshot._holds(before, detail)

    assert holds("metadata")
    own.store.create(own.key_of("sources/0/0"), b'\0v1\n{"orders":{"0":17}}')
    assert not holds("metadata")
    assert holds("metadata", "sources/0/0")
