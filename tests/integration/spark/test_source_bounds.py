"""A query reads only below what the script's sources name, each source where it has read before. Runs on Linux, with a Spark session."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from airflow_checkpoint_provider.errors import Damaged, WrongUse
from airflow_checkpoint_provider.location.files import Location, Position
from airflow_checkpoint_provider.spark.queries.sources.reading import Reading
from airflow_checkpoint_provider.spark.queries.sources.source_paths import Below
from airflow_checkpoint_provider.spark.queries.sources.source_rows import SourceRows
from airflow_checkpoint_provider.storage import LocalStore


def writer_of(spark: SparkSession, source: str, out: Path, location: Path) -> DataStreamWriter:
    writer = spark.readStream.text(source).writeStream.format("text").option("path", str(out))
    return writer.option("checkpointLocation", str(location)).trigger(availableNow=True)


def planted(location: Path, path: str) -> None:
    """Let batch 1 begin, as somebody with access to the location can: it reads ``path``."""
    entry = json.dumps({"path": path, "timestamp": 1, "batchId": 1})
    (location / "sources" / "0" / "1").write_text(f"v1\n{entry}")
    begun = (location / "offsets" / "0").read_text().replace('{"logOffset":0}', '{"logOffset":1}')
    (location / "offsets" / "1").write_text(begun)
    for checksum in location.rglob(".*.crc"):
        checksum.unlink()


@pytest.fixture
def ran(spark: SparkSession, tmp_path: Path) -> Callable[[str], tuple[DataStreamWriter, Path]]:
    """Run batch 0 of a query that reads ``in`` by a given path, and let ``in-private`` lie beside it."""

    def run(source: str) -> tuple[DataStreamWriter, Path]:
        for folder in ("in", "in-private"):
            (tmp_path / folder).mkdir()
        (tmp_path / "in" / "rows.txt").write_text("row\n")
        (tmp_path / "in-private" / "credentials").write_text("secret\n")
        location = tmp_path / "root" / "location"
        writer = writer_of(spark, source.format(tmp_path), tmp_path / "out", location)
        writer.start().awaitTermination()
        return writer, location

    return run


def check_can_continue(spark: SparkSession, writer: DataStreamWriter, root: Path, position: Position) -> None:
    reading = Reading(Location(LocalStore(str(root)), "location"), position, position.committed)
    SourceRows(spark, "rows", writer).check_can_continue(reading)


OUTSIDE = [
    "file://{0}/in-private/credentials",
    "file://{0}/in/../in-private/credentials",
    "file://{0}/in/%2e%2e/in-private/credentials",
    "file://{0}/in/x%2F..%2F..%2Fin-private/credentials",
    "file:///etc/hostname",
    "file://{0}/in/rows.txt?x",
    "file://{0}/in#/rows.txt",
    "http://127.0.0.1:9{0}/in/rows.txt",
    "{0}/in/rows.txt",
    "%66ile://x{0}/in/rows.txt",
]


@pytest.mark.parametrize(  # one name and one pattern show it
    "source",
    [
        "{}/in",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("file:{}/in/", "file://{}/./in")),
        "{}/i[mn]",
        pytest.param("{}/{{in,out}}", marks=pytest.mark.slow),
    ],
)
def test_begun_batch_that_names_a_file_elsewhere_is_damaged(
    spark: SparkSession, tmp_path: Path, ran: Callable[[str], tuple[DataStreamWriter, Path]], source: str
) -> None:
    writer, location = ran(source)
    planted(location, f"file://{tmp_path}/in/rows.txt")
    check_can_continue(spark, writer, tmp_path / "root", Position(1, 0))
    for outside in OUTSIDE:
        planted(location, outside.format(tmp_path))
        with pytest.raises(Damaged, match="for its next batch, which does not lie below its source"):
            check_can_continue(spark, writer, tmp_path / "root", Position(1, 0))


def test_spark_itself_reads_what_lies_beside_the_source(
    tmp_path: Path, ran: Callable[[str], tuple[DataStreamWriter, Path]]
) -> None:
    """It compares the beginnings of texts. That is why the package looks."""
    writer, location = ran("{}/in")
    planted(location, f"file://{tmp_path}/in-private/credentials")
    writer.start().awaitTermination()
    assert "secret" in {line for file in (tmp_path / "out").glob("part-*") for line in file.read_text().split("\n")}


# -- between two batches ---------------------------------------------------------------------------------------------------


def union(spark: SparkSession, folder: Path, *paths: str, name_only: bool = False) -> DataStreamWriter:
    """Return a query that reads the texts below these paths of ``folder``, in this order."""
    reader = spark.readStream.option("fileNameOnly", name_only)
    rows, *others = [reader.text(str(folder / path)) for path in paths]
    for more in others:
        rows = rows.union(more)
    return rows.writeStream.format("noop").trigger(availableNow=True)


@pytest.fixture
def both(spark: SparkSession, tmp_path: Path) -> Path:
    """Run batch 0 of a query that reads ``a`` and ``b``. Return the folder of everything. ``c`` has no file."""
    for name in "abc":
        (tmp_path / name).mkdir()
    for name in "ab":
        (tmp_path / name / f"of {name}.txt").write_text("row\n")
    writer = union(spark, tmp_path, "a", "b").option("checkpointLocation", str(tmp_path / "root" / "location"))
    writer.start().awaitTermination()
    return tmp_path


@pytest.mark.parametrize("paths", [("b", "a"), ("b", "c"), ("c", "a"), ("[b]", "{a,c}")])
@pytest.mark.parametrize("name_only", [False, True])
def test_source_that_has_read_the_files_of_another_one_is_refused(
    spark: SparkSession, both: Path, paths: tuple[str, ...], name_only: bool
) -> None:
    """Spark would read all files of both again, or leave out those that have the same name."""
    writer = union(spark, both, *paths, name_only=name_only)
    with pytest.raises(
        WrongUse, match=r"of [ab]\.txt, which lies below another of its sources, .* same order as before"
    ):
        check_can_continue(spark, writer, both / "root", Position(0, 0))


@pytest.mark.parametrize("paths", [("a", "b"), ("[a]", "b"), ("a/*", "b"), ("{a,b}", "b")])
def test_source_that_reads_where_it_has_read_goes_on_in_silence(
    spark: SparkSession, both: Path, capfd: pytest.CaptureFixture[str], paths: tuple[str, ...]
) -> None:
    check_can_continue(spark, union(spark, both, *paths), both / "root", Position(0, 0))
    assert "CKP" not in "".join(capfd.readouterr())


def test_source_whose_path_has_moved_is_named(
    spark: SparkSession, both: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It reads all files there. If Spark knows files by their names, it does not read them again."""
    check_can_continue(spark, union(spark, both, "a", "c"), both / "root", Position(0, 0))
    said = "".join(capfd.readouterr())
    assert f"its source {both}/c has read other paths before, such as file://{both}/b/of b.txt" in said
    assert "CKP149" in said
    check_can_continue(spark, union(spark, both, "a", "c", name_only=True), both / "root", Position(0, 0))
    assert "CKP" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("source", "inside", "outside"),
    [
        ("s3a://lake/orders", "s3a://lake/orders/a%20b/x", "s3a://lake/orders_raw/x"),
        ("s3a://lake/orders", "S3A://lake/orders/x", "s3a://pond/orders/x"),
        ("s3a://lake/", "s3a://lake/x", "s3a://lake2/x"),
        ("file:///data/*/in", "file:///data/a/in/x", "file:///data/a/out/x"),
        ("file:///data/*/in", "file:///data/b/in/x/y", "file:///data/a/b/in/x"),
        ("file:///data/{a,b}/x*", "file:/data/b/x1/y", "file:///data/c/x1/y"),
        ("file:///data/{a/b,c}/x", "file:///data/a/b/x/y", "file:///other/a/b/x/y"),
        ("file:///a b/ü", "file:///a%20b/%C3%BC/x", "file:///a%2520b/%C3%BC/x"),
    ],
)
def test_names_of_a_path_are_compared_one_by_one(spark: SparkSession, source: str, inside: str, outside: str) -> None:
    below = Below(spark, source)
    assert below.holds(inside)
    assert not below.holds(outside)
