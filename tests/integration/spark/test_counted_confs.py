"""Which confs count: a pair of values for each with which one frame has other rows, or is refused because of its data."""

from __future__ import annotations

import datetime
import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pyarrow.parquet
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.pandas import functions as pandas_functions
from pyspark.sql.types import IntegerType, StructField, StructType

from airflow_checkpoint_provider.spark.stages.confs import GROUPS, HADOOP, RESULT_CHANGING, _default, result_changing
from tests.support.drivers import ROOT
from tests.support.sparks import INSTALLED

Build = Callable[[SparkSession, Path], DataFrame]
NOT_SHOWN = {
    "spark.sql.extensions": "it names code in jars, which may do anything",
    "spark.sql.experimental.optimizer.transpilePyUDFs": "Spark says that some rows differ: of sums that overflow, and of compared types",
    "spark.sql.defaultCatalog": "it needs a second catalog: where a name leads",
    "spark.sql.avro.datetimeRebaseModeInRead": "Avro's jar is not part of PySpark; as Parquet's",
    "spark.sql.hive.manageFilesourcePartitions": "needs Hive's metastore: whether folders or the metastore list the partitions",
    "spark.sql.hive.verifyPartitionPath": "needs Hive's metastore: whether partitions without a folder are skipped",
    "spark.sql.hive.convertMetastoreParquet": "needs Hive's metastore: another reader, with other names and rebasing",
    "spark.sql.hive.convertMetastoreOrc": "needs Hive's metastore: another reader, with other names and rebasing",
    "spark.sql.hive.caseSensitiveInferenceMode": "needs Hive's metastore: columns that differ in case are null",
    "spark.sql.variant.validateUnicodeInJsonParsing": "a row or a refusal that depends on the release",
}
NOT_SHOWN_OF_HADOOP = {
    "avro.mapred.ignore.inputs.without.extension": "Avro's jar is not part of PySpark",
    "fs.defaultFS": "it needs two file systems: where a path without a scheme leads",
    "hive.metastore.uris": "it needs two metastores: where a table's name leads",
    "mapred.input.pathFilter.class": "it names code in jars, which may leave out any file",
    "mapreduce.input.pathFilter.class": "it names code in jars, which may leave out any file",
}


def sql(text: str) -> Build:
    return lambda spark, _: spark.sql(text)


def written(**files: str | bytes) -> Callable[[Path], str]:
    """Files by their names; ``__`` parts folders, ``_eq_`` is ``=``."""

    def write(folder: Path) -> str:
        for name, content in files.items():
            path = folder / name.replace("__", "/").replace("_eq_", "=")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(folder)

    return write


def read(kind: str, schema: str, options: dict[str, str] | None = None, **files: str | bytes) -> Build:
    write = written(**files)
    return lambda spark, folder: spark.read.format(kind).schema(schema).options(**options or {}).load(write(folder))


def arrow(array: Any, **options: Any) -> Build:
    """A Parquet file that Spark has not written."""

    def build(spark: SparkSession, folder: Path) -> DataFrame:
        folder.mkdir(exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.table({"a": array, "b": [1]}), folder / "a.parquet", **options)
        return spark.read.parquet(str(folder)).selectExpr("typeof(a)", "cast(a as string)")

    return build


def archive(text: str) -> bytes:
    """A tar of one file."""
    out, content = io.BytesIO(), text.encode()
    with tarfile.open(fileobj=out, mode="w") as tar:
        member = tarfile.TarInfo("entry.txt")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def damaged(spark: SparkSession, folder: Path) -> DataFrame:
    spark.range(100).repartition(2).write.mode("overwrite").parquet(str(folder))
    first = min(folder.glob("part-*"))
    first.write_bytes(b"\0" * first.stat().st_size)
    first.with_name(f".{first.name}.crc").unlink()
    return spark.read.schema("id long").parquet(str(folder))


def missing(spark: SparkSession, folder: Path) -> DataFrame:
    spark.range(100).repartition(2).write.mode("overwrite").parquet(str(folder))
    frame = spark.read.schema("id long").parquet(str(folder))
    min(folder.glob("part-*")).unlink()
    return frame


def two_schemas(kind: str) -> Build:
    def build(spark: SparkSession, folder: Path) -> DataFrame:
        for name in ("a", "b"):
            spark.sql(f"select 1 {name}").write.mode("overwrite").format(kind).save(f"{folder}/k={name}")
        return spark.read.format(kind).load(str(folder))

    return build


def field_ids(written_id: int, read_id: int) -> Build:
    def schema(name: str, field_id: int) -> StructType:
        return StructType([StructField(name, IntegerType(), metadata={"parquet.field.id": field_id})])

    def build(spark: SparkSession, folder: Path) -> DataFrame:
        spark.createDataFrame([(1,)], schema("a", written_id)).write.mode("overwrite").parquet(str(folder))
        return spark.read.schema(schema("b", read_id)).parquet(str(folder))

    return build


def without_ids(spark: SparkSession, folder: Path) -> DataFrame:
    spark.conf.set("spark.sql.parquet.fieldId.read.enabled", True)
    spark.range(1).write.mode("overwrite").parquet(str(folder))
    field = StructField("id", IntegerType(), metadata={"parquet.field.id": 7})
    return spark.read.schema(StructType([field])).parquet(str(folder))


def variant_as_struct(spark: SparkSession, folder: Path) -> DataFrame:
    spark.sql("select parse_json('1') v").write.mode("overwrite").parquet(str(folder))
    return spark.read.schema("v struct<value: binary, metadata: binary>").parquet(str(folder))


def chars(spark: SparkSession, folder: Path) -> DataFrame:
    spark.sql("select 'a' c").write.mode("overwrite").parquet(str(folder))
    spark.sql("drop table if exists chars_of_confs")
    spark.sql(f"create table chars_of_confs (c char(5)) using parquet location '{folder}'")
    return spark.sql("select length(c) from chars_of_confs")


def empty_partition(spark: SparkSession, _: Path) -> DataFrame:
    spark.sql("drop table if exists parts_of_confs")
    spark.sql("create table parts_of_confs (a int, k int) using parquet partitioned by (k)")
    spark.sql("insert into parts_of_confs partition (k=1) values (1)")
    spark.sql("alter table parts_of_confs add partition (k=2)")
    return spark.sql("select distinct k from parts_of_confs")


def in_new_york(build: Build) -> Build:
    def there(spark: SparkSession, folder: Path) -> DataFrame:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        return build(spark, folder)

    return there


def joined_to_itself(spark: SparkSession, _: Path) -> DataFrame:
    spark.conf.set("spark.sql.analyzer.failAmbiguousSelfJoin", False)
    frame = spark.range(3)
    return frame.join(frame, frame["id"] == frame["id"])


def shadowed(spark: SparkSession, _: Path) -> DataFrame:
    spark.udf.register("abs", lambda _: "mine")
    return spark.sql("select abs(-1) v")


def without_ansi(text: str) -> Build:
    def build(spark: SparkSession, _: Path) -> DataFrame:
        spark.conf.set("spark.sql.ansi.enabled", False)
        return spark.sql(text)

    return build


def udf(function: Callable[[Any], Any], kind: str, text: str) -> Build:
    return lambda spark, _: spark.sql(text).select(F.udf(function, kind)("a").alias("b"))


def pandas_udf(function: Any, kind: Any, text: str) -> Build:
    make: Any = pandas_functions.pandas_udf
    return lambda spark, _: spark.sql(text).select(make(function, kind)("a").alias("b"))


def of_pandas(**columns: list[Any]) -> Build:
    return lambda spark, _: spark.createDataFrame(pandas.DataFrame(columns))


def through_pandas(spark: SparkSession, _: Path) -> DataFrame:
    frame: Any = spark.sql("select named_struct('a', 1) s").toPandas()
    return spark.createDataFrame(frame.astype(str))


def cut_off(spark: SparkSession, _: Path) -> DataFrame:
    def add(frames: Any) -> Any:
        return (frame.assign(id=frame.id + 1.5) for frame in frames)

    return spark.range(1).mapInPandas(add, "id int")


def lines(**files: str | bytes) -> Build:
    write = written(**files)

    def build(spark: SparkSession, folder: Path) -> DataFrame:
        return spark.createDataFrame(spark.sparkContext.textFile(write(folder)).map(lambda line: (line,)), "a string")

    return build


def file_that_goes(spark: SparkSession, folder: Path) -> DataFrame:
    written(a="1", b="2")(folder)
    rows = spark.sparkContext.textFile(str(folder)).map(lambda line: (line,))
    rows.getNumPartitions()
    (folder / "a").unlink()
    return spark.createDataFrame(rows, "a string")


def by_position(spark: SparkSession, folder: Path) -> DataFrame:
    spark.sql("select 1 a, 2 b").write.mode("overwrite").orc(str(folder))
    return spark.read.schema("b int, a int").orc(str(folder))


OLD_DAY, OLD_TIME = pyarrow.array([-400_000], pyarrow.int32()).cast(pyarrow.date32()), datetime.datetime(1500, 1, 1)  # noqa: DTZ001
TIME = pyarrow.array([datetime.datetime(2020, 1, 1)], pyarrow.timestamp("us"))  # noqa: DTZ001
INT96 = {"use_deprecated_int96_timestamps": True}
SHORT_LINE = {"x_csv": "1,2\n3\n4,5\n"}

CASES: dict[str, tuple[str, str, Build]] = {
    "spark.sql.analyzer.lowerEmptyGroupingSetToGlobalAggregate.enabled": (
        "true",
        "false",
        sql("select count(*) from range(0) group by grouping sets (())"),
    ),
    "spark.sql.analyzer.preferColumnOverLcaInArrayIndex": (
        "true",
        "false",
        sql("select 0 as i, array(10, 20)[i] as v from (select 1 as i)"),
    ),
    "spark.sql.ansi.doubleQuotedIdentifiers": ("true", "false", sql('select "id" as v from range(2)')),
    "spark.sql.ansi.enabled": ("true", "false", sql("select cast('x' as int) v")),
    "spark.sql.ansi.relationPrecedence": (
        "true",
        "false",
        sql("select count(*) from range(2) a, range(3) b right join range(1) c on false"),
    ),
    "spark.sql.caseSensitive": ("true", "false", lambda spark, _: spark.range(1).select("id", "id").drop("ID")),
    "spark.sql.chunkBase64String.enabled": ("true", "false", sql("select base64(repeat('a', 100)) v")),
    "spark.sql.columnNameOfCorruptRecord": (
        "_corrupt_record",
        "bad",
        read("json", "a int, bad string", x_json='{"a": 3\n{"a": 1}'),
    ),
    "spark.sql.csv.parser.columnPruning.enabled": (
        "true",
        "false",
        lambda spark, folder: read("csv", "a int, b int", {"mode": "DROPMALFORMED"}, **SHORT_LINE)(
            spark, folder
        ).select("a"),
    ),
    "spark.sql.decimalOperations.allowPrecisionLoss": (
        "true",
        "false",
        sql("select cast(cast(1 as decimal(38, 18)) / cast(3 as decimal(38, 18)) as string) v"),
    ),
    "spark.sql.execution.arrow.pyspark.enabled": ("true", "false", of_pandas(a=[1.0, float("nan")])),
    "spark.sql.execution.pandas.convertToArrowArraySafely": ("true", "false", cut_off),
    "spark.sql.execution.pandas.inferPandasDictAsMap": ("true", "false", of_pandas(a=[{"x": 1}])),
    "spark.sql.execution.pandas.structHandlingMode": ("legacy", "row", through_pandas),
    "spark.sql.execution.pyspark.binaryAsBytes": (
        "true",
        "false",
        udf(lambda value: type(value).__name__, "string", "select x'41' a"),
    ),
    "spark.sql.execution.pythonUDF.arrow.enabled": (
        "true",
        "false",
        udf(lambda _: [1, {"a": None}], "string", "select 1 a"),
    ),
    "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled": (
        "true",
        "false",
        pandas_udf(lambda values: pandas.Series([1] * len(values)), "decimal(10, 2)", "select 1 a"),
    ),
    "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype": (
        "true",
        "false",
        pandas_udf(lambda values: pandas.Series([str(values.dtype)]), "string", "select cast(null as int) a"),
    ),
    "spark.files.ignoreCorruptFiles": (
        "true",
        "false",
        lines(**{"a.gz": gzip.compress(b"1\n"), "b.gz": gzip.compress(bytes(range(256)) * 99)[:-20]}),
    ),
    "spark.files.ignoreMissingFiles": ("true", "false", file_that_goes),
    "spark.sql.files.ignoreCorruptFiles": ("true", "false", damaged),
    "spark.sql.files.ignoreInvalidPartitionPaths": (
        "true",
        "false",
        read("json", "a int, day int", day_eq_1__x='{"a": 1}', other__x='{"a": 2}'),
    ),
    "spark.sql.files.ignoreMissingFiles": ("true", "false", missing),
    "spark.sql.files.archive.reader.enabled": (
        "true",
        "false",
        read("text", "value string", {}, **{"x.tar": archive("1\n")}),
    ),
    "spark.sql.files.ignoredPathSegmentRegex": ("^a", "^[._]", read("text", "value string", a="1", b="2")),
    "spark.sql.function.concatBinaryAsString": ("true", "false", sql("select concat(x'41', x'42') v")),
    "spark.sql.function.eltOutputAsString": ("true", "false", sql("select elt(1, x'41', x'42') v")),
    "spark.sql.functionResolution.sessionOrder": ("first", "second", shadowed),
    "spark.sql.icu.caseMappings.enabled": ("true", "false", sql("select initcap('ǆa ß'), upper('ŉ') v")),
    "spark.sql.json.enableExactStringParsing": (
        "true",
        "false",
        read("json", "a string", x_json='{"a": {"b" : 1.50}}'),
    ),
    "spark.sql.json.enablePartialResults": (
        "true",
        "false",
        sql("""select from_json('{"a": {"b": 1, "c": "x"}, "d": 2}', 'a struct<b: int, c: int>, d int') v"""),
    ),
    "spark.sql.jsonGenerator.ignoreNullFields": ("true", "false", sql("select to_json(named_struct('a', null)) v")),
    "spark.sql.lateralColumnAlias.enableImplicitResolution": (
        "true",
        "false",
        sql("select id, (select max(k) from (select 5 as id, id as k)) v from range(2)"),
    ),
    "spark.sql.mapKeyDedupPolicy": ("EXCEPTION", "LAST_WIN", sql("select map(1, 2, 1, 3) v")),
    "spark.sql.mapZipWithUsesJavaCollections": (
        "true",
        "false",
        sql("select map_zip_with(map(double('NaN'), 1), map(double('NaN'), 3), (k, a, b) -> array(a, b)) v"),
    ),
    "spark.sql.optimizer.insertMapSortInDistinctAggregates.enabled": (
        "true",
        "false",
        sql("select count(distinct m) from values (map(1, 2, 3, 4)), (map(3, 4, 1, 2)) t(m)"),
    ),
    "spark.sql.optimizer.metadataOnly": ("true", "false", empty_partition),
    "spark.sql.orc.mergeSchema": ("true", "false", two_schemas("orc")),
    "spark.sql.orderByOrdinal": ("true", "false", sql("select -id v from range(0, 9, 1, 1) order by 1 limit 1")),
    "spark.sql.parquet.binaryAsString": ("true", "false", arrow([b"a"])),
    "spark.sql.parquet.datetimeRebaseModeInRead": ("LEGACY", "CORRECTED", arrow(OLD_DAY)),
    "spark.sql.parquet.fieldId.read.enabled": ("true", "false", field_ids(7, 7)),
    "spark.sql.parquet.fieldId.read.ignoreMissing": ("true", "false", without_ids),
    "spark.sql.parquet.ignoreVariantAnnotation": (
        "true",
        "false",
        variant_as_struct,
    ),
    "spark.sql.parquet.inferTimestampNTZ.enabled": ("true", "false", arrow(TIME)),
    "spark.sql.parquet.int96AsTimestamp": ("true", "false", arrow(TIME, **INT96)),
    "spark.sql.parquet.int96RebaseModeInRead": (
        "LEGACY",
        "CORRECTED",
        arrow(pyarrow.array([OLD_TIME], pyarrow.timestamp("us")), **INT96),
    ),
    "spark.sql.parquet.int96TimestampConversion": ("true", "false", in_new_york(arrow(TIME, **INT96))),
    "spark.sql.parquet.mergeSchema": ("true", "false", two_schemas("parquet")),
    "spark.sql.parquet.reader.respectUnknownTypeAnnotation.enabled": ("true", "false", arrow(pyarrow.nulls(1))),
    "spark.sql.parser.escapedStringLiterals": ("true", "false", sql(r"select 'a\nb' v")),
    "spark.sql.parser.quotedRegexColumnNames": ("true", "false", sql("select `i.*` from (select 1 as `i.*`, 2 as i2)")),
    "spark.sql.preserveCharVarcharTypeInfo": ("true", "false", sql("select length(cast('a' as char(5))) v")),
    "spark.sql.pyspark.inferNestedDictAsStruct.enabled": (
        "true",
        "false",
        lambda spark, _: spark.createDataFrame([({"x": 1},)], ["a"]),
    ),
    "spark.sql.readSideCharPadding": ("true", "false", chars),
    "spark.sql.retainGroupColumns": (
        "true",
        "false",
        lambda spark, _: spark.range(4).groupBy("id").agg(F.count("id").alias("n")),
    ),
    "spark.sql.selfJoinAutoResolveAmbiguity": ("true", "false", joined_to_itself),
    "spark.sql.session.timeZone": ("UTC", "Asia/Tokyo", sql("select cast(timestamp_seconds(0) as string) v")),
    "spark.sql.sources.default": (
        "json",
        "text",
        lambda spark, folder: spark.read.load(written(x='{"a": 1}')(folder)),
    ),
    "spark.sql.sources.partitionColumnTypeInference.enabled": (
        "true",
        "false",
        read("json", "a int", day_eq_01__x='{"a": 1}'),
    ),
    "spark.sql.sources.validatePartitionColumns": (
        "true",
        "false",
        read("json", "a int, day int", day_eq_x__x='{"a": 1}'),
    ),
    "spark.sql.timestampType": ("TIMESTAMP_LTZ", "TIMESTAMP_NTZ", sql("select typeof(to_timestamp('2020-01-01')) v")),
    "spark.sql.variable.substitute": ("true", "false", sql("select '${spark.sql.shuffle.partitions}' v")),
    "spark.sql.variant.allowDuplicateKeys": ("true", "false", sql("""select parse_json('{"a": 1, "a": 2}') v""")),
    "spark.sql.xml.variant.respectInferSchema": (
        "true",
        "false",
        sql("select cast(from_xml('<a><b>1</b></a>', 'variant', map('inferSchema', 'false')) as string) v"),
    ),
    "spark.sql.legacy.timeParserPolicy": ("LEGACY", "CORRECTED", sql("select to_date('2020-1-1x', 'yyyy-MM-dd') v")),
    # of the groups
    "spark.sql.legacy.sizeOfNull": ("true", "false", without_ansi("select size(cast(null as array<int>)) v")),
    "spark.sql.legacy.setopsPrecedence.enabled": (
        "true",
        "false",
        sql("select 1 union all select 1 intersect select 2"),
    ),
    "spark.sql.legacy.negativeIndexInArrayInsert": ("true", "false", sql("select array_insert(array(1, 2), -1, 9) v")),
    "spark.sql.legacy.csv.enableDateTimeParsingFallback": (
        "true",
        "false",
        sql("select from_csv('2020-1-1', 'd date', map('dateFormat', 'yyyyMMdd')) v"),
    ),
    "spark.sql.optimizer.decorrelateExistsSubqueryLegacyIncorrectCountHandling.enabled": (
        "true",
        "false",
        sql("select id from range(3) a where exists (select count(*) from range(3) b where b.id = a.id + 2)"),
    ),
}
OF_HADOOP: dict[str, tuple[str, str, Build]] = {
    "mapreduce.input.fileinputformat.input.dir.recursive": ("true", "false", lines(a="1", below__b="2")),
    "mapreduce.input.linerecordreader.line.maxlength": ("3", "100", read("text", "value string", x="1\n12345\n")),
    "orc.force.positional.evolution": ("true", "false", by_position),
    "textinputformat.record.delimiter": ("x", "\n", lines(a="1x2")),
}


def rows(spark: SparkSession, build: Build, folder: Path) -> object:
    """Columns and rows, or that the data is refused."""
    try:
        frame = build(spark, folder)
        return frame.columns, sorted(map(repr, frame.collect()))
    except Exception as error:  # noqa: BLE001  # of whatever kind
        return f"refused by {type(error).__name__}"


@pytest.fixture
def untouched(spark: SparkSession) -> Any:
    yield
    for name in ("ansi.enabled", "session.timeZone", "analyzer.failAmbiguousSelfJoin", "parquet.fieldId.read.enabled"):
        spark.conf.unset(f"spark.sql.{name}")
    spark.sql("drop temporary function if exists abs")


OF_4_3 = {
    "spark.sql.files.archive.reader.enabled",
    "spark.sql.files.ignoredPathSegmentRegex",
    "spark.sql.optimizer.insertMapSortInDistinctAggregates.enabled",
}
QUICK = {"spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles", "spark.files.ignoreCorruptFiles"}


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_conf_that_counts_changes_rows(spark: SparkSession, tmp_path: Path, name: str) -> None:
    if name in OF_4_3 and INSTALLED in ("4.0", "4.1", "4.2"):
        pytest.skip("Spark 4.3 brought it")
    *values, build = CASES[name]
    core = not name.startswith("spark.sql.")
    seen, counted = [], []
    for value in values:
        if core:
            spark.sparkContext._conf.set(name, value)
        try:
            if not core:
                spark.conf.set(name, value)
                counted.append(result_changing(spark)[name])
            seen.append(rows(spark, build, tmp_path / "data"))
        finally:
            if core:
                spark.sparkContext._conf._jconf.remove(name)  # type: ignore[union-attr]
            else:
                spark.conf.unset(name)
    assert seen[0] != seen[1]
    assert counted == ([] if core else values)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_HADOOP)
def test_conf_of_hadoop_that_counts_changes_rows(spark: SparkSession, tmp_path: Path, name: str) -> None:
    *values, build = OF_HADOOP[name]
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    before, seen, counted = hadoop.get(name), [], []
    for value in values:
        hadoop.set(name, value)
        try:
            counted.append(result_changing(spark)[f"spark.hadoop.{name}"])
            seen.append(rows(spark, build, tmp_path / "data"))
        finally:
            hadoop.unset(name) if before is None else hadoop.set(name, before)
    assert seen[0] != seen[1]
    assert counted == values


def test_each_conf_that_counts_is_shown_or_has_a_reason() -> None:
    shown = {name for name in CASES if not GROUPS.match(name)} | {"spark.sql.legacy.timeParserPolicy"}
    assert shown | set(NOT_SHOWN) == set(RESULT_CHANGING)
    assert set(OF_HADOOP) | set(NOT_SHOWN_OF_HADOOP) == set(HADOOP)
    page = (ROOT / "docs" / "write" / "what-is-compared.md").read_text()
    assert [name for name in (*RESULT_CHANGING, *HADOOP) if f"`{name}`" not in page] == []


NEVER = (
    "spark.sql.shuffle.partitions",
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.adaptive.enabled",
    "spark.sql.autoBroadcastJoinThreshold",
    "spark.executor.memory",
)


def test_confs_of_speed_and_keys_do_not_count(spark: SparkSession) -> None:
    names = (
        *("password", "rest.access-token", "credential", "s3.access-key-id", "s3.session-token"),
        *("adls.auth.shared-key.account.key", "oauth.private_key", "apiKey"),
    )
    keys = {f"spark.sql.catalog.lake.{name}": "a" for name in names}
    for name, value in keys.items():
        spark.conf.set(name, value)
    spark.conf.set("spark.sql.catalog.lake.warehouse", "s3://lake/a")
    try:
        found = result_changing(spark)
    finally:
        for name in (*keys, "spark.sql.catalog.lake.warehouse"):
            spark.conf.unset(name)
    assert not set(found) & {*NEVER, *keys}
    assert found["spark.sql.catalog.lake.warehouse"] == "s3://lake/a"


def test_default_of_a_conf_counts_after_it_was_set(spark: SparkSession) -> None:
    _default.cache_clear()
    name = "spark.sql.mapKeyDedupPolicy"
    spark.conf.set(name, "LAST_WIN")
    try:
        assert result_changing(spark)[name] == "LAST_WIN"
    finally:
        spark.conf.unset(name)
    assert result_changing(spark)[name] == "EXCEPTION"


def test_conf_that_spark_does_not_know_is_left_out(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    names = (*RESULT_CHANGING, "spark.sql.of.another.release")
    monkeypatch.setattr("airflow_checkpoint_provider.spark.stages.confs.RESULT_CHANGING", names)
    assert "spark.sql.of.another.release" not in result_changing(spark)
