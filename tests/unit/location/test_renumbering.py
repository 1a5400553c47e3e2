"""The files of a query under other numbers. Runs anywhere."""

from __future__ import annotations

import io
import zipfile

import pytest

from airflow_checkpoint_provider.errors import NotSupportedYet
from airflow_checkpoint_provider.location.files import Offsets
from airflow_checkpoint_provider.location.renumbering import EMPTY_HASH_MAP, empty_snapshots, offsets_before, renumbered


@pytest.mark.parametrize(
    ("name", "later"),
    [
        ("metadata", "metadata"),
        ("offsets/3", "offsets/19"),
        ("commits/3", "commits/19"),
        ("sources/0/3", "sources/0/3"),
        ("sources/0/9.compact", "sources/0/9.compact"),
        ("state/0/1/4.delta", "state/0/1/20.delta"),
        ("state/0/1/left-keyToNumValues/4.changelog", "state/0/1/left-keyToNumValues/20.changelog"),
        ("state/0/1/4.zip", "state/0/1/20.zip"),
        ("state/0/1/SSTs/000008-4c.sst", "state/0/1/SSTs/000008-4c.sst"),
        ("state/0/_metadata/v2/0", "state/0/_metadata/v2/0"),
    ],
)
def test_only_batches_and_versions_of_the_state_are_renumbered(name: str, later: str) -> None:
    assert renumbered(name, 16) == later
    assert renumbered(name, 0) == name


def test_state_without_a_snapshot_gets_an_empty_one() -> None:
    names = [
        "state/0/0/1.delta",
        "state/0/0/2.delta",
        "state/0/1/2.snapshot",
        "state/1/0/1.changelog",
        "state/1/1/3.zip",
    ]
    files = empty_snapshots(names, 16, 3, "lz4")
    assert files.pop("state/0/0/16.snapshot") == EMPTY_HASH_MAP
    (archive,) = files.items()
    assert archive[0] == "state/1/0/16.zip"
    assert zipfile.ZipFile(io.BytesIO(archive[1])).read("metadata") == b'v1\n{"sstFiles":[],"numKeys":0}'


def test_snapshot_of_the_batch_that_was_broken_off_does_not_count() -> None:
    names = [*(f"state/0/0/{version}.delta" for version in range(1, 6)), "state/0/0/5.snapshot"]
    assert list(empty_snapshots(names, 16, 3, "lz4")) == ["state/0/0/16.snapshot"]


def test_another_compression_is_refused_only_where_a_snapshot_is_missing() -> None:
    assert empty_snapshots(["state/0/0/1.snapshot", "state/0/0/2.delta", "state/1/0/1.changelog"], 16, 3, "zstd")
    with pytest.raises(NotSupportedYet, match="compressed by zstd"):
        empty_snapshots(["state/0/0/1.delta"], 16, 3, "zstd")


def test_offsets_before_the_first_batch_name_no_source() -> None:
    before = offsets_before(b'v1\n{"batchWatermarkMs":0}\n{"logOffset":0}\n-')
    assert before == b'v1\n{"batchWatermarkMs":0}\n-\n-'
    assert set(Offsets.parse(before, -1, "offsets").sources.values()) == {"-"}
