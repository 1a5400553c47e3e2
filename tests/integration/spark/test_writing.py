"""Write the rows of a stage: one write into a directory of its own, and a list whose rows are counted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.errors import StoreError
from airflow_checkpoint_provider.spark.stages import parquet_files
from tests.integration.spark.conftest import Stage, hadoop_conf

FAILING = "if(id = 99, raise_error('the last row cannot be had'), id) as id"


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"file://{tmp_path}/clean/1-aa"


def _parts(uri: str) -> dict[str, int]:
    folder = Path(uri.removeprefix("file://"))
    return {path.name: path.stat().st_size for path in folder.rglob("part-*")}


def test_write_lists_and_counts_its_files(spark: SparkSession, uri: str) -> None:
    written = parquet_files.write(spark.range(0, 100, 1, 3), uri, codec="lz4_raw")
    assert written.sizes == _parts(uri)
    assert len(written.sizes) == 3
    assert all(name.endswith(".lz4raw.parquet") for name in written.sizes)
    assert not Path(uri.removeprefix("file://"), "_SUCCESS").exists()

    files = parquet_files.count_rows(spark, written, {})
    assert [file.rows for file in files] == [33, 33, 34]
    assert {file.name: file.bytes for file in files} == written.sizes


@pytest.mark.parametrize(
    ("root", "folder", "file"), [(0o2770, "2770", "660"), (0o700, "700", "600"), (0o755, "755", "644")]
)
def test_rows_have_the_rights_of_the_directory_above(
    spark: SparkSession, tmp_path: Path, root: int, folder: str, file: str
) -> None:
    """Hadoop would give them those of the umask 022, which its configuration names."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root").chmod(root)
    parquet_files.write(spark.range(0, 10, 1, 2), f"file://{tmp_path}/root/state/clean/1-aa", codec="lz4_raw")
    modes = {path: f"{path.stat().st_mode & 0o7777:o}" for path in (tmp_path / "root").rglob("*")}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {folder}
    assert {mode for path, mode in modes.items() if path.is_file()} == {file}
    assert len(modes) == 3 + 2 * 2  # directories; files and their checksums


def test_frame_without_rows_is_one_file_without_rows(spark: SparkSession, uri: str) -> None:
    files = parquet_files.count_rows(
        spark, parquet_files.write(spark.range(100).filter("id < 0"), uri, codec="lz4_raw"), {}
    )
    assert [file.rows for file in files] == [0]


def test_write_lists_all_files_if_the_session_limits_rows_per_file(spark: SparkSession, uri: str) -> None:
    spark.conf.set("spark.sql.files.maxRecordsPerFile", "10")
    try:
        files = parquet_files.count_rows(spark, parquet_files.write(spark.range(0, 35, 1, 1), uri, codec="lz4_raw"), {})
    finally:
        spark.conf.unset("spark.sql.files.maxRecordsPerFile")
    assert sorted(file.rows for file in files) == [5, 10, 10, 10]


def test_second_write_into_a_directory_is_refused(spark: SparkSession, uri: str) -> None:
    parquet_files.write(spark.range(3), uri, codec="lz4_raw")
    with pytest.raises(Exception, match="PATH_ALREADY_EXISTS"):
        parquet_files.write(spark.range(3), uri, codec="lz4_raw")


def test_failed_write_leaves_no_files(spark: SparkSession, uri: str) -> None:
    """Also where the cluster says to commit task by task, which leaves the files of tasks that went well."""
    two = hadoop_conf(spark, "mapreduce.fileoutputcommitter.algorithm.version", "2")
    with two, pytest.raises(Exception, match="the last row cannot be had"):
        parquet_files.write(spark.range(0, 100, 1, 4).selectExpr(FAILING), uri, codec="lz4_raw")
    assert _parts(uri) == {}
    with pytest.raises(Exception, match="PATH_ALREADY_EXISTS"):
        parquet_files.write(spark.range(3), uri, codec="lz4_raw")


def test_second_writer_in_the_directory_is_refused(spark: SparkSession, uri: str) -> None:
    folder = uri.removeprefix("file://")

    def intrude(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        os.makedirs(folder, exist_ok=True)
        Path(folder, "part-00000-00000000-0000-0000-0000-000000000000-c000.lz4raw.parquet").write_bytes(b"PAR1")
        yield from batches

    with pytest.raises(StoreError, match="files of 2 writes"):
        parquet_files.write(spark.range(0, 3, 1, 1).mapInPandas(intrude, "id long"), uri, codec="lz4_raw")


def test_rows_lost_after_the_commit_are_refused(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    written = parquet_files.write(spark.range(0, 100, 1, 2), uri, codec="lz4_raw")
    shorter = parquet_files.write(spark.range(0, 10, 1, 1), f"file://{tmp_path}/other", codec="lz4_raw")
    file, other = (Path(w.uri.removeprefix("file://"), min(w.sizes)) for w in (written, shorter))
    other.replace(file)
    file.with_name(f".{file.name}.crc").unlink()
    with pytest.raises(StoreError, match=r"100 rows were written .* files hold 60"):
        parquet_files.count_rows(spark, written, {})


def test_emptied_file_is_refused_by_its_rows(spark: SparkSession, uri: str) -> None:
    written = parquet_files.write(spark.range(0, 100, 1, 2), uri, codec="lz4_raw")
    Path(uri.removeprefix("file://"), min(written.sizes)).write_bytes(b"")
    with pytest.raises(StoreError, match="100 rows were written"):
        parquet_files.count_rows(spark, written, {})


def test_timestamps_are_not_int96(spark: SparkSession, uri: str) -> None:
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        written = parquet_files.write(spark.sql("select timestamp'2026-11-20 01:02:03' as t"), uri, codec="lz4_raw")
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    file = pq.ParquetFile(next(Path(uri.removeprefix("file://")).glob("*.parquet")))
    assert file.schema.column(0).physical_type == "INT64"
    assert len(written.sizes) == 1
    assert file.metadata.row_group(0).column(0).statistics.has_min_max


@pytest.mark.parametrize(("scheme", "codec"), [("file", "lz4_raw"), ("s3a", "zstd"), ("hdfs", "zstd")])
def test_codec_depends_on_the_store(scheme: str, codec: str) -> None:
    assert parquet_files.codec_for(scheme) == codec


def test_uri_with_pattern_letters_is_taken_literally(spark: SparkSession, tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/a [1]{{b}}*?c%20ä/1-aa"
    written = parquet_files.write(spark.range(10), uri, codec="lz4_raw")
    assert parquet_files.read(spark, uri, parquet_files.count_rows(spark, written, {}), written.schema).count() == 10


def test_write_computes_the_rows_once(spark: SparkSession, uri: str, staged: Callable[..., Stage]) -> None:
    """The rows are counted while they are written, not by computing them again."""
    seen = spark.sparkContext.accumulator(0)

    def see(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            seen.add(len(batch))
            yield batch

    stage = staged(spark.range(0, 50, 1, 2).mapInPandas(see, "id long"))
    assert stage.read().count() == 50
    assert seen.value == 50
