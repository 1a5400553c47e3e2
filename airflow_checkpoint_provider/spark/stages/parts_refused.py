"""The operators of a plan that are in the way of parts, by the names that Spark gives them. Runs in the Spark driver.

The rows of a stage in parts must not depend on where it was interrupted, nor on the way in which it was cut. A value that Spark draws, a
number by partition, and the first rows of an unsorted frame are others in each part. With ``by`` the same frame is filtered for each part,
so an operator that combines rows of several parts is in the way, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.errors import NotInParts
from airflow_checkpoint_provider.spark.java_classes import java_class, scala_items
from airflow_checkpoint_provider.spark.stages.leaves import class_name
from airflow_checkpoint_provider.spark.stages.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DRAWN = "Draw the values in a stage before this one, and read that stage here"
NUMBERED = "Number the rows after this stage"
AFTER = "Do it after this stage, with the rows that it returns"
OPERATORS = {
    "Sample": "Take the sample in a stage before this one, or from the rows that this stage returns",
    "GlobalLimit": AFTER,
    "LocalLimit": AFTER,
    "Offset": AFTER,
    "Tail": AFTER,
    "CollectMetrics": "Take the metrics of the rows that this stage returns, not of each part",
}
"""Name of a node -> what to write instead."""
EXPRESSIONS = {
    **dict.fromkeys(("Rand", "Randn", "RandStr", "Uniform", "Uuid", "Shuffle"), DRAWN),
    **dict.fromkeys(("MonotonicallyIncreasingID", "SparkPartitionID", "DistributedSequenceID"), NUMBERED),
    **dict.fromkeys(
        ("First", "Last", "NthValue", "AnyValue"),
        "Write min_by or max_by with a column that orders the rows, or a window with orderBy",
    ),
    **dict.fromkeys(("CollectList", "CollectSet", "ListAgg"), "Sort what it collects: sort_array(collect_list(...))"),
}
ONE_BY_ONE = (
    "Project", "Filter", "Generate", "SubqueryAlias", "View", "Sort", "Repartition", "RepartitionByExpression", "RebalancePartitions",
    "ResolvedHint", "UnresolvedHint", "LogicalRelation",
)  # fmt: skip
"""Operators of which each row of the result comes from one row of the source."""
ORDERED = ("SortArray", "ArraySort", "Size", "ArraySize")
"""Functions whose result does not depend on the order in which rows were collected."""
WINDOW = "WindowExpression"
BY_FUNCTION = "give the stage a function for each value, parts=[...]: it decides which rows a part reads"
ALIASES = {"Deduplicate": "Deduplicate (dropDuplicates, distinct)"}


def refuse(uid: str, df: DataFrame, plan: Plan, *, by: str | None = None) -> None:
    """Raise ``NotInParts`` with the first operator of the frame that is in the way, and with what to write instead."""
    analysed = df._jdf.queryExecution().commandExecuted()
    for node in each(analysed):
        name = class_name(node)
        if advice := OPERATORS.get(name):
            raise _in_the_way(uid, name, advice)
        if (
            by is not None and name not in ONE_BY_ONE and node.children().nonEmpty()
        ):  # leaves are looked at by their source
            why = f"{ALIASES.get(name, name)}, which may combine the rows of several parts"
            raise _in_the_way(uid, why, f"Do it after this stage, or {BY_FUNCTION}")
    if by is not None and analysed.subqueriesAll().nonEmpty():
        raise _in_the_way(uid, "a subquery, which reads rows of all parts", f"Join after this stage, or {BY_FUNCTION}")
    if found := next(_expressions(df, analysed), None):
        raise _in_the_way(uid, f"{found.prettyName()}()", EXPRESSIONS[class_name(found)])
    if function := plan.partitions.get("function"):  # an RDD of PySpark: no expression shows it
        raise _in_the_way(uid, function, DRAWN)


def _in_the_way(uid: str, what: str, advice: str) -> NotInParts:
    return NotInParts(f"stage '{uid}' cannot be computed in parts: its plan has {what}. {advice}", operator=what)


def each(plan: Any) -> Iterator[Any]:
    """Yield the nodes of a plan and of its subqueries, each before those below it."""
    waiting = [*scala_items(plan.subqueriesAll()), plan]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += scala_items(node.children())


def _expressions(df: DataFrame, plan: Any) -> Iterator[Any]:
    """Yield the expressions that are in the way. Most plans have none, and then no expression is looked at."""
    patterns: Any = java_class(df.sparkSession, "org.apache.spark.sql.catalyst.trees.TreePattern")
    if plan.deterministic() and not plan.containsPattern(patterns.AGGREGATE_EXPRESSION()):
        return
    for node in each(plan):
        yield from (inner for found in scala_items(node.expressions()) for inner in _inside(found))


def _inside(expression: Any, *, ordered: bool = False) -> Iterator[Any]:
    """Yield what is in the way in an expression. ``ordered``: above it, the order of the collected rows no longer matters."""
    name = class_name(expression)
    if name == WINDOW and expression.windowSpec().orderSpec().nonEmpty():
        return
    if name in EXPRESSIONS and not (ordered or (name == "ListAgg" and expression.orderExpressions().nonEmpty())):
        yield expression
    ordered = name in ORDERED or (ordered and name == "AggregateExpression")
    for child in scala_items(expression.children()):
        yield from _inside(child, ordered=ordered)
