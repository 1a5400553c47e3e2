"""What a session or a cluster says about writing and reading Parquet does not change what a stage stores and returns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.spark.stages import parquet_files
from airflow_checkpoint_provider.spark.stages.confs import overridden
from tests.integration.spark.conftest import hadoop_conf

SQL, PARQUET = "spark.sql.", "spark.sql.parquet."
ROWS = """
select id, id % 2 = 0 as b, cast(id as byte) as y, if(id = 1, float('NaN'), float(-0.0)) as f, cast(id as decimal(5, 2)) as d5,
  cast(id / 7 as decimal(18, 3)) as d18, cast(id / 7 as decimal(38, 10)) as d38, concat('a ', id) as `odd name;{}()=.`,
  if(id = 0, null, X'00ff') as bin, date'1500-01-01' as old, timestamp'1400-02-28 01:02:03.123456' as older,
  timestamp'2026-03-01 01:02:03.123456' as ts, timestamp_ntz'1400-02-28 01:02:03.123456' as ntz, date'9999-12-31' as last,
  interval '1-2' year to month as ym, interval '1 02:03:04.5' day to second as ds, array(array(1, null), null) as aa,
  array(named_struct('array', id)) as legacy, array(named_struct('element', id), null) as el, null as nothing,
  map('k', named_struct('a', 1, 'b', array('x', null))) as m, map(1, null) as mn, named_struct('x', null, 'y', struct(1 as z)) as s,
  parse_json('{"a": [1, 2, {"b": null}]}') as v, parse_json(concat('{"n": ', id, ', "t": "x"}')) as v2, 'x' collate UTF8_LCASE as c
from range(0, 4, 1, 2)
"""
HOSTILE = {
    "dates that cannot be written": {f"{PARQUET}datetimeRebaseModeInWrite": "EXCEPTION", f"{PARQUET}int96RebaseModeInWrite": "EXCEPTION"},
    "the old calendar": {f"{PARQUET}{name}RebaseModeIn{way}": "LEGACY" for name in ("datetime", "int96") for way in ("Read", "Write")},
    "dates that cannot be read": {f"{PARQUET}{name}RebaseModeInRead": "EXCEPTION" for name in ("datetime", "int96")},
    "the other reader": {f"{SQL}sources.useV1SourceList": ""},
    "the other reader with its pushdown": {f"{SQL}sources.useV1SourceList": "", f"{PARQUET}aggregatePushdown": "true"},
    "the format of Spark 1.4": {f"{PARQUET}writeLegacyFormat": "true", f"{PARQUET}outputTimestampType": "INT96"},
    "types of other writers": {
        f"{PARQUET}binaryAsString": "true", f"{PARQUET}int96AsTimestamp": "false", f"{PARQUET}inferTimestampNTZ.enabled": "false",
        f"{PARQUET}int96TimestampConversion": "true", f"{SQL}legacy.parquet.nanosAsLong": "true", f"{SQL}timestampType": "TIMESTAMP_NTZ",
        f"{PARQUET}outputTimestampType": "TIMESTAMP_MILLIS",
    },
    "schemas of the files": {
        f"{PARQUET}mergeSchema": "true", f"{PARQUET}respectSummaryFiles": "true", f"{PARQUET}fieldId.write.enabled": "false",
        f"{PARQUET}fieldId.read.enabled": "true", f"{SQL}defaultColumn.enabled": "false", f"{SQL}caseSensitive": "true",
        f"{SQL}legacy.parquet.returnNullStructIfAllFieldsMissing": "true",
    },
    "row by row": {
        f"{PARQUET}enableVectorizedReader": "false", f"{PARQUET}recordLevelFilter.enabled": "true", f"{SQL}codegen.wholeStage": "false",
        f"{SQL}files.maxRecordsPerFile": "1", f"{SQL}sources.partitionOverwriteMode": "dynamic",
    },
    "no pushdown": {
        f"{PARQUET}filterPushdown": "false", f"{SQL}optimizer.nestedSchemaPruning.enabled": "false",
        f"{PARQUET}enableNestedColumnVectorizedReader": "false", f"{SQL}variant.pushVariantIntoScan": "false",
    },
    "variants that were not cut into parts": {f"{SQL}variant.allowReadingShredded": "false"},
    "variants without a mark": {
        f"{PARQUET}variant.annotateLogicalType.enabled": "false", f"{PARQUET}ignoreVariantAnnotation": "true",
        f"{SQL}variant.inferShreddingSchema": "false", f"{PARQUET}reader.respectUnknownTypeAnnotation.enabled": "true",
    },
    "files that are skipped": {f"{SQL}files.ignoreCorruptFiles": "true", f"{SQL}files.ignoreMissingFiles": "true"},
    "names that are skipped": {f"{SQL}files.ignoredPathSegmentRegex": "^part|parquet$"},  # since Spark 4.3
}  # fmt: skip
HOSTILE_HADOOP = {
    "names of files": {"mapreduce.output.basename": "clean", "mapreduce.fileoutputcommitter.marksuccessfuljobs": "true"},
    "pages of version 2": {
        "parquet.writer.version": "v2", "parquet.page.size": "64", "parquet.page.row.count.limit": "1", "parquet.enable.dictionary": "false",
        "parquet.page.write-checksum.enabled": "false",
    },
    "summaries and filters": {
        "parquet.summary.metadata.level": "ALL", "parquet.bloom.filter.enabled": "true", "parquet.block.size": "1024",
        "parquet.columnindex.truncate.length": "1", "parquet.statistics.truncate.length": "1", "parquet.compression": "GZIP",
        "parquet.strict.typing": "false", "parquet.split.files": "false", "parquet.filter.columnindex.enabled": "false",
    },
    "classes of others": {
        "parquet.read.support.class": "org.example.Reader", "parquet.write.support.class": "org.example.Writer",
        "mapreduce.output.fileoutputformat.compress.codec": "org.apache.hadoop.io.compress.GzipCodec",
        "mapreduce.output.fileoutputformat.outputdir": "/nowhere", "mapreduce.outputcommitter.class": "org.example.Committer",
        "parquet.avro.schema": "none", "mapreduce.input.fileinputformat.input.dir.recursive": "true",
    },
}  # fmt: skip


ALONE = "types of other writers"  # Spark cannot read variants with it, so a stage refuses them


def _together(groups: dict[str, dict[str, str]]) -> dict[str, str]:
    """Return all confs. Of the values of one conf, the last counts."""
    return {name: value for group in groups if group != ALONE for name, value in groups[group].items()}


TOGETHER = {
    "the last of each": _together(HOSTILE),
    "the first of each": _together(dict(reversed(HOSTILE.items()))),
    ALONE: HOSTILE[ALONE],
}
HADOOP_TOGETHER = {"all together": _together(HOSTILE_HADOOP)}


@pytest.fixture(scope="module")
def expected(spark: SparkSession) -> dict[bool, list[str]]:
    return {variants: shown(rows(spark, variants=variants)) for variants in (True, False)}


def rows(spark: SparkSession, *, variants: bool) -> DataFrame:
    frame = spark.sql(ROWS)
    return frame if variants else frame.drop("v", "v2")


def shown(frame: DataFrame) -> list[str]:
    """Each row as text: Python cannot hold all of the values."""
    text = frame.select(
        *(
            F.to_json(column).alias(column) if column in ("v", "v2") else F.col(f"`{column}`").cast("string")
            for column in frame.columns
        )
    )
    return sorted(map(str, text.collect()))


def check(spark: SparkSession, folder: Path, expected: dict[bool, list[str]], *, variants: bool = True) -> None:
    """Write, count and read the rows, then derive from them."""
    frame = rows(spark, variants=variants)
    written = parquet_files.write(frame, f"file://{folder}/rows", codec="lz4_raw")
    back = parquet_files.read(spark, written.uri, parquet_files.count_rows(spark, written, {}), written.schema)
    assert shown(back) == expected[variants]
    assert back.dtypes == frame.dtypes
    kept = back.where(
        "last = date'9999-12-31' and old < date'1600-01-01' and older < timestamp'1500-01-01' and d18 >= 0 and c = 'X'"
    )
    assert kept.alias("l").join(back.alias("r"), "id").where("l.ntz = r.ntz and l.bin is not null").count() == 3
    assert back.groupBy().agg(F.count("*"), F.min("id"), F.max("ts").cast("string")).collect()[0][:2] == (4, 0)


@contextmanager
def confs(spark: SparkSession, values: dict[str, str], hadoop: dict[str, str]) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(overridden(spark, values))
        for name, value in hadoop.items():
            stack.enter_context(hadoop_conf(spark, name, value))
        yield


def test_two_threads_take_turns_with_a_conf_that_both_set(spark: SparkSession) -> None:
    name, other = "spark.sql.sources.useV1SourceList", "spark.sql.parquet.binaryAsString"
    before = [spark.conf.get(name), spark.conf.get(other)]
    inside = threading.Event()

    def reads() -> None:
        with overridden(spark, {name: "parquet", other: "true"}):
            inside.set()

    with overridden(spark, {name: "orc"}):
        reader = threading.Thread(target=reads)
        reader.start()
        assert not inside.wait(0.2)
        assert spark.conf.get(name) == "orc"
    reader.join(60)
    assert inside.is_set()
    assert [spark.conf.get(name), spark.conf.get(other)] == before


def each(together: dict[str, dict[str, str]], groups: dict[str, dict[str, str]]) -> list[Any]:
    """Return all values together, in ``make test``, and each group by itself, in the slow tests."""
    return [*together, *(pytest.param(group, marks=pytest.mark.slow) for group in groups if group not in together)]


@pytest.mark.parametrize("group", each(TOGETHER, HOSTILE))
def test_confs_of_the_session_change_no_rows(
    spark: SparkSession, tmp_path: Path, expected: dict[bool, list[str]], group: str
) -> None:
    with confs(spark, (TOGETHER | HOSTILE)[group], {}):
        check(spark, tmp_path, expected, variants=group != ALONE)


@pytest.mark.parametrize("group", each(HADOOP_TOGETHER, HOSTILE_HADOOP))
def test_confs_of_the_cluster_change_no_rows(
    spark: SparkSession, tmp_path: Path, expected: dict[bool, list[str]], group: str
) -> None:
    with confs(spark, {}, (HADOOP_TOGETHER | HOSTILE_HADOOP)[group]):
        check(spark, tmp_path, expected)
