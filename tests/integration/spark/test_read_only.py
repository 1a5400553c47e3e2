"""What a script that is only looked at may not do by PySpark, and what it may. Runs on Linux."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameWriter

from airflow_checkpoint_provider.errors import WriteRefused
from airflow_checkpoint_provider.spark import read_only
from tests.support.writes import VIEW, not_read, not_refused, with_writes

COMPILES = "spark.sql.codegen.factoryMode"
LINE = "frame.write.mode('overwrite').parquet('/nowhere')"


@pytest.fixture
def refused(spark: SparkSession) -> Iterator[None]:
    """Writes are refused until the test ends."""
    with pytest.MonkeyPatch.context() as patch:
        with_writes(patch)
        read_only.refuse_writes()
        yield


def test_all_that_writes_is_refused_and_all_that_reads_is_not(
    refused: None, spark: SparkSession, tmp_path: Path
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.scripting.enabled", "true")
    session.conf.set(
        "spark.sql.codegen.factoryMode", "FALLBACK"
    )  # Spark decodes the tables of its catalog only by compiled code
    session.range(2).createOrReplaceTempView(VIEW)
    interpreted = spark.conf.get(COMPILES)
    spark.conf.set(COMPILES, "FALLBACK")  # the tables of its catalog, Spark can decode only by compiled code
    try:
        assert not_refused(session, str(tmp_path)) == {}
        assert not_read(session, str(tmp_path)) == {}
    finally:
        spark.conf.set(COMPILES, interpreted or "FALLBACK")
        session.catalog.clearCache()
    assert list(tmp_path.iterdir()) == []
    assert not session.catalog.tableExists("t")


def test_error_names_the_line_of_the_script(refused: None, spark: SparkSession, tmp_path: Path) -> None:
    """Also where a library of the script writes."""
    script = tmp_path / "report.py"
    script.write_text(f"def write(frame):\n    # the report\n    {LINE}\n")
    write = runpy.run_path(str(script))["write"]
    with pytest.raises(WriteRefused) as error:
        write(spark.range(1))
    assert error.value.message.startswith(f"{script}, line 3: {LINE}: DataFrameWriter.parquet may write, and this is a")


def test_call_that_nobody_knows_yet_is_refused(spark: SparkSession) -> None:
    """A later release may have more of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DataFrameWriter, "lance", lambda writer, path: Path(path).touch(), raising=False)
        assert (DataFrameWriter, "lance") in [(owner, name) for owner, name, _ in read_only.writing_calls()]


def test_table_of_delta_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Python is a package of its own, which few installations of these tests have."""
    calls = {
        "DeltaTable": ("forPath", "toDF", "merge", "delete", "restoreToVersion", "createIfNotExists"),
        "DeltaMergeBuilder": ("whenMatchedDelete", "execute"),
        "DeltaOptimizeBuilder": ("where", "executeCompaction"),
        "DeltaTableBuilder": ("addColumn", "execute"),
    }
    played = ModuleType("delta.tables")
    for name, own in calls.items():
        setattr(played, name, type(name, (), {call: lambda *args: None for call in own}))
    monkeypatch.setitem(sys.modules, "delta", ModuleType("delta"))
    monkeypatch.setitem(sys.modules, "delta.tables", played)
    found = [f"{owner.__name__}.{name}" for owner, name, _ in read_only.writing_calls() if owner.__name__ in calls]
    builders = (f"{name}.{call}" for name in calls for call in ("execute", "executeCompaction") if call in calls[name])
    assert sorted(found) == sorted(["DeltaTable.delete", "DeltaTable.restoreToVersion", *builders])


def test_second_call_refuses_once(refused: None) -> None:
    before = DataFrameWriter.parquet
    read_only.refuse_writes()
    assert DataFrameWriter.parquet is before


def test_invalid_sql_raises_what_spark_raises(refused: None, spark: SparkSession) -> None:
    with pytest.raises(Exception, match="PARSE_SYNTAX_ERROR"):
        spark.sql("SELEC 1")
