"""Counts the rows of a stage in a value, from run to run. A test corrects its copy of this script. Runs in the Spark driver.

``counts.py FOLDER``: gates and results are those of ``stages.py``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from airflow_checkpoint_provider.spark import CheckpointedJob

folder = Path(sys.argv[1])
with CheckpointedJob() as job:
    rows = job.value("rows", 0)
    a = job.stage("a", job.spark.range(10))
    rows.set(rows.get() + a.count())
    job.stage("b", a.selectExpr("id * 2 as id"))
    closed, end = folder / "closed-end", time.monotonic() + 1800
    if closed.exists():
        (folder / f"at-end-{job.attempt}").touch()
    while closed.exists() and time.monotonic() < end:
        time.sleep(0.05)
    with (folder / "results").open("a") as results:
        results.write(json.dumps({"attempt": job.attempt, "rows": rows.get()}) + "\n")
job.spark.stop()
