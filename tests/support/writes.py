"""Calls of PySpark that write, and calls that read. ``python -m`` tries them with any release of PySpark, while writes are refused."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.errors import WriteRefused
from airflow_checkpoint_provider.spark.read_only import refuse_writes, writing_calls

if TYPE_CHECKING:
    import pytest

Call = Callable[[SparkSession, str], Any]
VIEW = "read_only_view"


def stream(spark: SparkSession) -> Any:
    return spark.readStream.format("rate").load().writeStream


def write_ahead(rows: Any) -> None:
    """Write as a helper of a script does."""
    Path(rows).touch()


WRITES: dict[str, Call] = {
    "save": lambda s, p: s.range(1).write.mode("overwrite").save(p),
    "parquet": lambda s, p: s.range(1).write.parquet(p),
    "json": lambda s, p: s.range(1).write.option("a", "b").json(p),
    "csv": lambda s, p: s.range(1).coalesce(1).write.csv(p),
    "orc": lambda s, p: s.range(1).write.orc(p),
    "text": lambda s, p: s.range(1).selectExpr("string(id)").write.text(p),
    "saveAsTable": lambda s, p: s.range(1).write.option("path", p).partitionBy("id").saveAsTable("t"),
    "insertInto": lambda s, p: s.range(1).write.insertInto(VIEW),
    "jdbc": lambda s, p: s.range(1).write.jdbc(f"jdbc:derby:{p};create=true", "t"),
    "writeTo.create": lambda s, p: s.range(1).writeTo("t").using("parquet").create(),
    "writeTo.append": lambda s, p: s.range(1).writeTo("t").append(),
    "writeTo.createOrReplace": lambda s, p: s.range(1).writeTo("t").createOrReplace(),
    "writeTo.overwrite": lambda s, p: s.range(1).writeTo("t").overwrite(F.lit(True)),
    "writeTo.overwritePartitions": lambda s, p: s.range(1).writeTo("t").overwritePartitions(),
    "mergeInto": lambda s, p: s.range(1).mergeInto("t", F.lit(True)).whenMatched().delete().merge(),
    "writeStream": lambda s, p: stream(s).format("parquet").option("checkpointLocation", f"{p}-c").start(p),
    "writeStream.memory": lambda s, p: stream(s).format("memory").queryName("q").start(),
    "foreachBatch": lambda s, p: stream(s).foreachBatch(lambda rows, number: write_ahead(p)).start(),
    "toTable": lambda s, p: stream(s).option("checkpointLocation", f"{p}-c").toTable("t"),
    "foreach": lambda s, p: s.range(1).foreach(lambda row: write_ahead(p)),
    "foreachPartition": lambda s, p: s.range(1).foreachPartition(lambda rows: write_ahead(p)),
    "rdd.foreach": lambda s, p: s.range(1).rdd.foreach(lambda row: write_ahead(p)),
    "rdd.foreachPartition": lambda s, p: s.range(1).rdd.map(str).foreachPartition(lambda rows: write_ahead(p)),
    "saveAsTextFile": lambda s, p: s.range(1).rdd.saveAsTextFile(p),
    "saveAsPickleFile": lambda s, p: s.range(1).rdd.map(str).saveAsPickleFile(p),
    "createTable": lambda s, p: s.catalog.createTable("t", path=p, source="parquet", schema=s.range(1).schema),
    "createExternalTable": lambda s, p: s.catalog.createExternalTable("t", p, "parquet"),
    "recoverPartitions": lambda s, p: s.catalog.recoverPartitions(VIEW),
    "model": lambda s, p: model().write().overwrite().save(p),
    "model.save": lambda s, p: model().save(p),
    "pandas": lambda s, p: s.range(1).pandas_api().to_parquet(p),
    "other session": lambda s, p: s.newSession().range(1).write.parquet(p),
}  # fmt: skip


def model() -> Any:
    from pyspark.ml.feature import Tokenizer

    return Tokenizer(inputCol="a", outputCol="b")


COMMANDS = (
    "CREATE TABLE t (id INT) USING parquet",
    "CREATE TABLE IF NOT EXISTS t USING parquet AS SELECT 1 AS id",
    "CREATE OR REPLACE VIEW stays AS SELECT 1 AS id",
    "CREATE DATABASE other",
    "CREATE TEMPORARY FUNCTION f AS 'x.Y'",
    "INSERT INTO t SELECT 1",
    "/* a comment */ insert overwrite t select 1",
    "INSERT INTO IDENTIFIER('t') SELECT 1",
    "INSERT OVERWRITE DIRECTORY '{path}' USING parquet SELECT 1",
    "WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a",
    f"FROM {VIEW} INSERT INTO t SELECT *",
    f"FROM {VIEW} INSERT INTO t SELECT * INSERT INTO u SELECT *",
    f"MERGE INTO t USING {VIEW} v ON t.id = v.id WHEN MATCHED THEN DELETE",
    "UPDATE t SET id = 1",
    "DELETE FROM t",
    "TRUNCATE TABLE t",
    "DROP TABLE IF EXISTS t",
    "DROP VIEW IF EXISTS t",
    "ALTER TABLE t ADD COLUMNS (b INT)",
    f"ALTER VIEW {VIEW} AS SELECT 2",
    "ANALYZE TABLE t COMPUTE STATISTICS",
    "MSCK REPAIR TABLE t",
    "REFRESH TABLE t",
    "LOAD DATA INPATH '{path}' INTO TABLE t",
    "ADD JAR '{path}.jar'",
    "EXPLAIN INSERT INTO t SELECT 1",
    "EXECUTE IMMEDIATE 'CREATE TABLE t (id INT) USING parquet'",
    "EXECUTE IMMEDIATE 'SELECT 1'",
    "CALL system.expire()",
)
WITH_ARGS: tuple[tuple[str, Any], ...] = (
    ("INSERT INTO IDENTIFIER(:t) SELECT :id", {"t": "t", "id": 1}),
    ("DROP TABLE IDENTIFIER(:t)", {"t": "t"}),
    ("INSERT INTO t VALUES (?)", [1]),
    ("EXECUTE IMMEDIATE :text", {"text": "SELECT 1"}),
    ("SHOW TABLES LIKE :name", {"name": "t"}),  # Spark cannot parse it without the value
)
SCRIPTS = ("BEGIN CREATE TABLE t (id INT) USING parquet; END", "BEGIN SELECT 1; END")

QUERIES = (
    f"SELECT * FROM {VIEW} WHERE id = (SELECT max(id) FROM {VIEW})",
    f"WITH a AS (SELECT * FROM {VIEW}) SELECT * FROM a UNION ALL TABLE {VIEW}; -- the end",
    f"FROM {VIEW} |> WHERE id > 0",
    "VALUES (1), (2)",
    "SELECT 'INSERT INTO t SELECT 1; DROP TABLE t'",
    "SHOW TABLES",
    "SHOW DATABASES",
    "SHOW FUNCTIONS LIKE 'a*'",
    f"SHOW COLUMNS IN {VIEW}",
    f"DESCRIBE {VIEW}",
    f"DESC TABLE EXTENDED {VIEW}",
    "DESCRIBE FUNCTION abs",
    "DESCRIBE QUERY SELECT 1",
    "SET",
    "SET spark.read_only=1",
    "SET TIME ZONE 'UTC'",
    "RESET spark.read_only",
    "USE default",
    "USE spark_catalog.default",
    "SET CATALOG spark_catalog",
    "CREATE OR REPLACE TEMPORARY VIEW read_only_other AS SELECT 1 AS id",
    "CREATE OR REPLACE GLOBAL TEMPORARY VIEW read_only_global AS SELECT 1 AS id",
    "DECLARE OR REPLACE VARIABLE read_only INT DEFAULT 1",
    "SET VARIABLE read_only = 2",
    "DROP TEMPORARY VARIABLE read_only",
    f"CACHE LAZY TABLE read_only_cached AS SELECT * FROM {VIEW}",
    "UNCACHE TABLE read_only_cached",
    "CLEAR CACHE",
)
READS: dict[str, Call] = {
    **{text: lambda s, p, text=text: s.sql(text).collect() for text in QUERIES},  # type: ignore[misc]  # mypy knows no default
    "args": lambda s, p: s.sql("SELECT :a FROM IDENTIFIER(:t) LIMIT :n", {"a": 1, "t": VIEW, "n": 1}).collect(),
    "positions": lambda s, p: s.sql("SELECT ?", [1]).collect(),
    "frames": lambda s, p: s.sql("SELECT * FROM {rows} WHERE id = {one}", rows=s.range(2), one=1).collect(),
    "collect": lambda s, p: [*s.range(1).toLocalIterator(), s.range(1).count(), s.range(1).rdd.map(str).collect()],
    "pandas": lambda s, p: s.range(1).toPandas(),
    "catalog": lambda s, p: (s.catalog.listTables(), s.catalog.tableExists(VIEW), s.catalog.currentDatabase()),
    "cache": lambda s, p: s.range(1).cache().count(),
    "catalog.cacheTable": lambda s, p: s.catalog.cacheTable(VIEW),
    "catalog.clearCache": lambda s, p: s.catalog.clearCache(),
    "views": lambda s, p: (s.range(1).createOrReplaceTempView("read_only_v"), s.catalog.dropTempView("read_only_v")),
    "table": lambda s, p: s.table(VIEW).collect(),
    "writer": lambda s, p: s.range(1).write.mode("append").format("json").option("a", "b").partitionBy("id"),
    "stream": lambda s, p: stream(s).trigger(once=True).outputMode("append").foreachBatch(lambda rows, number: None),
}  # fmt: skip


def with_writes(patch: pytest.MonkeyPatch) -> None:
    """Let PySpark write again when ``patch`` is undone: all tests share a process."""
    for owner, name, call in [*writing_calls(), (SparkSession, "sql", SparkSession.sql)]:
        patch.setattr(owner, name, call)


def statements(folder: str) -> Iterator[tuple[str, Call]]:
    for text in (*COMMANDS, *SCRIPTS):
        yield text, lambda s, p, text=text: s.sql(text.format(path=folder))  # type: ignore[misc]
    for text, args in WITH_ARGS:
        yield text, lambda s, p, text=text, args=args: s.sql(text, args)  # type: ignore[misc]


def not_refused(spark: SparkSession, folder: str) -> dict[str, str]:
    """Return what was not refused of all that writes, with what it did instead."""
    found = {}
    for name, call in (*WRITES.items(), *statements(folder)):
        try:
            found[name] = f"returned {call(spark, f'{folder}/out')}"
        except (WriteRefused, ImportError):  # pyspark.ml needs NumPy, which this Python may lack
            continue
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not the error that is expected
            found[name] = f"{type(error).__name__}: {error}"[:300]
    return found


def not_read(spark: SparkSession, folder: str) -> dict[str, str]:
    """Return the errors of what reads."""
    found = {}
    for name, call in READS.items():
        try:
            with contextlib.suppress(ImportError):
                call(spark, folder)
        except Exception as error:  # noqa: BLE001 - none is expected
            found[name] = f"{type(error).__name__}: {error}"[:300]
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        spark = (
            builder.config("spark.sql.scripting.enabled", "true")
            .config("spark.sql.warehouse.dir", folder)
            .getOrCreate()
        )
        spark.range(2).createOrReplaceTempView(VIEW)
        refuse_writes()
        found = {
            "not refused": not_refused(spark, folder),
            "not read": not_read(spark, folder),
            "files": os.listdir(folder),
        }
        print(json.dumps(found))
        spark.stop()


if __name__ == "__main__":
    main()
