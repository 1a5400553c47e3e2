"""One stage, and nothing else. Runs in the Spark driver.

``one.py OUT [ROOT]``; nothing is written to OUT.
"""

from __future__ import annotations

import json
import sys

from airflow_checkpoint_provider.spark import CheckpointedJob

if __name__ == "__main__":
    with CheckpointedJob(root=next(iter(sys.argv[2:]), None)) as job:
        rows = job.stage("clean", job.spark.range(3)).count()
        print("RESULT", json.dumps({"rows": rows, "attempt": job.attempt}), flush=True)
