"""The memory that was used up when an attempt died, as its driver sees it. Runs in the Spark driver.

It asks only when the attempt ends with an error: a listener of Spark in Python would cost a call for each of Spark's events.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pyspark.sql import SparkSession

from airflow_checkpoint_provider.coordinator.oom_kills import OomKills
from airflow_checkpoint_provider.policies.memory import DRIVER_OVERHEAD
from airflow_checkpoint_provider.spark.java_classes import java_class
from airflow_checkpoint_provider.spark.java_errors import texts_of
from airflow_checkpoint_provider.text import out_of_memory

NEWEST = 10  # lost executors whose reasons are read: each costs a few calls


def cause_of(error: BaseException | None, spark: SparkSession, kills: OomKills) -> str:
    """Return the memory that was used up when the script ended with ``error``; empty if the cause was another."""
    text = "\n".join(texts_of(error))
    if cause := out_of_memory.cause_in_error(text):
        return cause
    if out_of_memory.python_crashed(text) and kills.happened():
        return DRIVER_OVERHEAD
    if not out_of_memory.tells_of_lost_executors(text):
        return ""
    causes = map(out_of_memory.cause_in_loss, losses(spark))
    return next(filter(None, causes), "")


def cause_of_jvm_death(kills: OomKills) -> str:
    """Return the memory that was used up when the JVM died, as far as Python can tell: the task sees the JVM's exit code."""
    return DRIVER_OVERHEAD if kills.happened() else ""


def losses(spark: SparkSession) -> Iterator[str]:
    """Yield why Spark has lost executors, the newest first. Spark keeps that with its pages off, too."""
    with contextlib.suppress(Exception):  # the JVM may be gone
        store = spark.sparkContext._jsc.sc().statusStore()
        executors = java_class(spark, "scala.jdk.javaapi.CollectionConverters").asJava(store.executorList(False))
        lost = [executor for executor in executors if not executor.isActive()]
        for executor in sorted(lost, key=lambda executor: int(executor.removeTime().get().getTime()))[
            : -NEWEST - 1 : -1
        ]:
            yield str(executor.removeReason().getOrElse(None) or "")
