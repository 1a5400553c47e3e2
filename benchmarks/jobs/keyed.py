"""A query that writes each key once, so that its state holds all keys. Runs in the Spark driver.

``keyed.py VARIANT ROOT OUT INBOX``: ``ours``, or ``plain``, whose checkpoint location is ROOT. It answers line by line:

* ``next``: wait for one more batch; ``all``: wait until the files in INBOX are read. The answer has the milliseconds of each batch
  since the last answer, how many jobs Spark has started, and what ``observed`` has noted;
* ``rows``: the answer has the number of rows in OUT, and of their keys.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from benchmarks.jobs.moments import mark, result, spark_jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from airflow_checkpoint_provider.location.files import Location, LocationFiles

PAUSE = 0.005  # seconds between two polls for a batch


class Asked:
    """Answers what is asked about a query. ``costs`` are told with each answer."""

    def __init__(self, query: StreamingQuery, out: str, costs: dict[str, float]) -> None:
        self._query, self._out, self._costs = query, out, costs
        self._told = -1  # the newest batch in an answer

    def await_batch(self) -> None:
        """Wait for a batch that no answer has told yet."""
        while not self._new():
            if error := self._query.exception():
                raise error
            time.sleep(PAUSE)

    def answer(self, spark: SparkSession, line: str) -> None:
        if line == "rows":
            rows = spark.read.parquet(self._out)
            result(rows=rows.count(), keys=rows.distinct().count())
            return
        if line == "next":
            self.await_batch()
        else:
            self._query.processAllAvailable()
        new = self._new()
        self._told = max(new, default=self._told)
        result(milliseconds=[*new.values()], jobs=spark_jobs(spark), costs=self._costs)

    def _new(self) -> dict[int, int]:
        """Return the milliseconds of the batches that no answer has told yet, by their numbers."""
        reports: list[Any] = [report for report in self._query.recentProgress if report.batchId > self._told]
        return {report.batchId: report.durationMs["triggerExecution"] for report in reports if report.numInputRows}


def writer(spark: SparkSession, out: str, inbox: str) -> DataStreamWriter:
    """Return the writer of the query: a batch for each file."""
    rows = spark.readStream.schema("k long").option("maxFilesPerTrigger", "1").parquet(inbox)
    return rows.dropDuplicates(["k"]).writeStream.format("parquet").option("path", out)


def serve(spark: SparkSession, asked: Asked) -> None:
    """Answer line by line until standard input ends."""
    asked.await_batch()
    mark("first batch")
    for line in sys.stdin:
        asked.answer(spark, line.strip())


def plain(spark: SparkSession, root: str, out: str, inbox: str) -> None:
    query = writer(spark, out, inbox).option("checkpointLocation", root).start()
    mark("started")
    serve(spark, Asked(query, out, {}))


def ours(spark: SparkSession, root: str, out: str, inbox: str) -> None:
    from airflow_checkpoint_provider.checkpoint import CheckpointConfig
    from airflow_checkpoint_provider.spark import CheckpointedJob

    costs = observed()
    rarely = CheckpointConfig(interval="1 d", min_pause="12 h")  # only those checkpoints are taken that are asked for
    with CheckpointedJob(spark, root=root, restore="latest", checkpointing=rarely) as job:
        mark("attached")
        query = job.start_query("keys", writer(spark, out, inbox))
        mark("started")
        serve(spark, Asked(query.spark_query, out, costs))


def observed() -> dict[str, float]:
    """Return what is noted from now on: the seconds of checkpoints and of the parts of taking over, and what that copies."""
    from airflow_checkpoint_provider.location import copying
    from airflow_checkpoint_provider.location.fence import fence
    from airflow_checkpoint_provider.spark.checkpoints.checkpointer import Checkpointer
    from airflow_checkpoint_provider.spark.queries.location import locations

    costs: dict[str, float] = defaultdict(float)

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                costs[name] += time.perf_counter() - began

        return run

    def counted(found: LocationFiles, target: Location, names: Iterable[str]) -> None:
        wanted = tuple(names)
        copy_files(found, target, wanted)
        costs["files"] += len(wanted)
        costs["bytes"] += sum(found.sizes[name] for name in wanted)

    copy_files = copying.copy_files
    for owner, name, call in (
        (Checkpointer, "checkpoint", Checkpointer.checkpoint),
        (locations.Locations, "fetch_missing_state", locations.Locations.fetch_missing_state),
        (locations, "fence", fence),
        (copying, "copy_files", counted),
    ):
        setattr(owner, name, timed(name, call))
    return costs


def main(variant: str, *places: str) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    mark("session")
    {"ours": ours, "plain": plain}[variant](spark, *places)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
