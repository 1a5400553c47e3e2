"""Files in flight are copied out of a sink and brought into another one, and a source's log is moved. Runs on Linux."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.errors import Damaged
from airflow_checkpoint_provider.file_sink.log import SinkFile
from airflow_checkpoint_provider.file_sink.rewinding import Aside, Manifest, RewoundFile, move_aside
from airflow_checkpoint_provider.location.copying import copy_of
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.spark.queries.sinks.files import FileStreamSink
from airflow_checkpoint_provider.spark.queries.sinks.links import Move, bring
from airflow_checkpoint_provider.spark.queries.sinks.sink_log import SinkLog
from airflow_checkpoint_provider.spark.queries.writer import Target
from airflow_checkpoint_provider.storage import LocalStore

SCHEMA = "id long, half string"
HALF = "id", "concat('a b/', id % 2) AS half"


def stream(spark: SparkSession, source: Path, out: Path, location: Path) -> None:
    """Copy the rows that are there, in batches of one file."""
    read = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").parquet(f"file:{source}")
    writer = read.writeStream.partitionBy("half").format("parquet").option("path", str(out))
    writer.option("checkpointLocation", str(location)).trigger(availableNow=True).start().awaitTermination()


def ids(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(row.id for row in spark.read.schema(SCHEMA).parquet(str(folder)).collect())


@pytest.mark.parametrize("up_to", [pytest.param(3, marks=pytest.mark.slow), 21])  # 21 is the harder one
def test_files_in_flight_are_read_from_the_sink_to_which_they_were_brought(
    spark: SparkSession, tmp_path: Path, up_to: int
) -> None:
    """Behind batch 9, the log of that sink begins with a compacted entry."""
    old, new, store = tmp_path / "old out", tmp_path / "new out", LocalStore(str(tmp_path / "root"))
    spark.range(6).selectExpr(*HALF).repartition(1).write.parquet(str(tmp_path / "in"))
    stream(spark, tmp_path / "in", old, tmp_path / "first")
    sink, target = FileStreamSink(spark, "rows", Target("parquet", f"file:{old}")), Location(store, "state/rows/1-abc")
    files = sink.named(file for _, file in sink.log.written(0, -1))
    assert sorted(file.name.partition("/")[0] for file in files) == ["half=a%20b%252F0", "half=a%20b%252F1"]
    for _ in range(2):  # the first driver was killed before the savepoint was completed
        sink.copy_out(files, target, lambda: None)
    copies = {file.name: target for file in files}
    assert {name for name in target.sizes() if name in map(copy_of, copies)} == set(map(copy_of, copies))
    for _ in range(2):  # the first driver was killed before the log named them
        brought = bring(SinkLog(spark, f"file:{new}"), copies)
    SinkLog(spark, str(new)).mark_batches_written(up_to, brought)
    assert ids(spark, new) == [*range(6)]
    stream(spark, new, tmp_path / "out", tmp_path / "second")
    assert ids(spark, tmp_path / "out") == [*range(6)]


def paths(log: bytes) -> list[str]:
    return [json.loads(line)["path"] for line in log.decode().split("\n")[1:]]


def test_source_whose_log_was_moved_does_not_read_again(spark: SparkSession, tmp_path: Path) -> None:
    """Its files lie elsewhere now, and are named as Spark names them there. One that it has not read is new."""
    old, new, location = tmp_path / "old out", tmp_path / "new out", tmp_path / "query"
    spark.range(6).selectExpr(*HALF).repartition(1).write.parquet(str(tmp_path / "in"))
    stream(spark, tmp_path / "in", old, tmp_path / "first")
    stream(spark, old, tmp_path / "out", location)
    old.rename(new)
    for checksum in [*new.rglob(".*.crc"), *location.rglob(".*.crc")]:  # a copied location has none
        checksum.unlink()
    log = SinkLog(spark, str(new))
    own = Location(LocalStore(str(tmp_path)), "query")
    before = own.read("sources/0/0")
    Move(0, f"file://{tmp_path}/old%20out", f"file://{tmp_path}/new%20out").carry_out(own)
    assert paths(own.read("sources/0/0")) == paths(before.replace(b"/old%20out/", b"/new%20out/"))
    for entry in (new / "_spark_metadata").glob("[0-9]*"):
        entry.write_text(entry.read_text().replace("/old%20out/", "/new%20out/"))
    assert len(log.files()) == 2
    stream(spark, new, tmp_path / "out", location)
    assert ids(spark, tmp_path / "out") == [*range(6)]


def test_damaged_log_of_a_source_is_named(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.overwrite("query/sources/0/0", b'v1\n{"path":7}')
    with pytest.raises(Damaged, match="query/sources/0/0 is not what Spark writes"):
        Move(0, "file:///a", "file:///b").carry_out(Location(store, "query"))


@pytest.mark.parametrize(
    "name",
    [
        "_spark_metadata/412",
        "%5fspark_metadata/412",
        ".hidden",
        "%2e%2e/elsewhere",
        "a/%2e%2e/%2e%2e/elsewhere",
        "../elsewhere",
        "../out2/part-0",
        "",
    ],
)
def test_file_in_flight_is_brought_nowhere_else(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Whoever changed the checkpoint may have named it."""
    store = LocalStore(str(tmp_path / "root"))
    store.overwrite(f"state/rows/1-abc/{copy_of(name)}", b"rows")
    with pytest.raises(Damaged, match="is no data file of the sink"):
        bring(SinkLog(spark, str(tmp_path / "out")), {name: Location(store, "state/rows/1-abc")})
    assert not (tmp_path / "elsewhere").exists()


def test_absolute_name_of_a_file_in_flight_lies_below_the_sink(spark: SparkSession, tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "root"))
    name = f"file:{tmp_path}/elsewhere"
    store.overwrite(f"state/rows/1-abc/{copy_of(name)}", b"rows")
    bring(SinkLog(spark, str(tmp_path / "out")), {name: Location(store, "state/rows/1-abc")})
    assert not (tmp_path / "elsewhere").exists()


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """Return a sink with links that lead out of it: a folder, and a file."""
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    (elsewhere / "below").mkdir(parents=True)
    for file in (elsewhere / "rows", elsewhere / "below" / "rows"):
        file.write_text("of others")
    (out / "link").symlink_to(elsewhere / "below")
    (out / "file").symlink_to(elsewhere / "rows")
    return out


LINKS = [
    "link/rows",
    "link/%2e%2e/rows",
    "link/new",
    "file",
    "%6cink/rows",
    "link%2Frows",
    "file?x",
    "file#x",
    "_spark_metadata?x",
]


@pytest.mark.parametrize("name", LINKS)
def test_link_in_a_sink_leads_nowhere(spark: SparkSession, tmp_path: Path, linked: Path, name: str) -> None:
    """Whoever writes in the sink can put it there, and name it in the log."""
    log, store = SinkLog(spark, str(linked)), LocalStore(str(tmp_path / "root"))
    (linked / "rows").write_text("own")
    store.overwrite(f"state/rows/1-abc/{copy_of(name)}", b"rows")
    for act in (
        lambda: move_aside(log, taking("rows", name)),
        lambda: bring(log, {name: Location(store, "state/rows/1-abc")}),
        lambda: log.copy_out(name, f"file://{tmp_path}/copy"),
    ):
        with pytest.raises(Damaged, match=r"symbolic link|no data file of the sink"):
            act()
    assert {file.name: file.read_text() for file in (tmp_path / "elsewhere").rglob("rows")} == {"rows": "of others"}
    assert not (tmp_path / "elsewhere" / "below" / "new").exists()
    assert not (tmp_path / "copy").exists()


def test_folder_for_what_is_taken_out_is_no_link(spark: SparkSession, tmp_path: Path, linked: Path) -> None:
    (linked / "rows").write_text("mine")
    (linked / "_rewound-2-def").symlink_to(tmp_path / "elsewhere" / "below")
    with pytest.raises(Damaged, match="symbolic link"):
        move_aside(SinkLog(spark, str(linked)), taking("rows"))
    assert (linked / "rows").read_text() == "mine"


def taking(*names: str) -> Aside:
    """Return what a query takes out of its sink."""
    files = tuple(RewoundFile(name=name, bytes=len(b"rows")) for name in names)
    about = {"job": "orders", "uid": "rows", "at": "2026-11-20T00:00:00+00:00", "by": "ann", "batch": 0, "number": 19}
    return Aside("_rewound-2-def", Manifest(**about, entries=(), files=files))  # type: ignore[arg-type]


def test_sink_that_is_a_link_itself_is_used(spark: SparkSession, tmp_path: Path) -> None:
    """A person chose it."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    store = LocalStore(str(tmp_path / "root"))
    store.overwrite(f"state/rows/1-abc/{copy_of('day=1/rows')}", b"rows")
    log = SinkLog(spark, str(tmp_path / "out"))
    bring(log, {"day=1/rows": Location(store, "state/rows/1-abc")})
    assert (tmp_path / "disk" / "day=1" / "rows").read_bytes() == b"rows"
    move_aside(log, taking("day=1/rows"))
    assert not (tmp_path / "disk" / "day=1" / "rows").exists()
    assert (tmp_path / "disk" / "_rewound-2-def" / "day=1" / "rows").read_bytes() == b"rows"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "rows",
        "a b",
        "s3a://lake/out/rows",
        "http://127.0.0.1:9/rows",
        "file://host{}/out/rows",
        "file://{}/out/a b",
        "%zz",
        "file:",
    ],
)
def test_path_that_a_sink_never_has_is_damaged(spark: SparkSession, tmp_path: Path, path: str) -> None:
    (tmp_path / "out").mkdir()
    log, named = SinkLog(spark, str(tmp_path / "out")), SinkFile(path.format(tmp_path), "{}")
    with pytest.raises(Damaged):
        log.below(named)


@pytest.mark.parametrize("name", ["1.tmp", "5.backup", "٣", "9" * 19, "x", "7.compact.x"])
def test_name_that_means_nothing_to_spark_is_no_entry_of_a_log(spark: SparkSession, tmp_path: Path, name: str) -> None:
    entries = tmp_path / "out" / "_spark_metadata"
    entries.mkdir(parents=True)
    (entries / "0").write_text("v1")
    (entries / name).write_text("v1")
    log = SinkLog(spark, str(tmp_path / "out"))
    assert (log.newest_batch(), log.files(), log.newest_file(0)) == (0, [], None)


@pytest.mark.parametrize("line", ["[" * 100_000, "7", "[]", '{"size":1}', '{"path":', "\ud7ff"])
def test_line_that_a_sink_never_has_is_damaged(spark: SparkSession, tmp_path: Path, line: str) -> None:
    entries = tmp_path / "out" / "_spark_metadata"
    entries.mkdir(parents=True)
    (entries / "0").write_text(f"v1\n{line}")
    with pytest.raises(Damaged, match="_spark_metadata/0 is not what Spark writes"):
        SinkLog(spark, str(tmp_path / "out")).files()


@pytest.mark.parametrize("size", ["-1", "1.5", "true", "1e999", "null", '"5"', "9" * 30])
def test_size_that_no_file_has_is_damaged(size: str) -> None:
    with pytest.raises(Damaged, match="in the log of a sink is not what Spark writes"):
        _ = SinkFile("file:/x", f'{{"path":"file:/x","size":{size}}}').bytes
