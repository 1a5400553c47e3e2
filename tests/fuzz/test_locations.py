"""What Spark, Delta and Iceberg write: hurt files of a location, a sink's log and tables end typed and bounded. Runs anywhere."""

from __future__ import annotations

import contextlib
import io
import json
import random
import time
import zipfile
from collections.abc import Callable
from functools import cache

import pytest

from airflow_checkpoint_provider.coordinator.preflight import begin_again, newest_files
from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.file_sink.log import FileSinkLog, entries_among, files_in
from airflow_checkpoint_provider.file_sink.rewinding import all_aside, move_aside
from airflow_checkpoint_provider.file_sink.store_folder import StoreFolder
from airflow_checkpoint_provider.location import state_metadata
from airflow_checkpoint_provider.location.copying import copy_files, copy_position, fetch_state, write_beginnings
from airflow_checkpoint_provider.location.fence import (
    FenceEntry,
    delete_location,
    fence,
    fence_entry_of,
    newest_batch,
    reached,
)
from airflow_checkpoint_provider.location.files import Location, LocationFiles, Offsets, Position, needed_files
from airflow_checkpoint_provider.location.rescaling import copy_logs, take_state
from airflow_checkpoint_provider.location.source_files import logged_files
from airflow_checkpoint_provider.spark.queries.sinks.delta_table import DeltaOffset, commit_in
from airflow_checkpoint_provider.spark.queries.sinks.iceberg_table import BATCH, QUERY, metadata_in
from airflow_checkpoint_provider.spark.queries.sinks.links import Move
from airflow_checkpoint_provider.spark.queries.sources.sources import SourceLog
from airflow_checkpoint_provider.storage import MemoryStore
from tests.fuzz.lake import CountingStore
from tests.fuzz.mutations import attack, hurt_bytes, hurt_json, short_and_long
from tests.unit.protocol import golden_files

KEY, OWN = "jobs/orders/job/query/rows/1-abc", "jobs/orders/job/query/rows/2-abc"
LONGEST = 20.0  # seconds that a reader may take on a busy machine; a loop to 10**12 takes hours
BEGUN, COMMITTED = 5, 4
FENCE = FenceEntry("1ncarnation", "rows", "nonce", "attempt 2 of orders")
NUMBERS = [str(number) for number in (0, 7, 10**6, 10**12, 10**15, 2**63 - 1, 2**63, 10**30)] + [
    "9" * 4301,
    "-1",
    "٣",
    "007",
]
NAMES = [*NUMBERS, "x", "7.tmp", "5.backup", "7.compact", f"{10**12}.compact", ".", "_metadata", "a b", "é"]


def lines(*each: object) -> bytes:
    """Return a file as Spark writes it: a version, and a text or JSON in each line."""
    return "\n".join(("v1", *(one if isinstance(one, str) else json.dumps(one) for one in each))).encode()


def zipped(manifest: bytes) -> bytes:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata", manifest)
    return body.getvalue()


MANIFEST = lines({"sstFiles": [{"dfsSstFileName": "a.sst"}], "logFiles": [{"dfsLogFileName": "b.log"}], "numKeys": 1})


def offsets(batch: int) -> bytes:
    about = {"batchWatermarkMs": 5, "batchTimestampMs": 7, "conf": {"spark.sql.shuffle.partitions": "2"}}
    kafka = {"orders": {"0": batch, "1": batch}}
    return lines(about, {"logOffset": batch}, kafka, "-")


def files_of(batch: int) -> bytes:
    return lines({"path": f"file:///in/{batch}.json", "timestamp": 1, "batchId": batch})


@cache
def whole() -> dict[str, bytes]:
    """Return the files of a query with a file source, one of Kafka, and two operators with state."""
    files = {"metadata": b'{"id":"1b4e28ba"}', "sources/1/0": b"\0" + lines({"orders": {"0": 0}})}
    for batch in range(BEGUN + 1):
        files |= {f"offsets/{batch}": offsets(batch), f"sources/0/{batch}": files_of(batch)}
    files["sources/0/2.compact"] = files.pop("sources/0/2")
    files |= {f"commits/{batch}": lines({"nextBatchWatermarkMs": 5}) for batch in range(COMMITTED + 1)}
    info = {"operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"}}
    stores = [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2}]
    files["state/0/_metadata/metadata"] = lines(info | {"stateStoreInfo": stores})
    path = f"memory://fuzzed/{KEY}/state/1/_stateSchema/default/0_a"
    files["state/1/_metadata/v2/0"] = lines({"stateStoreInfo": [{**stores[0], "stateSchemaFilePaths": [path]}]})
    files |= {"state/1/_stateSchema/default/0_a": b"schema", "state/0/0/_metadata/schema": b"schema"}
    for partition in (0, 1):
        files |= {f"state/0/{partition}/{version}.delta": b"rows" for version in range(1, BEGUN + 2)}
        files[f"state/0/{partition}/{COMMITTED + 1}.snapshot"] = b"rows"
        folder = f"state/1/{partition}"
        files |= {f"{folder}/{version}.zip": zipped(MANIFEST) for version in (1, COMMITTED + 1)}
        files |= {f"{folder}/SSTs/a.sst": b"sst", f"{folder}/logs/b.log": b"log"}
    return files


def hurt_text(body: bytes, chance: random.Random) -> bytes:
    """Return a file of lines with one of them hurt as JSON, or with hurt bytes."""
    parts = body.split(b"\n")
    number = chance.randrange(len(parts))
    with contextlib.suppress(ValueError, RecursionError, AttributeError, TypeError):
        if chance.random() < 0.6:
            parts[number] = hurt_json(parts[number], chance)
            return b"\n".join(parts)
    return hurt_bytes(body, chance, [body, *whole().values()])


def hurt_file(name: str, body: bytes, chance: random.Random) -> bytes:
    if name.endswith(".zip") and chance.random() < 0.6:
        return zipped(hurt_text(MANIFEST, chance))
    return hurt_text(body, chance)


def hurt_location(chance: random.Random) -> dict[str, bytes]:
    """Return the files with some changed, gone, or planted under other names."""
    files = dict(whole())
    for _ in range(chance.choice([1, 1, 2, 3])):
        name = chance.choice(list(files))
        match chance.randrange(8):
            case 0:
                del files[name]
            case 1 | 2:
                folder, _, file = name.rpartition("/")
                ending = file.partition(".")[2]
                planted = chance.choice([*NAMES, *(f"{number}.{ending}" for number in NUMBERS)])
                files[f"{folder}/{planted}" if folder else planted] = files[name]
            case _:
                files[name] = hurt_file(name, files[name], chance)
    return files


def take_over(own: Location, old: Location) -> None:
    """Do as a driver that takes a query over."""
    begun = fence(old, FENCE, lambda: None)
    copy_position((old,), Position(begun, old.committed(begun)), own)
    position = reached(own)
    fetch_state(own, (old,), position)
    fence_entry_of(old)
    delete_location(old)


def go_back(own: Location, old: Location) -> None:
    """Do as a driver whose query goes back, and brings files elsewhere."""
    found = LocationFiles(old)
    copy_files(found, own, needed_files(found, Position(COMMITTED, COMMITTED)), 20)
    write_beginnings(own, [*own.sizes()], COMMITTED, 20)
    Move(0, "file:///in", "file:///out").carry_out(own)


def rescale(own: Location, old: Location) -> None:
    copy_logs(old, own, COMMITTED)
    take_state(old, own, COMMITTED - 1, 2)


def compare(own: Location, old: Location) -> None:
    """Do as what only looks: a preflight, and flows between queries."""
    newest, _ = newest_batch(old)
    offsets = old.offsets(newest)
    SourceLog(old, 0).read(offsets.newest_log_entry(0) or 0)
    logged_files(old, 0)
    newest_files(old, (0,))
    old.query_id()
    begin_again(old, newest)
    needed_files(LocationFiles(old, own), Position(newest, COMMITTED))


@pytest.mark.parametrize("act", [take_over, go_back, rescale, compare], ids=lambda act: act.__name__)
@short_and_long(80, 5_000)
def test_hurt_location_is_read_or_damaged(act: Callable[[Location, Location], None], inputs: int) -> None:
    def attack_location(seed: str) -> None:
        store = CountingStore()
        files = hurt_location(random.Random(seed))
        store.objects = {f"{KEY}/{name}": body for name, body in files.items()} | {"warehouse/rows": b"of others"}
        began = time.monotonic()
        with contextlib.suppress(CheckpointError):
            act(Location(store, OWN), Location(store, KEY))
        assert time.monotonic() < began + LONGEST
        outside = {key for key in store.objects if not key.startswith((f"{KEY}/", f"{OWN}/"))}
        assert outside == {"warehouse/rows"}

    attack(attack_location, act.__name__, inputs)


# -- sinks and tables ----------------------------------------------------------------------------------------------------

SINK = lines(*({"path": f"file:///out/{name}", "size": 5, "isDir": False, "action": "add"} for name in "ab"))
TAKEN_OUT = (golden_files.GOLDEN / "sink-manifest.json").read_bytes()
COMMIT = b"\n".join(
    json.dumps(action).encode()
    for action in (
        {"commitInfo": {"operation": "RESTORE", "operationParameters": {"version": "3"}}},
        {"txn": {"appId": "id", "version": 4, "lastUpdated": 5}},
        {"add": {"path": "part-0.parquet", "size": 5, "dataChange": True, "stats": "{}"}},
    )
)
OFFSET = b'{"sourceVersion":1,"reservoirId":"t","reservoirVersion":3,"index":4,"isStartingVersion":false}'
SNAPSHOTS = json.dumps(
    {
        "current-snapshot-id": 3,
        "snapshots": [
            {
                "snapshot-id": number,
                "parent-snapshot-id": number - 1,
                "timestamp-ms": 5,
                "summary": {QUERY: "id", BATCH: "4"},
            }
            for number in (1, 2, 3)
        ],
    }
).encode()


def sink(body: bytes, chance: random.Random) -> None:
    text = body.decode(errors="replace")  # as the JVM does
    for file in files_in(text, "the log", whole=chance.random() < 0.5):
        assert 0 <= file.bytes < 2**63
    names = [chance.choice(NAMES) + chance.choice(["", ".compact", ".tmp"]) for _ in range(5)]
    assert all(0 <= number < 10**18 for number in entries_among(names))


def manifest(body: bytes, chance: random.Random) -> None:
    """Of what was taken out of a sink, with names that the sink's log turns into keys."""
    store = MemoryStore()
    store.overwrite("out/_rewound-1-a/_manifest.json", body)
    log = FileSinkLog(StoreFolder(Location(store, "out")))
    for aside in all_aside(log.files_of):
        store.overwrite("secret", b"of others")
        for file in aside.manifest.files:
            with contextlib.suppress(CheckpointError):
                store.overwrite(f"out/{file.name}", b"rows")
        with contextlib.suppress(CheckpointError):
            move_aside(log, aside)
        assert aside.manifest.bytes >= 0
    assert store.read("secret") in (None, b"of others")
    assert all(key.startswith("out/") for key in store.objects if key != "secret")


def commit(body: bytes, chance: random.Random) -> None:
    for file in commit_in(body.decode(errors="replace"), 3, "the log").files:
        assert file.bytes >= 0


def offset(body: bytes, chance: random.Random) -> None:
    _ = DeltaOffset.parse(body.decode(errors="replace")).touched


def snapshots(body: bytes, chance: random.Random) -> None:
    found = metadata_in(body.decode(errors="replace"), "the table")
    for count, snapshot in enumerate(found.lineage(found.current)):
        assert count < 1000
        _ = snapshot.changes_rows, snapshot.of("id", after=3), snapshot.at_ms / 1000


def entry_of_offsets(body: bytes, chance: random.Random) -> None:
    parsed = Offsets.parse(body, 3, "offsets/3")
    _ = parsed.began_ms / 1000, parsed.newest_in_folder(0, [1, 2, 3])


def metadata(body: bytes, chance: random.Random) -> None:
    name = chance.choice(["state/1/_metadata/metadata", "state/1/_metadata/v2/0"])
    assert len(list(state_metadata.stores(body, name, name))) <= state_metadata.MOST_STORES
    state_metadata.is_undivided(body, b"x" * 20, name)
    state_metadata.with_partitions(body, 4, name)
    state_metadata.at("s3a://lake/copy", body, name, ["state/1/_stateSchema/default/0_a"], name)


TEXTS: dict[str, tuple[Callable[[bytes, random.Random], None], bytes]] = {
    "sink": (sink, SINK),
    "manifest": (manifest, TAKEN_OUT),
    "commit": (commit, COMMIT),
    "offset": (offset, OFFSET),
    "snapshots": (snapshots, SNAPSHOTS),
    "offsets": (entry_of_offsets, offsets(3)),
    "metadata": (metadata, whole()["state/1/_metadata/v2/0"]),
}


@pytest.mark.parametrize("name", TEXTS)
@short_and_long(100, 20_000)
def test_hurt_file_of_spark_delta_or_iceberg_is_read_or_damaged(name: str, inputs: int) -> None:
    read, body = TEXTS[name]

    def attack_text(seed: str) -> None:
        chance, began = random.Random(seed), time.monotonic()
        try:
            read(hurt_text(body, chance), chance)
        except CheckpointError as error:
            said = str(error)
        else:
            said = ""
        assert len(said) < 3000
        assert time.monotonic() < began + LONGEST

    attack(attack_text, name, inputs)
