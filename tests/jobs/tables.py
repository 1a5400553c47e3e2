"""What a person does with a Delta table. Runs in a driver of its own.

``TABLE`` is its path. With ``TABLE_RESTORE``, it is taken back to that version; with ``TABLE_APPEND``, it gets a row with that id.
"""

from __future__ import annotations

import os

from pyspark.sql import SparkSession

if __name__ == "__main__":
    table, spark = os.environ["TABLE"], SparkSession.builder.getOrCreate()
    if version := os.environ.get("TABLE_RESTORE"):
        spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF {version}")
    if row := os.environ.get("TABLE_APPEND"):
        other = spark.createDataFrame([(int(row), "of another writer")], "id long, key string")
        other.write.format("delta").mode("append").save(table)
    spark.stop()
