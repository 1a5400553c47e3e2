"""Read a stage: damage that Spark does not report raises an error that names the file."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_checkpoint_provider.errors import Damaged
from airflow_checkpoint_provider.spark.stages import parquet_files
from tests.integration.spark.conftest import Stage, hadoop_conf

LISTED = "spark.sql.sources.parallelPartitionDiscovery.threshold"


@pytest.fixture
def stage(spark: SparkSession, staged: Callable[[DataFrame], Stage]) -> Stage:
    return staged(spark.range(0, 20_000, 1, 2))


def _jobs(spark: SparkSession) -> int:
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    return int(jobs.size())


def test_read_returns_the_written_rows(stage: Stage) -> None:
    frame = stage.read()
    assert frame.count() == 20_000
    assert frame.selectExpr("sum(id)").first() == (199_990_000,)
    assert [(field.name, field.nullable) for field in frame.schema] == [("id", True)]


def test_empty_file_is_damaged(stage: Stage) -> None:
    stage.first.write_bytes(b"")
    with pytest.raises(Damaged, match=f"{stage.first.name} has 0 bytes"):
        stage.read()


def test_missing_file_is_damaged(stage: Stage) -> None:
    stage.first.unlink()
    with pytest.raises(Damaged, match=f"{stage.first.name} is missing"):
        stage.read()


def test_missing_directory_is_damaged(stage: Stage) -> None:
    shutil.rmtree(stage.folder)
    with pytest.raises(Damaged, match="is missing"):
        stage.read()


def test_file_of_another_size_is_damaged(stage: Stage) -> None:
    body = stage.first.read_bytes()
    for changed in (body[:-1], body + b"\0"):
        stage.first.write_bytes(changed)
        with pytest.raises(Damaged, match=f"has {len(changed)} bytes.*, {len(body)} were acknowledged"):
            stage.read()


def test_unacknowledged_file_is_not_read(stage: Stage) -> None:
    name = stage.first.name.replace("part-00000", "part-00009")
    shutil.copy(stage.first, stage.folder / name)
    assert stage.read().count() == 20_000


def test_file_listed_twice_is_damaged(stage: Stage) -> None:
    with pytest.raises(Damaged, match=f"not a list of data files.*{stage.first.name}"):
        stage.read(stage.files + stage.files[:1])


@pytest.mark.parametrize("name", ["_part-0", ".part-0", "../part-0", "x/part-0"])
def test_name_that_spark_skips_or_that_leaves_the_directory_is_damaged(stage: Stage, name: str) -> None:
    (stage.folder / "x").mkdir()
    shutil.copy(stage.first, stage.folder / name)
    with pytest.raises(Damaged, match="not a list of data files"):
        stage.read((replace(stage.files[0], name=name),))


def test_empty_list_is_damaged(stage: Stage) -> None:
    with pytest.raises(Damaged, match=r"not a list of data files.*empty"):
        stage.read(())


def _flip(path: Path, dice: random.Random) -> bytes:
    """One bit of the data pages turned over, without the sidecar by which Hadoop's local file system would notice."""
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    body = path.read_bytes()
    place = dice.randrange(4 + 40, len(body) // 2)
    path.write_bytes(body[:place] + bytes([body[place] ^ 1 << dice.randrange(8)]) + body[place + 1 :])
    return body


def test_flipped_bits_raise_without_checksum_files(spark: SparkSession, staged: Callable[[DataFrame], Stage]) -> None:
    with hadoop_conf(spark, "parquet.page.write-checksum.enabled", "false"):
        stage = staged(spark.range(0, 20_000, 1, 2))
    _flip(stage.first, random.Random(4))
    with pytest.raises(Exception, match=r"(?i)crc|checksum"):
        stage.read().selectExpr("sum(id)").collect()


@pytest.mark.parametrize(  # without the conf, test_flipped_bits_raise_without_checksum_files shows it
    "conf", [pytest.param(None, marks=pytest.mark.slow), "spark.sql.files.ignoreCorruptFiles"]
)
def test_flipped_bits_raise_even_if_the_session_ignores_corrupt_files(
    spark: SparkSession, stage: Stage, conf: str | None
) -> None:
    dice = random.Random(4)
    if conf:
        spark.conf.set(conf, "true")
    try:
        for _ in range(8):
            body = _flip(stage.first, dice)
            with pytest.raises(Exception, match=r"(?i)crc|checksum|corrupt"):
                stage.read().selectExpr("sum(id)").collect()
            stage.first.write_bytes(body)
        assert stage.read().selectExpr("count(id)").first() == (20_000,)
    finally:
        if conf:
            spark.conf.unset(conf)


def test_vanished_file_raises_even_if_the_session_ignores_missing_files(spark: SparkSession, stage: Stage) -> None:
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        frame = stage.read()
        stage.first.unlink()
        with pytest.raises(Exception, match="FILE_NOT_EXIST"):
            frame.selectExpr("sum(id)").collect()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


@pytest.mark.parametrize("own", [pytest.param(None, marks=pytest.mark.slow), "7"])  # its own value says more
def test_read_of_forty_files_starts_no_job(
    spark: SparkSession, staged: Callable[[DataFrame], Stage], own: str | None
) -> None:
    stage = staged(spark.range(0, 40, 1, 40))
    assert len(stage.files) == 40
    if own:
        spark.conf.set(LISTED, own)
    before = _jobs(spark)
    try:
        frame = stage.read()
        assert _jobs(spark) == before
        assert spark.conf.get(LISTED, None) == own, "what the user has set is back"
    finally:
        spark.conf.unset(LISTED)
    assert frame.count() == 40


def test_order_and_partitions_are_not_kept(spark: SparkSession, staged: Callable[[DataFrame], Stage]) -> None:
    """Said in the documentation; here so that nobody comes to rely on it."""
    stage = staged(spark.range(0, 40, 1, 8))
    assert stage.read().rdd.getNumPartitions() < 8


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ([("id", "decimal(99,2)", {})], "exceeds max precision"),
        ([("id", "decimal(5,9)", {})], "scale"),
        ([("id", "string collate NOPE", {})], "NOPE"),
        ([("id", "varchar(0)", {})], "varchar"),
        ([("id", "long", {"a": [1, "x"]})], "ClassCastException"),
        ([("id", "long", {}), ("id", "long", {})], "`id` already exists"),
    ],
)
def test_schema_that_only_spark_refuses_is_damaged(
    stage: Stage, fields: list[tuple[str, str, dict[str, Any]]], says: str
) -> None:
    named = [{"name": name, "type": kind, "nullable": True, "metadata": marks} for name, kind, marks in fields]
    schema = json.dumps({"type": "struct", "fields": named})
    with pytest.raises(Damaged, match=rf"does not take the stored schema of .*{says}") as raised:
        replace(stage, schema=schema).read()
    assert "\n" not in str(raised.value)


def test_directory_that_cannot_be_listed_is_not_taken_for_absent(spark: SparkSession, stage: Stage) -> None:
    with pytest.raises(Exception, match="cannot be listed") as refused:
        parquet_files.verify(spark, "nosuch://bucket/1-aa", stage.files)
    assert type(refused.value).__name__ == "StoreUnavailable"


def test_file_with_another_number_of_rows_is_damaged(spark: SparkSession, stage: Stage) -> None:
    parquet_files.verify_rows(spark, stage.uri, stage.files)
    more = [replace(file, rows=file.rows + (file.name == stage.first.name)) for file in stage.files]
    with pytest.raises(Damaged, match=f"{stage.first.name} holds 10000 rows, but 10001 were written"):
        parquet_files.verify_rows(spark, stage.uri, more)
