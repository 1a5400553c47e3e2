"""Give a frame other seeds: a copy of its analysed plan, in which everything else is the same. Runs in the Spark driver.

Only the nodes above a seed are copied, by Spark's own ``makeCopy``. Ids of columns stay, so frames that are built on the copy find the same
columns. Drawn seeds are longer than 32 bits (``draws.NUMBER``), so py4j hands each of them over as Java's ``long``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaObject, is_instance_of
from py4j.protocol import Py4JError

from airflow_checkpoint_provider.spark.java_classes import dataframe_of, frame_of, java_class
from airflow_checkpoint_provider.spark.stages.confs import overridden
from airflow_checkpoint_provider.spark.stages.draws import with_draws
from airflow_checkpoint_provider.spark.stages.plan import UNCUT, tree_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CATALYST = "org.apache.spark.sql.catalyst"
SAMPLE = f"{CATALYST}.plans.logical.Sample"


def reseeded(df: DataFrame, seeds: Mapping[int, int]) -> DataFrame | None:
    """Return ``df`` with the values of ``seeds`` in the places of their keys; None if the copy fails, or differs in anything else."""
    spark = df.sparkSession
    try:
        plan = df._jdf.queryExecution().analyzed()
        copied = frame_of(spark, _Copy(spark, seeds).of(plan))
    except Py4JError:
        return None
    with overridden(spark, UNCUT):
        text, copied_text = (tree_text(one, spark.version) for one in (plan, copied.queryExecution().analyzed()))
    return dataframe_of(spark, copied) if copied_text == with_draws(text, seeds) else None


class _Copy:
    def __init__(self, spark: Any, seeds: Mapping[int, int]) -> None:
        self._spark, self._gateway, self._seeds = spark, spark.sparkContext._gateway, seeds
        self._some = java_class(spark, "scala.Option").apply
        self._converters = java_class(spark, "scala.jdk.javaapi.CollectionConverters")
        patterns = java_class(spark, f"{CATALYST}.trees.TreePattern")
        self._patterns = (patterns.EXPRESSION_WITH_RANDOM_SEED(), patterns.PLAN_EXPRESSION())

    def of(self, argument: Any) -> Any:
        """Return an argument of a node with other seeds; the same object if it has none of them."""
        if not isinstance(argument, JavaObject):
            return argument
        if self._is(argument, f"{CATALYST}.expressions.Expression"):
            return self._expression(argument)
        if self._is(argument, f"{CATALYST}.plans.logical.LogicalPlan"):
            return self._plan(argument)
        if self._is(argument, "scala.Some"):
            inner = argument.get()
            copied = self.of(inner)
            return argument if copied is inner else self._some(copied)
        return self._sequence(argument) if self._is(argument, "scala.collection.immutable.Seq") else argument

    def _plan(self, plan: Any) -> Any:
        # The arguments stay in the JVM: a number that passes through Python may come back as another type.
        arguments = plan.productIterator().toArray(java_class(self._spark, "scala.reflect.ClassTag").AnyRef())
        changed = False
        for index in range(len(arguments)):
            argument = arguments[index]
            is_seed = self._is(plan, SAMPLE) and plan.productElementName(index) == "seed"
            copied = self._seed_of_sample(argument) if is_seed else self.of(argument)
            if copied is not argument:
                arguments[index] = copied
                changed = True
        return plan.makeCopy(arguments) if changed else plan

    def _expression(self, expression: Any) -> Any:
        if not any(expression.containsPattern(pattern) for pattern in self._patterns):
            return expression
        children = expression.children()
        if (copied := self._sequence(children)) is not children:
            expression = expression.withNewChildren(copied)
        if self._is(expression, f"{CATALYST}.expressions.PlanExpression"):
            plan = expression.plan()
            copied = self.of(plan)
            return expression if copied is plan else expression.withNewPlan(copied)
        if self._is(expression, f"{CATALYST}.expressions.ExpressionWithRandomSeed"):
            seed = expression.seedExpression()
            if self._is(seed, f"{CATALYST}.expressions.Literal") and seed.value() in self._seeds:
                return expression.withNewSeed(self._seeds[seed.value()])
        return expression

    def _seed_of_sample(self, seed: Any) -> Any:
        """Return another seed of a sample: a number or, since Spark 4.2, an option of one."""
        optional = isinstance(seed, JavaObject)
        number = seed.getOrElse(None) if optional else seed
        if number not in self._seeds:
            return seed
        return self._some(self._seeds[number]) if optional else self._seeds[number]

    def _sequence(self, sequence: Any) -> Any:
        items = list(self._converters.asJava(sequence))
        copied = [self.of(item) for item in items]
        if all(new is old for new, old in zip(copied, items, strict=True)):
            return sequence
        result = java_class(self._spark, "java.util.ArrayList")()
        for item in copied:
            result.add(item)
        return self._converters.asScala(result).toSeq()

    def _is(self, java_object: Any, name: str) -> bool:
        return bool(is_instance_of(self._gateway, java_object, name))
