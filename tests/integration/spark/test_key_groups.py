"""The key group of a row by Spark's own hash: the same in each release, session and type of the same kind."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.spark.loops.key_groups import fixed, key_group, spread
from tests.support.key_groups import file_of, groups_of

GOLDEN = {
    "7Y": -2864211556195259663,
    "7S": -2864211556195259663,
    "7": -2864211556195259663,
    "7L": -2864211556195259663,
    "float(-0.0)": -5252525462095825812,
    "0.0D": -5252525462095825812,
    "float('NaN')": -3127944061524951246,
    "double('NaN')": -3127944061524951246,
    "CAST(1.50 AS decimal(10, 2))": -194698251525976593,
    "CAST(1.50 AS decimal(20, 2))": -194698251525976593,
    "'Größe'": -3943718510271814297,
    "X'00ff'": 879945414100663330,
    "true": -6698625589789238999,
    "date'2013-01-01'": 1349268229983960169,
    "timestamp'2013-01-01 10:00:00 UTC'": 1185591778708532021,
    "timestamp_ntz'2013-01-01 10:00:00'": 1185591778708532021,
    "CAST(NULL AS string)": 42,
    "CAST(NULL AS double)": 42,
}
"""Rows that are stored lie in files by these hashes: another hash is another format."""


def test_hashes_of_keys_never_change(spark: SparkSession) -> None:
    found = {}
    for literal in GOLDEN:
        rows = spark.sql(f"SELECT {literal} AS key")
        found[literal] = rows.select(F.xxhash64(fixed(F.col("key"), rows.schema["key"].dataType))).collect()[0][0]
    assert found == GOLDEN


@pytest.mark.parametrize("name", ["a`b", "a.b", "a b"])
def test_key_may_have_any_name(spark: SparkSession, name: str) -> None:
    rows = spark.range(3).toDF(name)
    of = rows.schema[name].dataType
    plain = rows.toDF("id").select(key_group([("id", of)], 128)).collect()
    assert rows.select(key_group([(name, of)], 128)).collect() == plain


@pytest.mark.parametrize("files", [1, 2, 7, 40])
def test_each_partition_has_the_rows_of_its_groups(spark: SparkSession, files: int) -> None:
    rows = spark.range(500)
    group = key_group([("id", rows.schema["id"].dataType)], 128)
    placed = spread(rows, group, files, 128).select(group.alias("of"), F.spark_partition_id().alias("at")).collect()
    assert len(placed) == 500
    assert all(row["at"] == file_of(row["of"], files, 128) for row in placed)
    assert all(row["of"] in groups_of(row["at"], files, 128) for row in placed)
