"""A frame in the hands of the script: ``df`` and ``set``. Runs in the Spark driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

from airflow_checkpoint_provider.errors import WrongUse
from airflow_checkpoint_provider.spark.stages.arguments import named
from airflow_checkpoint_provider.spark.stages.schemas import refuse_types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Frame:
    """One DataFrame as state, replaced as a whole. See ``CheckpointedJob.frame``.

    :param read: returns its present rows.
    :param change: replaces them.
    """

    def __init__(self, read: Callable[[], DataFrame], change: Callable[[DataFrame], None]) -> None:
        self._read, self._change = read, change

    @property
    def df(self) -> DataFrame:
        """Return the present rows. They can be read until the frame was stored twice more; get ``df`` anew in each turn."""
        return self._read()

    def set(self, df: DataFrame) -> None:
        """Replace all rows, also with other columns. Spark computes nothing here: the next barrier of the loop stores the rows.

        Raises ``WrongUse`` outside of a turn of ``iterate`` or ``once``, and ``UnsupportedType`` for columns that cannot be stored.
        """
        self._change(df)


def checked_frame(uid: str, source: Any, spark: SparkSession) -> DataFrame:
    """Return the DataFrame that a frame gets. Raises ``WrongUse`` for other values, streams and other sessions, and ``UnsupportedType``."""
    if not isinstance(source, ClassicFrame):
        raise WrongUse(
            f"frame '{uid}' was given {named(source)}. Give a DataFrame. The first one may be a function without arguments that returns"
            f' one: job.frame("{uid}", lambda: spark.read...)'
        )
    if source.isStreaming:
        raise WrongUse(
            f"frame '{uid}' was given a streaming DataFrame. It takes rows that end: use start_query for a stream"
        )
    if source.sparkSession is not spark and source.sparkSession._jsparkSession != spark._jsparkSession:
        raise WrongUse(f"frame '{uid}' was given a DataFrame of another session. Build it with job.spark")
    refuse_types(source, uid, "frame")
    return source


def outside_of_a_turn(uid: str) -> WrongUse:
    """Return the error for a frame that the script changes outside of a loop."""
    return WrongUse(
        f"frame '{uid}' is changed outside of a turn. A retry runs this line again, on rows that have the change already. Put it into a"
        f' loop, whose finished turns no retry runs again. Write two lines: `for item in job.once("{uid}-items", [item]):` and below it'
        f" `{uid}.set(...)`. For many turns in one run, write job.iterate"
    )
