"""The fingerprint of a plan: equal in another driver, different for different plans, with flags for what it cannot show."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.functions import col, lit
from pyspark.sql.types import LongType

from airflow_checkpoint_provider.spark.stages import parquet_files
from airflow_checkpoint_provider.spark.stages import plan as plan_module
from airflow_checkpoint_provider.spark.stages.plan import CODE_CALLS, Plan, fingerprint
from tests.integration.spark import plan_kinds
from tests.integration.spark.plan_kinds import CODE, KINDS, LOCAL, SAFE
from tests.support.drivers import started


@pytest.fixture(scope="module")
def data(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("data"))
    plan_kinds.make_inputs(spark, folder)
    return folder


@pytest.fixture(scope="module")
def two_drivers(
    spark: SparkSession, data: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Plan], dict[str, Plan]]:
    """All kinds as this driver sees them (two cores, AQE) and as another does (one core, no AQE, other numbers everywhere)."""
    folder = tmp_path_factory.mktemp("other")
    command = [sys.executable, "-m", "tests.integration.spark.plan_kinds", data, str(folder / "out.json")]
    with started(command, folder / "log") as other:
        here = plan_kinds.identities(spark, data)
        assert other.wait(90) == 0, (folder / "log").read_text()
    there = json.loads((folder / "out.json").read_text())
    return here, {name: Plan.from_json(plan) for name, plan in there.items()}


@pytest.fixture(scope="module")
def two_times(spark: SparkSession, data: str) -> tuple[dict[str, Plan], dict[str, Plan]]:
    """All kinds as this driver sees them, and once more (no AQE, other numbers everywhere)."""
    here = plan_kinds.identities(spark, data)
    confs = {"spark.sql.shuffle.partitions": "9", "spark.sql.adaptive.enabled": "false"}
    before = {name: str(spark.conf.get(name)) for name in confs}
    for name, value in confs.items():
        spark.conf.set(name, value)
    try:
        return here, plan_kinds.identities(spark, data)
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def test_plans_are_equal_once_more(two_times: tuple[dict[str, Plan], dict[str, Plan]]) -> None:
    here, there = two_times
    assert here == there


@pytest.mark.slow  # the one above
def test_plans_are_equal_in_another_driver(two_drivers: tuple[dict[str, Plan], dict[str, Plan]]) -> None:
    here, there = two_drivers
    assert {name: (plan.text, plan.leaves) for name, plan in here.items()} == {
        name: (plan.text, plan.leaves) for name, plan in there.items()
    }
    assert here == there


DIFFERENT = [
    ("filter", "other literal"),
    ("filter", "other path"),
    ("filter", "glob"),
    ("alias x", "alias y"),
    ("in list", "in list, last"),
    ("wide", "wide, last"),
    ("looks like id 5", "looks like id 6"),
    ("repartition 2", "repartition 7"),
    ("lambda 1", "lambda 2"),
    ("rand 5", "rand 6"),
    ("long number 1", "long number 2"),
    ("csv ,", "csv ;"),
    ("jdbc 1", "jdbc 2"),
    ("pandas 1", "pandas 2"),
    ("values 1", "values 2"),
    ("bytes 1", "bytes 2"),
    ("transposed 1", "transposed 2"),
    ("udf 1", "udf 2"),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_plans_have_different_fingerprints(
    two_times: tuple[dict[str, Plan], dict[str, Plan]], one: str, other: str
) -> None:
    here, there = two_times
    assert here[one].digest != there[other].digest


def test_code_and_local_rows_are_flagged(two_times: tuple[dict[str, Plan], dict[str, Plan]]) -> None:
    here, _ = two_times
    assert {name for name, plan in here.items() if plan.python} == set(CODE)
    assert {name for name, plan in here.items() if plan.local_rows} == {*LOCAL, "rdd", "createDataFrame"}


def test_seeds_that_spark_draws_do_not_change_the_fingerprint(spark: SparkSession, data: str) -> None:
    for name in ("seeds", "sample"):
        plans = [fingerprint(SAFE[name](spark, data), {}) for _ in range(2)]
        assert plans[0] == plans[1]


LOOK_ALIKES = [
    ("LOAD_202610010300", "LOAD_202610020300"),
    ("Tokenizer_0123456789ab__output#0", "Tokenizer_ba9876543210__output#0"),
    ("to _pyspark_00112233445566778899aabbccddeeff", "to _pyspark_ffeeddccbbaa99887766554433221100"),
    ("Range (0, 9, step=1, splits=Some(2))", "Range (0, 9, step=1, splits=Some(3))"),
    ("SubqueryAlias one View (`one`, [])", "SubqueryAlias two View (`two`, [])"),
    ("CTERelationRef 5, lambda x_5, UnionLoop 5", "CTERelationRef 6, lambda x_6, UnionLoop 6"),
    ("CollectMetrics f(a)#5, [n], 5", "CollectMetrics f(a)#6, [n], 6"),
    ("Total@5, 0", "Total@6, 0"),
]


@pytest.mark.parametrize(("one", "other"), LOOK_ALIKES)
def test_literal_that_looks_like_what_spark_or_a_library_draws_counts(
    spark: SparkSession, one: str, other: str
) -> None:
    numbers = spark.range(9).withColumn("array", fn.array("id"))
    builds: tuple[Callable[[str], DataFrame], ...] = (
        lambda text: numbers.where(col("id").cast("string") == text),
        lambda text: numbers.select(fn.explode(fn.array(lit(text), lit("f(a)#5"))).alias("text")),
        lambda text: numbers.withColumn("d", lit(1)).select(fn.transform("array", lambda x: lit(text)).alias("text")),
    )
    for build in builds:
        assert fingerprint(build(one), {}).digest != fingerprint(build(other), {}).digest


def test_name_like_a_drawn_one_counts_where_a_source_reads_it(spark: SparkSession, data: str) -> None:
    def plan(column: str) -> Plan:
        return fingerprint(
            spark.read.schema(f"{column} long").parquet(f"{data}/in/d1").select(col(column).alias("x")), {}
        )

    assert plan("LOAD_202610010300").digest != plan("LOAD_202610020300").digest


def test_name_like_a_drawn_one_counts_where_it_comes_into_the_rows(spark: SparkSession) -> None:
    def plan(column: str) -> Plan:
        named = spark.range(1).select(col("id").alias(column))
        return fingerprint(named.select(fn.to_json(fn.struct(column)).alias("x")), {})

    assert plan("LOAD_202610010300").digest != plan("LOAD_202610020300").digest


def test_name_of_a_computed_column_does_not_count_inside_a_plan(spark: SparkSession) -> None:
    def plan(uid: str) -> Plan:
        numbers = spark.range(1).select(col("id").alias(f"Tokenizer_{uid}__output"))
        inner = numbers.select(col(f"Tokenizer_{uid}__output") * 2)  # its name is an expression
        return fingerprint(inner.select(inner[0].alias("x")), {})

    assert plan("0123456789ab") == plan("ba9876543210")


def test_python_data_source_is_flagged_as_python(spark: SparkSession) -> None:
    from pyspark.sql.datasource import DataSource, DataSourceReader

    class Nothing(DataSourceReader):
        def read(self, partition: object) -> list[tuple[int]]:  # type: ignore[override]  # a list is an iterator enough
            return []

    class Mine(DataSource):
        @classmethod
        def name(cls) -> str:
            return "mine"

        def schema(self) -> str:
            return "a int"

        def reader(self, schema: object) -> DataSourceReader:
            return Nothing()

    spark.dataSource.register(Mine)
    source, other = (fingerprint(spark.read.format("mine").option("n", n).load("a"), {}) for n in (1, 2))
    assert source.python
    assert source.digest != other.digest
    assert source.read != other.read
    assert fingerprint(spark.read.format("mine").option("n", 1).load("b"), {}).read != source.read, "its path counts"


@pytest.mark.parametrize(
    "call",
    [
        "total(id#0L, Total@20db3ff0, 0, 0, Some(total)) AS t#0L",  # an aggregate function of Java
        "total(id#0L, org.x.Total$Of$1@5, 12, 3, None) AS t#0L",
        "HiveSimpleUDF#org.x.Length(id#0L) AS t#0L",
        "total(total, HiveFunctionWrapper(org.x.Total,null), [id#0L], false, 0, 0) AS t#0L",
    ],
)
def test_function_of_java_is_code_without_its_identity(call: str) -> None:
    text = f"Aggregate [{call}]"
    for pattern in plan_module.SCRUBBED:
        text = pattern.sub(r"\1_", text)
    assert CODE_CALLS.search(text)
    assert not re.search("@[0-9a-f]", text)


def test_program_of_transform_is_named_as_not_compared(
    two_times: tuple[dict[str, Plan], dict[str, Plan]],
) -> None:
    here, _ = two_times
    assert {name: plan.unseen for name, plan in here.items() if plan.unseen} == {
        "program": ("the program of TRANSFORM",)
    }


def test_result_of_a_command_is_identified_by_its_rows(spark: SparkSession) -> None:
    shown = spark.sql("show databases").filter("namespace > ''")
    assert fingerprint(shown, {}).local_rows
    assert "rows" in fingerprint(shown, {}).leaves[0]


def test_confs_that_cut_plan_texts_do_not_change_the_fingerprint(spark: SparkSession, data: str) -> None:
    spark.conf.set("spark.sql.maxPlanStringLength", "40")
    try:
        one, other = (fingerprint(KINDS[name](spark, data), {}) for name in ("wide", "wide, last"))
        assert one.digest != other.digest
        assert spark.conf.get("spark.sql.maxPlanStringLength") == "40"
    finally:
        spark.conf.unset("spark.sql.maxPlanStringLength")


def test_ansi_conf_changes_the_fingerprint(spark: SparkSession, data: str) -> None:
    plain = fingerprint(SAFE["filter"](spark, data), {})
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        assert fingerprint(SAFE["filter"](spark, data), {}).digest != plain.digest
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


def _sorted(df: DataFrame) -> bool:
    return fingerprint(df, {}).sorted


def test_plan_is_sorted_if_its_order_reaches_the_result(spark: SparkSession) -> None:
    numbers = spark.range(10).withColumn("k", col("id") % 3)
    assert _sorted(numbers.orderBy("k"))
    assert _sorted(numbers.sortWithinPartitions("k"))
    assert not _sorted(numbers), "range has an order that nobody asked for"
    assert not _sorted(numbers.join(numbers.select("id"), "id")), "so has a join"
    assert not _sorted(numbers.orderBy("k").groupBy("k").count())


@pytest.fixture
def stage(spark: SparkSession, tmp_path: Path) -> tuple[parquet_files.WrittenFiles, Path]:
    written = parquet_files.write(spark.range(5).repartition(2), f"file://{tmp_path}/state/clean/1-aa", codec="lz4_raw")
    return written, tmp_path / "state" / "clean"


def test_rows_read_back_are_identified_by_stage_and_file_set(
    spark: SparkSession, stage: tuple[parquet_files.WrittenFiles, Path]
) -> None:
    written, folder = stage
    files = parquet_files.count_rows(spark, written, {})
    shutil.copytree(folder / "1-aa", folder / "copy")

    def plan(place: str, group: str) -> Plan:
        uri = f"file://{folder}/{place}"
        return fingerprint(
            parquet_files.read(spark, uri, files, written.schema).filter("id > 2"), {uri: ("clean", group)}
        )

    first = plan("1-aa", "state/clean/1-aa")
    assert first.inputs == ("clean",)
    assert plan("copy", "state/clean/1-aa") == first, "the same group in another place is the same input"
    assert plan("1-aa", "state/clean/2-bb").digest != first.digest, "a recomputed stage is another input"
    part = parquet_files.read(spark, written.uri, files[:1], written.schema).filter("id > 2")
    assert fingerprint(part, {written.uri: ("clean", "state/clean/1-aa")}).digest != first.digest


def test_plan_is_equal_after_json(spark: SparkSession, data: str) -> None:
    plan = fingerprint(SAFE["csv ,"](spark, data).select(col("a").cast(LongType())), {})
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert plan.leaves[0]["options"] == ["sep"]
