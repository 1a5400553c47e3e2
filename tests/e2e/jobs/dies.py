"""Each attempt computes one more stage and dies, until ``STAGES`` are stored; from then on each dies at once. Runs in the Spark driver.

``dies.py STAGES``. How many attempts there were is in the number of the attempt.
"""

from __future__ import annotations

import sys

from airflow_checkpoint_provider.spark import CheckpointedJob

with CheckpointedJob() as job:
    rows = job.spark.range(10).toDF("n")
    for number in range(1, min(job.attempt, int(sys.argv[1])) + 1):
        rows = job.stage(f"stage-{number}", rows.selectExpr("n + 1 as n"))
    raise SystemExit(f"attempt {job.attempt} dies")
