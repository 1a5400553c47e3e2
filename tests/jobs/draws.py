"""Pairs of stages that share what Spark draws, as frames and as functions. Its first two attempts kill themselves. Runs on the driver.

Environment: ``DRAWS_INPUT`` is the folder of ``write_rows``.
"""

from __future__ import annotations

import json
import os
import signal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.spark import CheckpointedJob
from tests.support.drawings import BY_PARTITION, DRAWN

Pair = tuple[str, DataFrame, bool]


def stage(job: CheckpointedJob, part: str, pair: Pair) -> DataFrame:
    name, drawn, as_function = pair
    frame = drawn.select("id", "d")
    return job.stage(f"{name}: {part}", (lambda: frame) if as_function else frame)


def torn(one: DataFrame, other: DataFrame) -> bool:
    """Return whether the two stages hold other rows, or rows with other values."""
    pairs = one.alias("a").join(other.alias("b"), "id", "full")
    return not pairs.where(~F.col("a.d").eqNullSafe(F.col("b.d"))).isEmpty()


def die_in(job: CheckpointedJob, attempt: int) -> None:
    if job.attempt == attempt:
        job.checkpoint()
        os.kill(os.getpid(), signal.SIGKILL)


with CheckpointedJob() as job:
    rows = job.spark.read.parquet(os.environ["DRAWS_INPUT"])
    job.stage("shared with nobody", rows.where("id > 10"))
    drawings = (DRAWN | BY_PARTITION).items()
    pairs: list[Pair] = [(name, drawing(rows), False) for name, drawing in drawings]
    pairs += [(f"{name} in a function", drawing(rows), True) for name, drawing in drawings]
    ones = [stage(job, "one", pair) for pair in pairs]
    die_in(job, attempt=1)
    others = []
    for pair in pairs:
        others.append(stage(job, "other", pair))
        if len(others) == len(pairs) // 2:
            die_in(job, attempt=2)
    found = [pair[0] for pair, one, other in zip(pairs, ones, others, strict=True) if torn(one, other)]
    print("RESULT", json.dumps({"torn": found}))
