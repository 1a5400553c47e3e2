"""The metadata of operators with state, and its copies in other locations. Runs anywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import Damaged
from airflow_checkpoint_provider.location.files import Location, LocationFiles, Position, needed_files
from airflow_checkpoint_provider.location.state_metadata import at, names_paths, newest, stores
from airflow_checkpoint_provider.storage import MemoryStore

NAME, SCHEMA = "state/0/_metadata/v2/3", "state/0/_stateSchema/default/0_5228"
FILES = (NAME, SCHEMA, "state/1/_stateSchema/default/0_77", "state/0/0/4.zip")
COPY = "s3a://bucket/ckp/jobs/orders/job/query/orders/2-def"


def metadata(*paths: object, **more: object) -> bytes:
    """Return what Spark 4.2 writes for ``transformWithState``."""
    store = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2, "stateSchemaFilePaths": list(paths)}
    about = {"operatorInfo": {"operatorId": 0, "operatorName": "transformWithStateInPandasExec"}}
    properties = {"operatorPropertiesJson": '{"stateVariables":[{"stateName":"Zähler"}]}'}
    return b"v2\n" + json.dumps({**about, "stateStoreInfo": [store], **properties, **more}).encode()


def moved(body: bytes, files: tuple[str, ...] = FILES) -> dict[str, Any]:
    version, text = at(COPY, body, NAME, files, "the metadata").decode().split("\n", 1)
    assert version == "v2"
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize(
    "location",
    ["file:/data/a b%20/query/orders/1-abc", "s3a://other/ckp/query/orders/7-0f", "file:/moved/chk-3/state/orders/s"],
)
def test_copy_names_its_own_files_wherever_the_paths_led(location: str) -> None:
    before = json.loads(metadata(f"{location}/{SCHEMA}").partition(b"\n")[2])
    after = moved(metadata(f"{location}/{SCHEMA}"))
    assert after["stateStoreInfo"][0].pop("stateSchemaFilePaths") == [f"{COPY}/{SCHEMA}"]
    del before["stateStoreInfo"][0]["stateSchemaFilePaths"]
    assert after == before


def test_location_may_look_like_a_file_of_its_own() -> None:
    nested = f"file:/data/{SCHEMA}/{SCHEMA}"
    assert moved(metadata(nested))["stateStoreInfo"][0]["stateSchemaFilePaths"] == [f"{COPY}/{SCHEMA}"]


@pytest.mark.parametrize(
    "path",
    [
        "file:/etc/passwd",
        "file:/data/state/0/_stateSchema/default/absent",
        "file:/data/state/0/_stateSchema/default/../../../../0_5228",
        "file:/data/state/1/_stateSchema/default/0_77",  # of another operator
        "file:/data/state/0/0/4.zip",
        f"file:/data/{SCHEMA}/",
        SCHEMA,
        "",
        7,
        None,
    ],
)
def test_path_that_is_no_file_of_its_location_is_damage(path: object) -> None:
    with pytest.raises(Damaged, match="the metadata is not what Spark writes"):
        moved(metadata(f"file:/data/{SCHEMA}", path))


@pytest.mark.parametrize(
    "body",
    [b"", b"v2", b"v2\n{", b"v2\n[]", b"v2\n\xff", b'v2\n{"stateStoreInfo":7}', b'v2\n{"stateStoreInfo":["x"]}', b"v2\n" + b"[" * 99_999],
    ids=lambda body: body[:30],
)  # fmt: skip
def test_metadata_that_cannot_be_read_is_damage(body: bytes) -> None:
    with pytest.raises(Damaged, match="the metadata is not what Spark writes"):
        list(stores(body, NAME, "the metadata"))
    with pytest.raises(Damaged, match="the metadata is not what Spark writes"):
        moved(body)


def test_newest_metadata_of_each_operator() -> None:
    names = [
        "state/0/_metadata/v2/9",
        "state/0/_metadata/v2/10",
        "state/1/_metadata/metadata",
        "state/0/0/_metadata/schema",
    ]
    assert newest(names) == {"0": "state/0/_metadata/v2/10", "1": "state/1/_metadata/metadata"}
    assert newest(names, 9)["0"] == "state/0/_metadata/v2/9"
    assert newest(names, -1) == {"1": "state/1/_metadata/metadata"}
    assert [name for name in names if names_paths(name)] == names[:2]


def test_metadata_of_a_batch_that_is_not_committed_is_not_copied() -> None:
    """Spark would keep it, and it may name a schema that another driver wrote since the location was listed."""
    location = Location(MemoryStore(), "query/orders/1-abc")
    names = [
        "metadata",
        "commits/3",
        "offsets/3",
        "offsets/4",
        "state/0/_metadata/v2/0",
        NAME,
        "state/0/_metadata/v2/4",
        SCHEMA,
    ]
    names += [f"state/0/{partition}/{version}.changelog" for partition in (0, 1) for version in range(1, 6)]
    for name in names:
        location.store.create(
            location.key_of(name), metadata() if "/v2/" in name else b'v1\n{"batchWatermarkMs":0}\n{}'
        )
    needed = needed_files(LocationFiles(location), Position(4, 3))
    assert set(names) - set(needed) == {"state/0/_metadata/v2/0", "state/0/_metadata/v2/4"}
    assert LocationFiles(location).stores == {"state/0/0", "state/0/1"}
