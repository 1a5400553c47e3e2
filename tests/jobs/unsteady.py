"""Stages, a query into files and a query into a ``batch_sink``, whose tasks fail at their first tries. Runs in the Spark driver.

``unsteady.py OUT [ROOT]`` reads JSON below ``OUT-in``. ``UNSTEADY`` says what a task does before its last row: it ``raises`` an error,
twice; ``hangs`` until it is killed; ``dies`` with its executor; or, behind the shuffle of a stage, dies with its node. Files below ``OUT-tries`` are
these tries. The last line is ``RESULT {...}``: the rows of the stages, and how often a task did it at each place.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.checkpoint import CheckpointConfig
from airflow_checkpoint_provider.spark import CheckpointedJob, batch_sink

ROWS, PARTITIONS = 400, 4
TRIES = {"raises": 2, "hangs": 1, "dies": 1, "dies with its node": 1}
LONGEST = 300.0  # seconds


def unsteady(rows: DataFrame, tries: str, last: int) -> DataFrame:
    """Return ``rows``, which are computed by tasks that do not reach the row with the id ``last`` at their first tries."""
    if os.environ["UNSTEADY"] == "dies with its node" and not tries.endswith("after"):
        return rows
    return rows.withColumn("id", F.udf(reaches(os.environ["UNSTEADY"], tries, last), "long")("id"))


def reaches(how: str, tries: str, last: int) -> Callable[[int], int]:
    """Return a function of a row's id. It runs in the Python of an executor, which has no module of the tests."""

    def reach(number: int) -> int:
        context = TaskContext.get()
        if number == last and context is not None:
            Path(tries).mkdir(parents=True, exist_ok=True)
            if len(list(Path(tries).iterdir())) < TRIES[how]:
                (Path(tries) / f"{context.stageId()}.{context.taskAttemptId()}").touch()
                fail()
        return number

    def fail() -> None:
        if how == "raises":
            raise RuntimeError("this try shall fail")
        if how != "hangs":
            died = executor(os.getppid())
            for pid in (parent(died), died) if how == "dies with its node" else (died,):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LONGEST)

    def executor(pid: int) -> int:
        """Return the JVM above a Python worker: between them may be the process that forks workers."""
        command = Path(f"/proc/{pid}/cmdline").read_text()
        return pid if "CoarseGrainedExecutorBackend" in command else executor(parent(pid))

    def parent(pid: int) -> int:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    return reach


def main(job: CheckpointedJob, out: str) -> None:
    tries = f"{out}-tries"
    ids = job.spark.range(0, ROWS, 1, PARTITIONS)
    plain = job.stage("plain", unsteady(ids, f"{tries}/plain", ROWS // PARTITIONS - 1))
    before = unsteady(ids, f"{tries}/before", ROWS - 1).repartition(2, "id")
    shuffled = job.stage("shuffled", unsteady(before, f"{tries}/after", 7))
    lines = job.spark.readStream.schema("id long, key string").option("maxFilesPerTrigger", "2").json(f"{out}-in")
    files = unsteady(lines, f"{tries}/files", 29).writeStream.format("parquet").option("path", f"{out}/files")
    job.start_query("files", files.trigger(availableNow=True)).awaitTermination()
    keys = unsteady(lines, f"{tries}/batches", 31).dropDuplicates(["key"])
    batches = keys.writeStream.foreachBatch(batch_sink(f"{out}/batches"))
    job.start_query("batches", batches.trigger(availableNow=True)).awaitTermination()
    rows = {uid: sorted(row.id for row in stage.collect()) for uid, stage in (("plain", plain), ("shuffled", shuffled))}
    tried = {folder.name: len(list(folder.iterdir())) for folder in Path(tries).iterdir()}
    print("RESULT", json.dumps({"rows": rows, "tries": tried}), flush=True)


if __name__ == "__main__":
    out, *root = sys.argv[1:]
    with CheckpointedJob(root=root[0] if root else None, checkpointing=CheckpointConfig(interval="1 d")) as running:
        main(running, out)
    running.spark.stop()
