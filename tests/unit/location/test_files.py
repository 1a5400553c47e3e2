"""Which files of a query's location a batch needs. Runs anywhere."""

from __future__ import annotations

import io
import json
import zipfile

import pytest

from airflow_checkpoint_provider.errors import Damaged
from airflow_checkpoint_provider.location.copying import copy_position, has_state
from airflow_checkpoint_provider.location.files import (
    LONGEST_MANIFEST,
    NOTHING,
    Location,
    LocationFiles,
    Offsets,
    Position,
    needed_files,
)
from airflow_checkpoint_provider.storage import MemoryStore
from tests.unit.location.rocksdb import rocksdb

KEY = "query/orders/1-abc"


def offsets(log_offset: int | None = None, *, watermark: int = 0) -> bytes:
    """Return the content of ``offsets/N`` of a query with one source."""
    about = {"batchWatermarkMs": watermark, "batchTimestampMs": 1, "conf": {"spark.sql.shuffle.partitions": "2"}}
    offset = json.dumps({"logOffset": log_offset}) if log_offset is not None else '{"orders":{"0":17}}'
    return "\n".join(["v1", json.dumps(about), offset]).encode()


def location(*names: str, offsets_of: int | None = None, log_offset: int | None = None) -> Location:
    """Return a location with these files; that of ``offsets_of`` names ``log_offset``."""
    store = MemoryStore()
    for name in names:
        store.create(f"{KEY}/{name}", b"x")
    if offsets_of is not None:
        store.overwrite(f"{KEY}/offsets/{offsets_of}", offsets(log_offset))
    return Location(store, KEY)


def needed(found: Location, begun: int, committed: int) -> set[str]:
    return set(needed_files(LocationFiles(found), Position(begun, committed)))


def logs(begun: int, committed: int) -> list[str]:
    """Return the names of both logs, all batches kept."""
    return [
        "metadata",
        *(f"offsets/{batch}" for batch in range(begun + 1)),
        *(f"commits/{batch}" for batch in range(committed + 1)),
    ]


def changes(*versions: int, kind: str = "delta", store: str = "state/0") -> list[str]:
    return [f"{store}/{partition}/{version}.{kind}" for partition in (0, 1) for version in versions]


def test_two_newest_batches_of_each_log_are_needed() -> None:
    found = location(*logs(5, 4), offsets_of=5)
    assert needed(found, 5, 4) == {"metadata", "offsets/4", "offsets/5", "commits/3", "commits/4"}
    first = location(*logs(0, NOTHING), offsets_of=0)
    assert needed(first, 0, NOTHING) == {"metadata", "offsets/0"}


def test_query_that_has_begun_no_batch_keeps_its_id() -> None:
    assert needed(location("metadata"), NOTHING, NOTHING) == {"metadata"}


OF_FILES = b'v1\n{"path":"file:///in/0.json","timestamp":1,"batchId":0}'
BEGINNINGS = {
    "sources/1/0": b'\0v1\n{"path":{"0":17}}',  # of Kafka: a topic may have any name
    "sources/2/0": b"v1\n1800000000000",  # of the rate source
    "sources/3/offsets/0": b'{"version":1,"snapshot_id":7,"position":0,"scan_all_files":false}',  # of Iceberg
    "sources/4/shards/0/shard-1": b"",
}


def beginning(*names: str) -> Location:
    """Return a location with these files, of a query whose sources have decided where they begin."""
    found = location(*names)
    for name, body in {"sources/0/0": OF_FILES, "sources/5/0": b"", **BEGINNINGS}.items():
        found.store.overwrite(found.key_of(name), body)
    return found


def test_query_that_has_begun_no_batch_keeps_where_its_sources_begin() -> None:
    """A file source has a log of that name, too, and finds its files again. A torn file says nothing."""
    assert needed(beginning("metadata"), NOTHING, NOTHING) == {"metadata", *BEGINNINGS}


def test_first_batch_keeps_where_its_sources_begin_until_it_is_committed() -> None:
    """Iceberg would decide anew, with the oldest snapshot that is left. Later its first one may have expired."""
    kept = "sources/3/offsets/0"
    first = beginning(*logs(0, NOTHING))
    first.store.overwrite(first.key_of("offsets/0"), offsets())
    assert needed(first, 0, NOTHING) >= {"metadata", "offsets/0", *BEGINNINGS}
    first.store.create(first.key_of("commits/0"), b"v1")
    assert kept not in needed(first, 0, 0)


def test_source_log_goes_from_its_compacted_entry_to_the_one_that_the_batch_names() -> None:
    """A batch without data has a number of its own, but no entry in the source's log."""
    entries = [f"sources/0/{n}" for n in (7, 8, 10, 11, 12)]
    found = location(*logs(14, 14), *entries, "sources/0/9.compact", offsets_of=14, log_offset=11)
    sources = {name for name in needed(found, 14, 14) if name.startswith("sources/")}
    assert sources == {"sources/0/9.compact", "sources/0/10", "sources/0/11"}


def test_whole_log_is_needed_of_a_source_whose_offset_names_no_entry() -> None:
    found = location(*logs(1, 1), "sources/0/0", "sources/0/1", offsets_of=1)
    assert {"sources/0/0", "sources/0/1"} <= needed(found, 1, 1)


@pytest.mark.parametrize("kind", ["delta", "changelog"])
def test_state_goes_from_the_newest_committed_snapshot_to_the_begun_batch(kind: str) -> None:
    """The state of a begun batch is copied as far as it is there: a sink that has the batch skips it."""
    snapshots = ["state/0/0/4.snapshot", "state/0/1/4.snapshot", "state/0/0/7.snapshot"]
    found = location(*logs(6, 5), *changes(3, 4, 5, 6, kind=kind), *snapshots, f"state/0/0/7.{kind}", offsets_of=6)
    state = {name for name in needed(found, 6, 5) if name.startswith("state/")}
    assert state == {*snapshots, *changes(5, 6, kind=kind), f"state/0/0/7.{kind}"}


def operator(*stores: str, partitions: int = 2, number: int = 0) -> tuple[str, bytes]:
    """Return name and content of the file that names the stores of an operator."""
    about = [{"storeName": store, "numColsPrefixKey": 0, "numPartitions": partitions} for store in stores]
    return f"state/{number}/_metadata/metadata", f"v1\n{json.dumps({'stateStoreInfo': about})}".encode()


def stateful(*names: str, operators: tuple[tuple[str, bytes], ...]) -> LocationFiles:
    """Return a committed batch 1 of a query with these operators, and these files of its state."""
    found = location(*logs(1, 1), *names, offsets_of=1)
    for name, body in operators:
        found.store.overwrite(f"{KEY}/{name}", body)
    return LocationFiles(found)


JOIN = ("left-keyToNumValues", "right-keyToNumValues")
OF_JOIN = [f"state/0/{partition}/{store}/{n}.delta" for partition in (0, 1) for store in JOIN for n in (1, 2)]


def test_each_store_of_a_join_is_needed() -> None:
    found = stateful(*OF_JOIN, operators=(operator(*JOIN),))
    assert set(OF_JOIN) <= set(needed_files(found, Position(1, 1)))
    assert found.has_state(2)
    assert not found.has_state(3)
    for gone in OF_JOIN:
        assert not stateful(*(name for name in OF_JOIN if name != gone), operators=(operator(*JOIN),)).has_state(2)


def test_schema_of_the_state_is_needed() -> None:
    """Without it, Spark would read the state with the columns of a changed application."""
    schemas = ["state/0/0/_metadata/schema", "state/1/0/left-keyToNumValues/_metadata/schema"]
    assert set(schemas) <= set(needed_files(stateful(*schemas, operators=()), Position(1, 1)))


def test_state_that_nobody_has_written_is_missing() -> None:
    """Of a first batch that the sink has skipped, there is no file at all."""
    assert not stateful(operators=(operator("default"),)).has_state(1)
    assert not stateful("state/0/0/1.delta", operators=(operator("default"),)).has_state(1)
    assert stateful(*changes(1), operators=(operator("default"),)).has_state(1)
    assert stateful(operators=()).has_state(1)


KEYS = b'{"type":"struct","fields":[{"name":"key"}]}'
NO_KEY = b'{"type":"struct","fields":[]}'


@pytest.mark.parametrize(
    ("operator_name", "key", "undivided"),
    [("globalLimit", KEYS, True), ("stateStoreSave", NO_KEY, True), ("stateStoreSave", KEYS, False)],
)
def test_operator_without_a_key_has_one_partition_whatever_its_metadata_says(
    operator_name: str, key: bytes, undivided: bool
) -> None:
    name, body = operator("default")
    named = body.replace(b"{", b'{"operatorInfo":{"operatorId":0,"operatorName":"%s"},' % operator_name.encode(), 1)
    schema = b"\x00\x02v2\x00\x00\x00\x01\x00%c%s\x00" % (len(key), key)
    files = ((name, named), ("state/0/0/_metadata/schema", schema))
    found = stateful("state/0/0/1.delta", operators=files)
    assert found.has_state(1) == undivided
    assert found.undivided == ({"0"} if undivided else set())


def test_operator_of_one_partition_is_whole() -> None:
    one = operator("default", partitions=1, number=1)
    assert stateful(*changes(1), "state/1/0/1.delta", operators=(operator("default"), one)).has_state(1)


@pytest.mark.parametrize("body", [b"", b"v1", b"v1\n{", b"v1\n[]", b'v1\n{"stateStoreInfo":[{}]}'])
def test_operator_that_cannot_be_read_is_damage(body: bytes) -> None:
    with pytest.raises(Damaged, match="is not what Spark writes"):
        stateful(*changes(1), operators=((operator("default")[0], body),))


DESCRIBED = [
    operator("default")[0],  # in one format or the other
    "state/0/_metadata/v2/3",
    "state/0/_stateSchema/default/0_a",
    "state/0/0/_metadata/schema",
]


@pytest.mark.parametrize(("begun", "committed"), [(3, 2), (2, 2), (1, 0)])
def test_operator_that_only_a_failed_batch_has_described_is_left_out(begun: int, committed: int) -> None:
    """Spark 4.0 and 4.1 describe it while they plan the batch. The batch fails, and the query goes on without the operator."""
    ran = ["state/1/_metadata/metadata", *changes(*range(1, committed + 2), store="state/1")]
    found = location(*logs(begun, committed), *DESCRIBED, *ran, offsets_of=begun)
    for name, number in ((DESCRIBED[0], 0), (DESCRIBED[1], 0), (ran[0], 1)):
        found.store.overwrite(found.key_of(name), operator("default", number=number)[1])
    state = {name for name in needed(found, begun, committed) if name.startswith("state/")}
    assert state == set(ran)
    assert LocationFiles(found).stores_at(Position(begun, committed)) == {"state/1/0", "state/1/1"}


def test_copy_of_such_a_location_has_its_state() -> None:
    """The old script runs the failed batch again. Nobody will ever write a state."""
    position = Position(3, 2)
    old = location(*logs(3, 2), offsets_of=3)
    old.store.overwrite(old.key_of(DESCRIBED[0]), operator("default")[1])
    own = Location(old.store, "query/orders/2-def")
    copy_position((old,), position, own)
    assert not LocationFiles(own).stores
    assert has_state(own, (old,), position)


@pytest.mark.parametrize(("begun", "committed"), [(0, NOTHING), (0, 0)])
def test_operator_of_the_first_batch_is_expected(begun: int, committed: int) -> None:
    """The sink may have the batch from another driver, and that one has written the state."""
    name, body = operator("default")
    found = location(*logs(begun, committed), name, offsets_of=0)
    found.store.overwrite(found.key_of(name), body)
    assert LocationFiles(found).stores_at(Position(begun, committed)) == {"state/0/0", "state/0/1"}
    assert not has_state(found, (), Position(0, NOTHING))


def test_snapshot_of_rocksdb_needs_its_parts() -> None:
    found = location(*logs(1, 1), "state/0/0/SSTs/a.sst", "state/0/0/SSTs/old.sst", offsets_of=1)
    found.store.overwrite(f"{KEY}/state/0/0/2.zip", rocksdb("a.sst"))
    state = [name for name in needed_files(LocationFiles(found), Position(1, 1)) if name.startswith("state/")]
    assert state == ["state/0/0/SSTs/a.sst", "state/0/0/2.zip"]


def test_snapshot_of_rocksdb_without_a_part_does_not_count() -> None:
    found = location(*logs(1, 1), *changes(1, 2, kind="changelog"), "state/0/0/SSTs/b.sst", offsets_of=1)
    found.store.overwrite(f"{KEY}/state/0/0/2.zip", rocksdb("a.sst", "b.sst"))
    names = LocationFiles(found).state(Position(1, 1))
    assert set(names) == {*changes(1, 2, kind="changelog")}
    found.store.create(f"{KEY}/state/0/0/SSTs/a.sst", b"x")
    names = LocationFiles(found).state(Position(1, 1))
    assert {"state/0/0/2.zip", "state/0/0/SSTs/a.sst", "state/0/0/SSTs/b.sst"} < set(names)


def test_state_that_only_an_older_location_has_is_found_there() -> None:
    older = location(*logs(1, 0), *changes(1, 2), offsets_of=1)
    newest = Location(older.store, "query/orders/2-def")
    for name in (*logs(1, 0), *changes(1)):
        older.store.create(newest.key_of(name), b"x")
    older.store.overwrite(newest.key_of("offsets/1"), offsets())
    found = LocationFiles(newest, older)
    assert not LocationFiles(newest).has_state(2)
    assert found.has_state(2)
    assert [name for name in found.state(Position(1, 0)) if found.locations[name] is older] == changes(2)
    assert found.locations["commits/0"] is newest


def test_partitions_from_before_the_query_was_rescaled_are_not_taken_from_an_older_location() -> None:
    older = location(*logs(1, 1), *changes(1, 2), "state/0/2/1.delta", "state/0/2/2.delta", offsets_of=1)
    newest = Location(older.store, "query/orders/2-def")
    for name in ("state/0/0/2.snapshot", "state/0/1/2.snapshot", *changes(3), "state/1/0/3.delta"):
        older.store.create(newest.key_of(name), b"x")
    name, body = operator("default")
    older.store.create(newest.key_of(name), body)
    older.store.create(older.key_of("state/1/1/3.delta"), b"x")  # nobody has described this operator yet
    found = LocationFiles(newest, older)
    assert found.stores == {"state/0/0", "state/0/1", "state/1/0", "state/1/1"}
    assert found.has_state(3, frozenset({"state/0/0", "state/0/1"}))


@pytest.mark.parametrize(
    "gone", ["metadata", "offsets/2", "offsets/3", "commits/2", "state/0/1/2.delta", "state/0/0/3.delta", "sources/0/1"]
)
def test_missing_file_is_damage(gone: str) -> None:
    files = [*logs(3, 2), *changes(1, 2, 3), "sources/0/0", "sources/0/1", "sources/0/2"]
    left = (name for name in files if name != gone)
    found = location(*left, offsets_of=None if gone == "offsets/3" else 3, log_offset=2)
    with pytest.raises(
        Damaged, match=gone.replace("state/0/1/2.delta", "no version 2").replace("state/0/0/3.delta", "no version 3")
    ):
        needed(found, 3, 2)


@pytest.mark.parametrize("body", [b"", b"v1", b"v1\n{", b"v2\n{}\n0:-", b"\xff", b"v1\n[]"])
def test_torn_offsets_are_damage(body: bytes) -> None:
    with pytest.raises(Damaged, match="offsets/3 is not what Spark writes"):
        Offsets.parse(body, 3, "offsets/3")


def test_offsets_name_the_entry_of_the_log_of_a_file_source() -> None:
    found = Offsets.parse(offsets(11, watermark=60_000), 14, "offsets/14")
    assert (found.newest_log_entry(0), found.watermark_ms) == (11, 60_000)
    assert found.newest_log_entry(1) is None


def test_topic_of_kafka_may_be_called_like_the_offset_of_a_file_source() -> None:
    found = Offsets.parse(b'v1\n{"batchWatermarkMs":0}\n{"logOffset":{"0":17}}', 14, "offsets/14")
    assert found.newest_log_entry(0) is None


# -- what somebody else wrote --------------------------------------------------------------------------------------------

HUGE = 10**12
DEEP = "[" * 100_000


def hurt_offsets(text: str) -> bytes:
    return f'v1\n{{"batchWatermarkMs":0}}\n{text}'.encode()


@pytest.mark.parametrize(
    "body",
    [
        b'v1\n{"batchWatermarkMs":Infinity}\n-',
        b'v1\n{"batchWatermarkMs":1e999}\n-',
        b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":' + b"9" * 40 + b"}\n-",
        b'v1\n{"batchWatermarkMs":0,"conf":{"spark.sql.shuffle.partitions":7}}\n-',
        f"v1\n{DEEP}\n-".encode(),
        hurt_offsets(DEEP),
        hurt_offsets("[" * 200 + "]" * 200),
        hurt_offsets("9" * 5000),
        b"\xff",
        b"v1\n[]\n-",
    ],
)
def test_offsets_that_spark_never_writes_are_damaged(body: bytes) -> None:
    with pytest.raises(Damaged, match="offsets/3 is not what Spark writes"):
        Offsets.parse(body, 3, "offsets/3")


def zipped(text: bytes, name: str = "metadata", *, method: int | None = None, flags: int = 0) -> bytes:
    """Return an archive with one file. ``method`` and ``flags`` are what its headers say of it, whatever it is."""
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, text)
    packed = bytearray(body.getvalue())
    for header, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = packed.index(header) + at
        packed[place] |= flags
        packed[place + 2] = packed[place + 2] if method is None else method
    return bytes(packed)


MANIFEST = b'v1\n{"sstFiles":[],"logFiles":[]}'


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(zipped(MANIFEST, method=99), id="unknown method"),
        pytest.param(zipped(MANIFEST, flags=1), id="encrypted"),
        pytest.param(zipped(MANIFEST * 50)[:40] + zipped(MANIFEST * 50)[50:], id="torn"),
        pytest.param(zipped(b"v1\n" + b" " * LONGEST_MANIFEST), id="small, and holds more than a list may"),
        pytest.param(zipped(b"v1\n[]"), id="a list"),
        pytest.param(zipped(b'v1\n{"sstFiles":7}'), id="no files"),
        pytest.param(zipped(f"v1\n{DEEP}".encode()), id="too deep"),
        pytest.param(zipped(MANIFEST, "other"), id="no metadata"),
    ],
)
def test_snapshot_of_rocksdb_that_spark_never_writes_is_damaged(body: bytes) -> None:
    place = location(*logs(1, 1), offsets_of=1)
    place.store.overwrite(place.key_of("state/0/0/2.zip"), body)
    with pytest.raises(Damaged, match=r"2\.zip is not what Spark writes"):
        LocationFiles(place)


@pytest.mark.parametrize("stores", [[HUGE], [60_000, 60_000], [-1], ["2"], [2.5], [None]])
def test_stores_that_nobody_can_have_are_damaged(stores: list[object]) -> None:
    place = location(*logs(1, 1), offsets_of=1)
    about = {"stateStoreInfo": [{"storeName": "default", "numPartitions": partitions} for partitions in stores]}
    place.store.overwrite(place.key_of("state/0/_metadata/metadata"), f"v1\n{json.dumps(about)}".encode())
    if stores == [-1]:  # no store at all
        assert not LocationFiles(place).stores
        return
    with pytest.raises(Damaged, match="metadata is not what Spark writes"):
        LocationFiles(place)


@pytest.mark.parametrize("planted", [(), ("sources/0/999999999999",), ("sources/0/999999999998.compact",)])
def test_log_of_a_source_that_counts_to_any_number_is_damaged(planted: tuple[str, ...]) -> None:
    place = location(*logs(1, 1), "sources/0/0", *planted, offsets_of=1, log_offset=HUGE)
    with pytest.raises(Damaged, match=r"sources/0/\d+ is missing"):
        needed(place, 1, 1)


def test_version_of_the_state_that_counts_to_any_number_is_missing_or_left_out() -> None:
    place = location(
        *logs(1, 1), "state/0/0/1.delta", f"state/0/0/{HUGE}.delta", f"state/0/0/{HUGE}.snapshot", offsets_of=1
    )
    with pytest.raises(Damaged, match="has no version 2"):
        needed(place, 1, 1)
    place.store.create(place.key_of("state/0/0/2.delta"), b"x")
    assert {name for name in needed(place, 1, 1) if name.startswith("state/")} == {
        "state/0/0/1.delta",
        "state/0/0/2.delta",
    }


@pytest.mark.parametrize(("begun", "committed"), [(HUGE, 1), (3, 1)])
def test_batch_that_cannot_have_begun_is_damaged(begun: int, committed: int) -> None:
    place = location(*logs(1, 1), f"offsets/{begun - 1}", f"offsets/{begun}", offsets_of=begun)
    with pytest.raises(Damaged, match="Spark ends a batch before it begins the next one"):
        needed(place, begun, committed)


@pytest.mark.parametrize("log", ["offsets", "commits"])
def test_number_that_no_batch_can_have_is_damaged(log: str) -> None:
    place = location(*logs(1, 1), f"{log}/{10**15}", offsets_of=1)
    with pytest.raises(Damaged, match="no query runs so many batches"):
        place.batches(log)
    names = ["7.tmp", "٣", "x", "", "9" * 19, "9" * 4301]
    assert location(*logs(1, 1), *(f"{log}/{name}" for name in names if name)).batches(log) == [0, 1]


@pytest.mark.parametrize("body", [b"[]", b'"id"', DEEP.encode(), b"\xff", b"{}", b"7"])
def test_id_of_a_query_that_spark_never_writes_is_damaged(body: bytes) -> None:
    place = location()
    place.store.create(place.key_of("metadata"), body)
    with pytest.raises(Damaged, match="metadata is not what Spark writes"):
        place.query_id()
