"""The ways in which a job of stages may keep what its stages computed. Runs in the Spark driver.

Each way is a context manager that yields how a stage is taken: the stage's name and a function that returns its rows, to its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from pyspark.sql import DataFrame, SparkSession

from benchmarks.jobs.moments import enter_stage, mark

Stage = Callable[[str, Callable[[], DataFrame]], DataFrame]


@contextmanager
def checkpointed(spark: SparkSession, root: str) -> Iterator[Stage]:
    """Give each stage to ``CheckpointedJob`` as a DataFrame."""
    from airflow_checkpoint_provider.spark import CheckpointedJob
    from tests.support.parts import parts

    with CheckpointedJob(spark, root=root) as job:

        def stage(name: str, rows: Callable[[], DataFrame]) -> DataFrame:
            enter_stage(spark, name, parts(job).checkpointer.wait)
            return job.stage(name, rows())

        yield stage


@contextmanager
def deferred(spark: SparkSession, root: str) -> Iterator[Stage]:
    """Give each stage to ``CheckpointedJob`` as a function, which it calls only if the rows must be computed."""
    from airflow_checkpoint_provider.spark import CheckpointedJob
    from tests.support.parts import parts

    with CheckpointedJob(spark, root=root) as job:

        def stage(name: str, rows: Callable[[], DataFrame]) -> DataFrame:
            enter_stage(spark, name, parts(job).checkpointer.wait)
            return job.stage(name, rows)

        yield stage


@contextmanager
def lazy(spark: SparkSession, root: str) -> Iterator[Stage]:
    """Keep nothing: one plan is computed at the end."""
    yield lambda _, rows: rows()


@contextmanager
def by_hand(spark: SparkSession, root: str) -> Iterator[Stage]:
    """Write each stage as Parquet and read it back."""

    def stage(name: str, rows: Callable[[], DataFrame]) -> DataFrame:
        df = rows()
        df.write.parquet(f"{root}/{name}")
        return spark.read.schema(df.schema).parquet(f"{root}/{name}")

    yield stage


@contextmanager
def persisted(spark: SparkSession, root: str) -> Iterator[Stage]:
    """Keep each stage in memory, and on disk what does not fit; computed at once, as the stages of the others are."""

    def stage(name: str, rows: Callable[[], DataFrame]) -> DataFrame:
        df = rows().persist()
        df.count()
        return df

    yield stage


@contextmanager
def spark_checkpoint(spark: SparkSession, root: str) -> Iterator[Stage]:
    """Keep each stage by ``DataFrame.checkpoint()``."""
    spark.sparkContext.setCheckpointDir(root)
    yield lambda _, rows: rows().checkpoint()


VARIANTS: dict[str, Callable[[SparkSession, str], AbstractContextManager[Stage]]] = {
    "ours": checkpointed,
    "ours, functions": deferred,
    "lazy": lazy,
    "by hand": by_hand,
    "persist": persisted,
    "checkpoint()": spark_checkpoint,
}


@contextmanager
def stages(variant: str, spark: SparkSession, root: str) -> Iterator[Stage]:
    """Yield how a stage of ``variant`` is taken; tell the moments "attached", of each stage, and "left"."""
    with VARIANTS[variant](spark, root) as take:
        mark("attached")

        def stage(name: str, rows: Callable[[], DataFrame]) -> DataFrame:
            taken = take(name, rows)
            mark(name)
            return taken

        yield stage
    mark("left")
