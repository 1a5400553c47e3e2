"""A stage in parts by a column of a Delta table. Runs in the Spark driver.

``table_parts.py OUT`` makes the table ``OUT-in``, and prints ``RESULT {...}`` with the parts of the stage, and with the ids of its rows.
"""

from __future__ import annotations

import json
import sys

from airflow_checkpoint_provider.spark import CheckpointedJob
from tests.support.parts import parts

if __name__ == "__main__":
    with CheckpointedJob() as job:
        table = f"{sys.argv[1]}-in"
        rows = job.spark.range(20).selectExpr("id", "if(id % 5 = 0, null, date_add('2026-02-01', int(id % 4))) as day")
        rows.write.format("delta").partitionBy("day").save(table)
        stored = job.stage("rows", job.spark.read.format("delta").load(table).where("id < 18"), by="day")
        detail = parts(job).states.snapshots["rows"].parts
        result = {"ids": sorted(row.id for row in stored.collect()), "parts": list(detail.values if detail else ())}
        print("RESULT", json.dumps(result), flush=True)
    job.spark.stop()
