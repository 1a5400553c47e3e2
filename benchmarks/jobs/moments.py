"""What a benchmark's driver tells its parent, a line a moment. Runs in the Spark driver.

The clock is the system's monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLED_IN, FAILS = "BENCHMARK_KILLED_IN", "BENCHMARK_FAILS"
"""Variables of the environment, because an argument would change the application: the stage in which the driver kills itself; set
if the script fails at its end."""


def mark(name: str) -> None:
    """Tell that moment ``name`` is now."""
    _tell("MOMENT", name, repr(time.monotonic()))


def result(**figures: Any) -> None:
    """Tell the result of the driver."""
    _tell("RESULT", json.dumps(figures))


def _tell(*words: str) -> None:
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


def enter_stage(spark: SparkSession, name: str, checkpointed: Callable[[], object]) -> None:
    """Begin stage ``name``. If it is the one in which this process shall die, a thread kills it while Spark computes.

    ``checkpointed`` waits for the checkpoint of the stage before.
    """
    if os.environ.get(KILLED_IN) == name:
        checkpointed()
        threading.Thread(target=_kill_in_job, args=(spark,), daemon=True).start()


def _kill_in_job(spark: SparkSession) -> None:
    jobs = spark.sparkContext.statusTracker()
    while not jobs.getActiveJobsIds():
        time.sleep(0.002)
    os.kill(os.getpid(), signal.SIGKILL)


def fail_if_asked() -> None:
    """End the script as a failed one if it was started to fail: the next start of the same script goes on."""
    if FAILS in os.environ:
        raise SystemExit(1)


def spark_jobs(spark: SparkSession) -> int:
    """Return how many jobs Spark has started. The listeners that count them come after the jobs."""
    context: Any = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    return int(context.statusStore().jobsList(None).size())
