"""The files of a query that was rescaled in a draft. Runs anywhere."""

from __future__ import annotations

import json

import pytest

from airflow_checkpoint_provider.errors import Damaged
from airflow_checkpoint_provider.location.files import Location, LocationFiles, Position, needed_files
from airflow_checkpoint_provider.location.rescaling import PARTITIONS, copy_logs, take_state
from airflow_checkpoint_provider.storage import MemoryStore
from tests.unit.location.rocksdb import rocksdb

DRAFT, OWN = "query/rows/2-abc", "query/rows/2-def"
SCHEMA = "state/1/_stateSchema/default/0_5228"
FIRST, SECOND = "state/0/_metadata/metadata", "state/1/_metadata/v2/{}"


def offsets(partitions: int) -> bytes:
    about = {"batchWatermarkMs": 7, "conf": {PARTITIONS: str(partitions)}}
    return b"\n".join([b"v1", json.dumps(about).encode(), b'{"logOffset":2}'])


def metadata(version: int, partitions: int) -> bytes:
    store = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": partitions}
    paths = {"stateSchemaFilePaths": [f"file:/{DRAFT}/{SCHEMA}"]} if version == 2 else {}
    return f"v{version}\n{json.dumps({'stateStoreInfo': [{**store, **paths}]})}".encode()


def state(version: int, partitions: int) -> dict[str, bytes]:
    """Return snapshots of both operators, as RocksDB writes them."""
    folders = [f"state/{operator}/{partition}" for operator in (0, 1) for partition in range(partitions)]
    return {f"{folder}/{version}.zip": rocksdb(f"{version}.sst") for folder in folders} | {
        f"{folder}/SSTs/{version}.sst": b"rows" for folder in folders
    }


def draft_of(partitions: int) -> Location:
    """Return a draft after batch 2."""
    files = {
        **{f"{log}/{batch}": offsets(partitions) for batch in (1, 2) for log in ("offsets", "commits")},
        "metadata": b"id",
        "sources/0/2.compact": b"v1",
        SCHEMA: b"long",
        FIRST: metadata(1, partitions),
        SECOND.format(0): metadata(2, partitions),
        **state(3, partitions),
    }
    return put(Location(MemoryStore(), DRAFT), files)


def tool(draft: Location, partitions: int) -> None:
    """Write what Spark's tool writes after batch 2."""
    logs = {"offsets/3": offsets(partitions), "commits/3": b"", SECOND.format(3): metadata(2, partitions)}
    put(draft, logs | state(4, partitions))


def put(location: Location, files: dict[str, bytes]) -> Location:
    for name, body in files.items():
        location.store.create(location.key_of(name), body)
    return location


@pytest.mark.parametrize(("before", "after"), [(2, 5), (5, 3)])
def test_state_of_the_draft_is_that_of_the_batch_before(before: int, after: int) -> None:
    draft = draft_of(before)
    own = Location(draft.store, OWN)
    copy_logs(draft, own, 2)
    tool(draft, after)
    take_state(draft, own, 2, after)
    found = LocationFiles(own)
    assert {store.rpartition("/")[2] for store in found.stores} == {str(number) for number in range(after)}
    assert set(needed_files(found, Position(2, 2))) == set(found.sizes)
    assert own.offsets(2).confs == {PARTITIONS: str(after)}
    assert own.offsets(1).confs == {PARTITIONS: str(before)}
    assert own.batches("commits") == [1, 2]
    described = own.read(SECOND.format(2)).decode()
    assert f"/{OWN}/{SCHEMA}" in described
    assert f'"numPartitions":{after}' in described
    assert f'"numPartitions":{after}' in own.read(FIRST).decode()


def test_partition_that_the_tool_has_not_written_is_damage() -> None:
    draft = draft_of(2)
    tool(draft, 5)
    draft.store.delete([draft.key_of("state/0/4/4.zip")])
    with pytest.raises(Damaged, match="state/0/4 has no snapshot 4"):
        take_state(draft, Location(draft.store, OWN), 2, 5)
