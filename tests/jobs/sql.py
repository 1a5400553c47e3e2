"""What a person does with tables. Runs in a driver of its own.

It runs the statements of SQL in ``SQL``, one in each line.
"""

from __future__ import annotations

import os

from pyspark.sql import SparkSession

if __name__ == "__main__":
    spark = SparkSession.builder.getOrCreate()
    for statement in os.environ["SQL"].splitlines():
        spark.sql(statement)
    spark.stop()
