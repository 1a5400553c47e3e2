"""Two stages; the second needs memory in one piece, in a task. Runs in the Spark driver.

``heap.py OUT [ROOT]``; nothing is written to OUT. ``HEAP_BYTES`` is the size of the piece. If there is a file ``OUT/kill``, it is removed and
the JVM of the driver gets SIGKILL before the second stage. After an error the reasons are printed why Spark has lost executors.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from airflow_checkpoint_provider.spark import CheckpointedJob
from airflow_checkpoint_provider.spark.attempt.memory import losses
from airflow_checkpoint_provider.spark.process.watchdog import jvm_pid

if __name__ == "__main__":
    out, size = Path(sys.argv[1]), int(os.environ.get("HEAP_BYTES", "1000"))
    with CheckpointedJob(root=next(iter(sys.argv[2:]), None)) as job:
        first = job.stage("first", job.spark.range(3)).count()
        if (out / "kill").exists():
            (out / "kill").unlink()
            os.kill(jvm_pid(job.spark), signal.SIGKILL)
            time.sleep(60)  # until the watchdog ends this process
        try:
            piece = job.spark.range(1, 2, 1, 1).selectExpr(f"length(repeat(cast(id as string), {size})) as n")
            second = job.stage("second", piece).collect()[0][0]
        except Exception:
            print("LOSSES", json.dumps([*losses(job.spark)]), flush=True)
            raise
        print("RESULT", json.dumps({"first": first, "second": second, "attempt": job.attempt}), flush=True)
