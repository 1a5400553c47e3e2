"""What a stage and a query are given instead of a DataFrame and a writer: refused with what to give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.ml.feature import StringIndexer, VectorAssembler
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.errors import InvalidConfig, WrongUse
from tests.integration.runtime.conftest import Script

GIVEN: dict[str, tuple[Callable[[SparkSession], Any], str]] = {
    "stream": (lambda spark: spark.readStream.format("rate").load(), "was given a streaming DataFrame. A stage takes rows that end"),
    "pandas": (lambda spark: pd.DataFrame({"a": [1]}), r"pandas.DataFrame. Give spark.createDataFrame\(...\) of it"),
    "rdd": (lambda spark: spark.sparkContext.parallelize([1]), r"pyspark.RDD. Give spark.createDataFrame\(...\) of it"),
    "model": (lambda spark: StringIndexer(inputCol="s", outputCol="i").fit(spark.sql("select 'a' as s")),
              r"pyspark.StringIndexerModel. A model is not rows. Keep its files: job.files\(uid, lambda path: fit\(\).write\(\).save\(path\)\)"),
    "transformer": (lambda spark: VectorAssembler(), "pyspark.VectorAssembler. A model is not rows"),
    "writer": (lambda spark: spark.range(1).write, "pyspark.DataFrameWriter. Give the DataFrame itself"),
    "grouped": (lambda spark: spark.range(1).groupBy("id"), "pyspark.GroupedData. Give a DataFrame, or a function"),
    "number": (lambda spark: 7, "int. Give a DataFrame, or a function"),
    "session": (lambda spark: spark.newSession().range(1), "was given a DataFrame of another session"),
    "command": (lambda spark: spark.sql("insert into landed values (1)"), "was given a command, such as an insert. It has run already"),
}  # fmt: skip


def test_stage_says_what_to_give_instead(script: Script, spark: SparkSession) -> None:
    spark.sql("create table landed (id int) using parquet")
    try:
        with script.failing() as job:
            for name, (make, says) in GIVEN.items():
                given = make(spark)
                with pytest.raises(WrongUse, match=says):
                    job.stage(name, given)
                with pytest.raises(WrongUse, match=says):
                    job.stage(f"{name} by a function", lambda given=given: given)
            with pytest.raises(WrongUse, match=r"its function returned None. Does it lack a `return`\?"):
                job.stage("nothing", lambda: None)  # type: ignore[arg-type, return-value]
            with pytest.raises(
                WrongUse, match=r"a function that needs arguments \(missing a required argument: 'rows'\)"
            ):
                job.stage("arguments", lambda rows: rows)
            with pytest.raises(InvalidConfig, match=r'version=2 is not text: write version="..."'):
                job.stage("version", spark.range(1), version=2)  # type: ignore[arg-type]
            assert job.stage("rows", spark.range(3)).count() == 3
        assert script.coordinator().state.retained, "the refused calls have hurt no checkpoint"
    finally:
        spark.sql("drop table landed")


def test_query_says_what_to_give_instead(script: Script, spark: SparkSession, tmp_path: Path) -> None:
    stream = spark.readStream.format("rate").load()
    started = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "location")).start()
    try:
        with script.failing() as job:
            for given, says in (
                (stream, "was given pyspark.DataFrame. Give the stream's writer, not started"),
                (started, "was given a query that runs already. Leave out .start"),
                (spark.range(1).write, "was given df.write, which writes rows that end"),
                (None, "was given None. Give the stream's writer"),
            ):
                with pytest.raises(WrongUse, match=says):
                    job.start_query("q", given)  # type: ignore[arg-type]
    finally:
        started.stop()


@pytest.mark.slow
def test_checkpoint_grows_with_the_number_of_stages_not_with_its_square(script: Script) -> None:
    sizes = {}
    with script.failing() as job:
        for number in range(1, 81):
            job.stage(f"day-{number:03}", job.spark.range(number))
            if number in (20, 40, 80):
                job.checkpoint()
                newest = script.coordinator().state.newest_first()[0]
                sizes[number] = len(script.coordinator().read_seal(newest).to_bytes())
    assert sizes[80] - sizes[40] == pytest.approx(2 * (sizes[40] - sizes[20]), rel=0.02)
