"""A job whose forked children leave the block, or call the job; how they ended, in its result."""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession

from airflow_checkpoint_provider.checkpoint import WrongUse
from airflow_checkpoint_provider.spark import CheckpointedJob

spark = SparkSession.builder.getOrCreate()
refused: list[str] = []
ends: list[int] = []


def fork() -> bool:
    """Return True in the child. The parent waits for it."""
    pid = os.fork()
    if pid:
        ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return pid == 0


def calls(job: CheckpointedJob) -> int:
    """How many of the calls are refused."""
    count = 0
    for call in (
        lambda: job.stage("x", spark.range(1)),
        lambda: total.set(2),
        job.checkpoint,
        job.await_queries,
        lambda: job.value("y"),
    ):
        try:
            call()
        except WrongUse as error:
            count += "forked child" in error.message
    return count


with CheckpointedJob() as job:
    total = job.value("total", 0)
    rows = job.stage("before", spark.range(10))
    if fork():
        sys.exit(4)
    if fork():
        raise ValueError("of a child")
    if fork():
        os._exit(7)
    if fork():
        os._exit(calls(job))
    if fork():
        sys.exit(0)
    total.set(job.stage("after", rows.selectExpr("id + 1 as id")).count())
    job.checkpoint()
    print("RESULT", json.dumps({"ends": ends, "total": total.get(), "attempt": job.attempt}))
