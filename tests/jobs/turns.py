"""A job that works on, barrier after barrier, until somebody makes the folder OUT. Runs in the Spark driver.

``turns.py OUT`` prints a line ``TURN <n>`` at each barrier, and at its end ``RESULT {...}``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from airflow_checkpoint_provider.spark import CheckpointedJob

LONGEST = 600  # seconds


def main(job: CheckpointedJob, out: Path) -> None:
    rows, turn, end = job.stage("numbers", job.spark.range(1000)), job.value("turn", 0), time.monotonic() + LONGEST
    while not out.exists() and time.monotonic() < end:
        turn.set(turn.get() + 1)
        job.checkpoint()
        print("TURN", turn.get(), flush=True)
        time.sleep(0.2)
    restored = job.restored.id if job.restored else None
    print("RESULT", json.dumps({"restored": restored, "rows": rows.count(), "attempt": job.attempt}), flush=True)


if __name__ == "__main__":
    with CheckpointedJob() as job:
        main(job, Path(sys.argv[1]))
    job.spark.stop()
