"""Columns that a stage cannot hold are refused before any work. All other types are read back unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import IntegerType, StructField, StructType, UserDefinedType

from airflow_checkpoint_provider.errors import UnsupportedType
from airflow_checkpoint_provider.spark.stages import parquet_files
from airflow_checkpoint_provider.spark.stages.confs import overridden
from airflow_checkpoint_provider.spark.stages.schemas import refuse_types

REFUSED = {
    "time'01:02:03' as t": "column `t` is of type TIME",
    "map(1, array(time'01:02:03')) as m": "column `m.value[]` is of type TIME",
    "named_struct('at', make_interval(1, 2, 3)) as s": "column `s.at` is a calendar interval",
    "1 as a, 2 as a": "columns `a` and `a` have the same name for Spark",
    "1 as a, 2 as A": "columns `a` and `A` have the same name for Spark",
    "named_struct('a', 1, 'A', 2) as s": "columns `s.a` and `s.A` have the same name for Spark",
    "array(struct()) as e": "column `e[]` is a struct without fields",
    "map(struct(1 as x), 1) as m, struct() as s": "column `s` is a struct without fields",
}


@pytest.mark.parametrize("columns", REFUSED)
def test_unsupported_column_is_refused_by_name(spark: SparkSession, columns: str) -> None:
    with pytest.raises(UnsupportedType) as refused:
        refuse_types(spark.sql(f"select {columns}"), "clean")
    assert refused.value.message.startswith(f"stage 'clean': {REFUSED[columns]}")


def test_variant_is_refused_where_spark_could_not_read_it_back(spark: SparkSession) -> None:
    named = spark.sql("select 1 as variant")
    frame = spark.sql("select array(parse_json('1')) as v")
    with overridden(spark, {"spark.sql.parquet.binaryAsString": "true"}):
        refuse_types(named, "clean")
        with pytest.raises(UnsupportedType, match=r"binaryAsString is true\. Leave that conf out, or use to_json"):
            refuse_types(frame, "clean")
    refuse_types(frame, "clean")


def test_frame_without_columns_is_refused(spark: SparkSession) -> None:
    with pytest.raises(UnsupportedType, match="the DataFrame has no columns"):
        refuse_types(spark.range(3).select(), "clean")


def test_names_that_differ_by_case_are_accepted_in_a_case_sensitive_session(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        refuse_types(spark.sql("select 1 as a, 2 as A, named_struct('x', 1, 'X', 2) as s"), "clean")
        with pytest.raises(UnsupportedType):
            refuse_types(spark.sql("select 1 as a, 2 as a"), "clean")
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


KEPT = [
    "cast(1 as tinyint) as `odd name;{}()=.`, double('NaN') as `_c`, -0.0d as ``, cast(1 as decimal(38, 18)) as d",
    "timestamp'0001-01-01 00:00:00' as t1, timestamp'9999-12-31 23:59:59.999999' as t2, timestamp_ntz'2026-11-20 01:02:03' as t3",
    "interval '1-2' year to month as ym, interval '1 02:03:04' day to second as ds, date'2026-11-20' as d",
    "parse_json('{\"a\": [1]}') as v, null as n, array(null) as an, X'00ff' as b, 'x' collate UNICODE_CI as c",
    "map('k', named_struct('x', array(1, null))) as nested, st_geomfromwkb(X'0101000000000000000000F03F0000000000000040') as g",
    "1 as _metadata",
]


@pytest.mark.parametrize("columns", KEPT)
def test_values_of_supported_types_are_kept(spark: SparkSession, tmp_path: Path, columns: str) -> None:
    frame = spark.sql(f"select {columns}")
    refuse_types(frame, "clean")
    uri = f"file://{tmp_path}/rows"
    written = parquet_files.write(frame, uri, codec="lz4_raw")
    back = parquet_files.read(spark, uri, parquet_files.count_rows(spark, written, {}), written.schema)
    assert back.dtypes == frame.dtypes
    assert all(field.nullable for field in back.schema)
    assert _as_text(back) == _as_text(frame)


@pytest.fixture
def chars(spark: SparkSession) -> Iterator[DataFrame]:
    """A table whose columns are CHAR and VARCHAR, at the top and nested."""
    spark.sql(f"create table chars ({CHARS}) using parquet")
    spark.sql("insert into chars values ('ab', 'v', named_struct('x', 'p'), array('q'), map('k', 'r'))")
    yield spark.table("chars")
    spark.sql("drop table chars")


CHARS = "c char(5), v varchar(3), s struct<x: char(4)>, a array<char(4)>, m map<string, char(3)>"
NOT_PADDED = "select 'q' as c, 'longer' as v, named_struct('x', 'z') as s, array('z') as a, map('k', 'z') as m"


@pytest.mark.parametrize(
    "conf",
    [
        None,
        "spark.sql.charVarchar.standardSemantics",
        pytest.param("spark.sql.preserveCharVarcharTypeInfo", marks=pytest.mark.slow),  # as the one before it
    ],
)
def test_values_of_char_columns_are_kept_also_where_they_are_read_later(
    spark: SparkSession, tmp_path: Path, chars: DataFrame, conf: str | None
) -> None:
    """Spark pads what it reads from files as CHAR; in a self-join or with ``_metadata``, it decides anew."""
    frame = chars.union(spark.sql(NOT_PADDED))
    uri = f"file://{tmp_path}/rows"
    written = parquet_files.write(frame, uri, codec="lz4_raw")
    files = parquet_files.count_rows(spark, written, {})
    if conf:
        spark.conf.set(conf, "true")
    try:
        back = parquet_files.read(spark, uri, files, written.schema)
        assert [field.metadata for field in back.schema] == [field.metadata for field in frame.schema]
        with_path = back.select("*", "_metadata.file_name").drop("file_name")
        same_column = back.alias("l").join(back.alias("r"), F.col("l.c") == F.col("r.c")).select("l.*")
        for read in (back, with_path, same_column, back.select("*").filter("v is not null")):
            assert _sorted(read) == _sorted(frame)
        assert (back.where("c = 'ab'").count(), back.where("c = 'q'").count()) == (1, 0), "as before the stage"
    finally:
        if conf:
            spark.conf.unset(conf)


def test_columns_with_one_field_id_are_read_by_their_names(spark: SparkSession, tmp_path: Path) -> None:
    """Each copy of a column has its id, and Spark would look for the values by it."""
    numbered = {"parquet.field.id": 1, "comment": "kept"}
    inner = StructType([StructField("x", IntegerType(), True, {"parquet.field.id": 2})])
    schema = StructType([StructField("a", IntegerType(), False, numbered), StructField("s", inner, True, {})])
    frame = spark.createDataFrame([(1, (5,)), (2, (6,))], schema)
    frame = frame.select("*", F.col("a").alias("b"), (F.col("a") + 7).alias("c", metadata=numbered))
    frame = frame.withColumn("n", F.struct(F.col("a"), F.col("a").alias("z")))
    spark.conf.set("spark.sql.parquet.fieldId.read.enabled", "true")
    try:
        uri = f"file://{tmp_path}/rows"
        written = parquet_files.write(frame, uri, codec="lz4_raw")
        back = parquet_files.read(spark, uri, parquet_files.count_rows(spark, written, {}), written.schema)
        assert _sorted(back) == _sorted(frame)
        assert back._jdf.schema().json() == frame._jdf.schema().asNullable().json()
    finally:
        spark.conf.unset("spark.sql.parquet.fieldId.read.enabled")


def _sorted(frame: DataFrame) -> list[str]:
    return sorted(map(str, frame.collect()))


def _as_text(frame: object) -> str:
    """Rows without ``collect``, which cannot carry year 1 nor year-month intervals to Python."""
    shown: str = frame._jdf.showString(20, 1000, True)  # type: ignore[attr-defined]
    return shown


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


class PointType(UserDefinedType):
    @classmethod
    def sqlType(cls) -> StructType:  # noqa: N802 - PySpark's name
        return StructType([StructField("x", IntegerType())])

    @classmethod
    def module(cls) -> str:
        return __name__

    def serialize(self, obj: Point) -> tuple[int]:
        return (obj.x,)

    def deserialize(self, datum: tuple[int]) -> Point:
        return Point(datum[0])


Point.__UDT__ = PointType()  # type: ignore[attr-defined]


def test_python_type_is_restored_by_the_name_of_its_class(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(Point(3),)], StructType([StructField("p", PointType())])).coalesce(1)
    written = parquet_files.write(frame, f"file://{tmp_path}/rows", codec="lz4_raw")
    assert '"serializedClass":""' in written.schema
    back = parquet_files.read(spark, written.uri, parquet_files.count_rows(spark, written, {}), written.schema)
    assert back.collect()[0].p.x == 3
