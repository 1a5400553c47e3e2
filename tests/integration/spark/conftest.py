"""A written stage that tests damage and read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_checkpoint_provider.protocol.file_records import File
from airflow_checkpoint_provider.spark.stages import parquet_files


@dataclass(frozen=True)
class Stage:
    """The rows of one stage on disk: its folder, and what was acknowledged of it."""

    spark: SparkSession
    folder: Path
    files: tuple[File, ...]
    schema: str

    @property
    def uri(self) -> str:
        return f"file://{self.folder}"

    @property
    def first(self) -> Path:
        return self.folder / self.files[0].name

    def read(self, files: tuple[File, ...] | None = None) -> DataFrame:
        return parquet_files.read(self.spark, self.uri, self.files if files is None else files, self.schema)


@pytest.fixture
def staged(spark: SparkSession, tmp_path: Path) -> Callable[[DataFrame], Stage]:
    def stage(frame: DataFrame) -> Stage:
        folder = tmp_path / "state" / "clean" / "1-aa"
        written = parquet_files.write(frame, f"file://{folder}", codec="lz4_raw")
        return Stage(spark, folder, parquet_files.count_rows(spark, written, {}), written.schema)

    return stage


@contextmanager
def hadoop_conf(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """What a cluster's own configuration may say."""
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    conf.set(name, value)
    try:
        yield
    finally:
        conf.unset(name)
