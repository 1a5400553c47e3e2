"""The facts that made the partitions of a stage's rows, if the rows depend on partitions. Runs in the Spark driver.

A drawn or numbered value depends on its row's partition and on the place of the row in it. So the rows of two stages fit together
only if both were computed with the same partitions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.spark.java_classes import java_class, scala_items
from airflow_checkpoint_provider.spark.stages.leaves import class_name, nodes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FUNCTIONS = re.compile(
    r"\b(randstr|randn|rand|random|uuid|shuffle|uniform|monotonically_increasing_id|SPARK_PARTITION_ID)\(|\b(Sample) "
    r"|(LocalLimit) (?!.*\n[ :+-]*(?:Project .*\n[ :+-]*)?Sort .*, true(?:, |\n|$))"  # the first rows of a sorted frame are the same ones
)
RDD_METHODS = re.compile(rb"RDD\.(zipWithIndex|zipWithUniqueId)|(RDD\w*Sampler)")
CONFS = (
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.openCostInBytes",
    "spark.sql.files.minPartitionNum",
    "spark.sql.files.maxPartitionNum",
    "spark.sql.leafNodeDefaultParallelism",
    "spark.sql.shuffle.partitions",
    "spark.sql.autoBroadcastJoinThreshold",
    "spark.sql.adaptive.enabled",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes",
    "spark.sql.adaptive.autoBroadcastJoinThreshold",
    "spark.sql.adaptive.coalescePartitions.enabled",
    "spark.sql.adaptive.coalescePartitions.initialPartitionNum",
    "spark.sql.adaptive.coalescePartitions.minPartitionSize",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst",
    "spark.sql.sources.bucketing.enabled",
    "spark.sql.sources.bucketing.autoBucketedScan.enabled",
)
"""How Spark splits files, and how many partitions a shuffle has."""


def partition_facts(df: DataFrame, plan: Any, text: str) -> dict[str, str]:
    """Return the facts that made the partitions of a frame, by name; empty if its rows do not depend on partitions.

    :param plan: the analysed plan in the JVM. :param text: its text.
    """
    rdds = list(_rdds(plan))
    function = next((next(filter(None, match.groups())) for match in FUNCTIONS.finditer(text)), None)
    function = function or next((name for rdd in rdds for name in _numbering(df.sparkSession, rdd)), None)
    if function is None:
        return {}
    spark = df.sparkSession
    confs = {name: value for name in CONFS if (value := spark.conf.get(name, None)) is not None}
    of_rdds = {f"partitions of RDD {i}": str(rdd.getNumPartitions()) for i, rdd in enumerate(rdds, start=1)}
    of_ranges = {f"partitions of range {i}": count for i, count in enumerate(_counts_of_ranges(plan), start=1)}
    cores = str(spark.sparkContext.defaultParallelism)
    return {"function": function.lower(), "cores": cores, **confs, **of_rdds, **of_ranges}


def changed_partitions(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return why the partitions are others than those of the stored rows; empty if they are the same."""
    if not before or not now:
        return ""
    for name in sorted((before.keys() | now.keys()) - {"function"}, key=lambda name: (name != "cores", name)):
        if before.get(name) != now.get(name):
            what = "the number of cores" if name == "cores" else name
            change = f"{what} changed: {before.get(name, 'none')} → {now.get(name, 'none')}"
            return f"its rows depend on partitions ({now['function']}), and {change}"
    return ""


def checkpointed(plan: Any) -> tuple[int, ...]:
    """Return the ids of the RDDs that hold a frame which Spark has checkpointed. Draws before that cannot be found."""
    return tuple(rdd.id() for rdd in _rdds(plan) if rdd.isCheckpointed())


def _counts_of_ranges(plan: Any) -> Iterator[str]:
    """Yield into how many partitions each ``range`` of the plan is cut. The plan's text leaves it out: mostly it follows the cores."""
    for leaf in nodes(plan):
        if class_name(leaf) == "Range":
            yield str(leaf.numSlices().get() if leaf.numSlices().isDefined() else "as many as cores")


def _rdds(plan: Any) -> Iterator[Any]:
    for leaf in nodes(plan):
        if class_name(leaf) == "LogicalRDD":
            yield leaf.rdd()


def _numbering(spark: SparkSession, rdd: Any) -> Iterable[str]:
    """Return the methods of PySpark's RDDs that made ``rdd`` and depend on partitions.

    Their names stand in the code that PySpark has pickled for its workers. The code is searched, never loaded.
    """
    byte = java_class(spark, "scala.reflect.ClassTag").Byte()
    waiting, seen = [rdd], set()
    while waiting:
        rdd = waiting.pop()
        if rdd.id() in seen:
            continue
        seen.add(rdd.id())
        if rdd.getClass().getSimpleName() == "PythonRDD":
            function = rdd.getClass().getDeclaredField("func")
            function.setAccessible(True)
            code = bytes(function.get(rdd).command().toArray(byte))
            yield from (match[match.lastindex or 0].decode() for match in RDD_METHODS.finditer(code))
        waiting += [dependency.rdd() for dependency in scala_items(rdd.dependencies())]
