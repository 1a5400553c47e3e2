"""The function of a ``foreachBatch``: find it in a writer, and refuse calls that it must not make. Runs in the Spark driver.

Spark calls it in a thread of its own, in the middle of a batch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from pyspark.sql.utils import ForeachBatchFunction

from airflow_checkpoint_provider.errors import WrongUse
from airflow_checkpoint_provider.spark.java_classes import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def refuse_inside() -> None:
    """Raise ``WrongUse`` if a batch function is calling.

    The changes of such a call would be in the checkpoint of another batch. A stop waits for the batch and holds a lock that the call would
    need. Calls from a thread that the function started itself are not noticed.
    """
    frame: FrameType | None = sys._getframe()
    while frame := frame and frame.f_back:
        if frame.f_code is ForeachBatchFunction.call.__code__:
            raise WrongUse(
                "a function of foreachBatch called the job, or stopped or awaited a query. It runs beside the script, in the middle"
                " of a batch: what it sets would belong to no batch. Keep state that must agree with a batch in the query itself"
                " (groupBy, dropDuplicates), or in the sink, beside the rows"
            )


def batch_function(spark: SparkSession, fields: Mapping[str, Any]) -> Any:
    """Return the Python function of a writer with ``fields``. Py4j knows it by the id that Spark's side holds."""
    (function,) = java_fields(fields["foreachBatchWriter"]).values()
    handler = java_class(spark, "java.lang.reflect.Proxy").getInvocationHandler(function)
    gateway: Any = spark.sparkContext._gateway
    return gateway.gateway_property.pool[java_fields(handler)["id"]].func


def java_fields(java: Any) -> dict[str, Any]:
    """Return the private fields of an object in Spark's JVM."""
    found = {}
    for field in java.getClass().getDeclaredFields():
        field.setAccessible(True)
        found[str(field.getName())] = field.get(java)
    return found
