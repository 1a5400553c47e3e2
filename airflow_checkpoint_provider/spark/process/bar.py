"""Spark's progress bar, where a terminal is attached and Spark shows none. Runs in the Spark driver.

Spark has a bar of its own under ``python script.py``, and none under ``spark-submit script.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.spark.process.watchdog import jvm_pid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF = "spark.ui.showConsoleProgress"


@contextmanager
def progress_bar(spark: SparkSession) -> Iterator[None]:
    """Show the bar for the length of a ``with``, and clear it at its end, unless ``CONF`` is set."""
    bar: Any = None
    with suppress(Exception):  # the class is private to Spark, and a bar is no reason to fail
        if spark.conf.get(CONF, None) is None and _has_terminal(jvm_pid(spark)):
            jvm: Any = spark._jvm
            bar = jvm.org.apache.spark.ui.ConsoleProgressBar(spark.sparkContext._jsc.sc())
    try:
        yield
    finally:
        if bar is not None:
            with suppress(Exception):  # the JVM may be gone
                bar.stop()
                bar.finishAll()


def _has_terminal(pid: int) -> bool:
    """Return whether the process writes its standard error, and so the bar, to a terminal."""
    stderr = os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        return os.isatty(stderr)
    finally:
        os.close(stderr)
