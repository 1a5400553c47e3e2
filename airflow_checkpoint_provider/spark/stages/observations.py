"""Metrics that ``df.observe`` collects: stored with a stage, and handed out where its rows are reused. Runs in the Spark driver.

An ``Observation`` waits until an action has run its frame. A stage that is reused runs none, so its Observations get the stored
metrics, in the way in which Spark itself hands them out. Where there are none, ``get`` raises.
"""

from __future__ import annotations

import contextlib
import gc
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.errors import Damaged, WrongUse
from airflow_checkpoint_provider.location.foreign import loads, readable
from airflow_checkpoint_provider.protocol.metadata import Metrics
from airflow_checkpoint_provider.spark.java_classes import (
    await_future,
    dataframe_of,
    java_class,
    scala_items,
    scala_seq,
)
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.stages.plan import UUID, Plan
from airflow_checkpoint_provider.text import state_messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NODE = "CollectMetrics"
LARGEST_METRICS = 16 * 1024  # characters of JSON for all metrics of a stage, schemas included
METRICS_TIMEOUT, LISTENERS_TIMEOUT = 60, 10  # seconds until Spark's listeners have handed over the counts
EXACT = {  # by default JSON has milliseconds only, and leaves out nulls
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
    "mode": "FAILFAST",
}
SET_ROWS = (
    "4.0.",
    "4.1.",
)  # releases of Spark that set a row of metrics; later ones set the outcome of an attempt to get it


@dataclass(frozen=True)
class Observed:
    """A node of a plan that collects metrics, and Spark's own Observation of it."""

    spark: SparkSession
    node: Any
    handle: Any

    @cached_property
    def name(self) -> str:
        """Return the name that the author gave; empty if Spark drew one."""
        name: str = self.node.name()
        return "" if re.fullmatch(UUID, name) else name

    @cached_property
    def schema(self) -> Any:
        """Return Spark's type of the row of metrics."""
        schema = java_class(self.spark, "org.apache.spark.sql.types.StructType")()
        for metric in scala_items(self.node.metrics()):
            schema = schema.add(metric.name(), metric.dataType())
        return schema

    # -- a stage that is computed ------------------------------------------------------------------------------------

    def metrics(self, uid: str, room: int) -> Metrics:
        """Return the metrics that were collected while stage ``uid`` was written, if they fit into ``room`` and JSON keeps them."""
        schema: str = self.schema.json()
        try:
            row = self._row()
            text = _json_of(self.spark, row, self.schema)
            why = "they are too large" if len(schema) + len(text) > room else ""
            if not why and not row.equals(_row_of(self.spark, schema, text)):
                why = "JSON cannot hold their types"
        except (Py4JError, PySparkException) as error:
            why = f"Spark says: {_first_line(error)}"
        if why:
            say(state_messages.metrics_not_kept(uid, self.name, why))
        return Metrics(name=self.name) if why else Metrics(name=self.name, schema=schema, row=text)

    def _row(self) -> Any:
        """Return Spark's row of metrics. Its values never come to Python, where a long and an integer are the same."""
        await_future(self.spark, self.handle.future(), METRICS_TIMEOUT)
        names = scala_seq(self.spark, self.schema.fieldNames())
        return java_class(self.spark, "org.apache.spark.sql.Row").fromSeq(names.map(self.handle.get()))

    # -- a stage that is reused --------------------------------------------------------------------------------------

    def hand_out(self, uid: str, stored: Metrics | None) -> None:
        """Give the stored metrics to the Observation, or let its ``get`` raise."""
        if self.handle.future().isCompleted():  # an action of the script has run it
            return
        row, why = self._row_in(stored)
        if row is not None:
            sets_rows = self.spark.version.startswith(SET_ROWS)
            self.handle.setMetricsAndNotify(row if sets_rows else java_class(self.spark, "scala.util.Success")(row))
            return
        say(state_messages.metrics_missing(uid, self.name, why))
        for observation, handle in _observations():
            if handle.equals(self.handle):
                observation._jo = _Unfilled(self.spark, handle, uid)

    def _row_in(self, stored: Metrics | None) -> tuple[Any, str]:
        """Return the stored row; or None, and why there is none."""
        if stored is None or stored.row is None or (stored.name, stored.schema) != (self.name, self.schema.json()):
            return None, "it was stored without these metrics"
        try:
            with readable("the stored row", "a stage"):
                _refuse_other_names(stored.row, stored.schema)
            return _row_of(self.spark, stored.schema, stored.row), ""
        except (Py4JError, PySparkException, Damaged) as error:
            return None, f"its metrics cannot be read: {_first_line(error)}"


class _Unfilled:
    """Replaces Spark's Observation of a frame that was not run: calls that would wait for ever raise."""

    def __init__(self, spark: SparkSession, handle: Any, uid: str) -> None:
        self._spark, self._handle, self._uid = spark, handle, uid

    def __getattr__(self, name: str) -> Any:
        if name in ("get", "getRow", "getAsJava"):  # releases of Spark differ
            self._check()
        return getattr(self._handle, name)

    def _check(self) -> None:
        """Raise ``WrongUse`` unless an action has run the frame. Spark may still hand out its counts."""
        if not self._handle.future().isCompleted():
            with contextlib.suppress(Py4JError):  # other actions may keep the listeners busy
                self._spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(LISTENERS_TIMEOUT * 1000)
        if not self._handle.future().isCompleted():
            raise WrongUse(
                f"this Observation has no metrics: stage '{self._uid}' was reused, and its rows were not computed in this attempt. The"
                " line with CKP129 says why nothing was stored for it. Keep the number in a value, or give the stage a DataFrame"
            )


# -- of a frame --------------------------------------------------------------------------------------------------------


def watched(df: DataFrame, plan: Plan) -> tuple[Observed, ...]:
    """Return the nodes of a frame that collect metrics in the next action, before that runs."""
    nodes = [*_nodes(df, plan)]
    waiting = _waiting(df) if nodes else {}
    spark, found = df.sparkSession, {}
    for key, node in nodes:
        if key not in waiting:  # an earlier action has run it, or it has no Observation
            waiting[key] = java_class(spark, "org.apache.spark.sql.Observation")(key[0])
            _manager(spark).register(waiting[key], key[1])
        found[key] = Observed(spark, node, waiting[key])
    return tuple(found.values())


def collected(uid: str, observed: Sequence[Observed]) -> tuple[Metrics, ...]:
    """Return the metrics of a stage whose rows were written."""
    found, room = [], LARGEST_METRICS
    for one in observed:
        found.append(one.metrics(uid, room))
        room -= len(found[-1].schema) + len(found[-1].row or "")
    return tuple(found)


def hand_out(uid: str, stored: Sequence[Metrics], df: DataFrame, plan: Plan) -> None:
    """Give the stored metrics of a reused stage to the Observations of its frame that wait for an action."""
    nodes = dict(_nodes(df, plan))
    waiting = _waiting(df) if nodes else {}
    for i, (key, node) in enumerate(nodes.items()):
        if key in waiting:
            Observed(df.sparkSession, node, waiting[key]).hand_out(uid, stored[i] if i < len(stored) else None)


def leave_empty(spark: SparkSession, uid: str, stored: Sequence[Metrics]) -> None:
    """Say that the Observations of a function that was not called stay empty.

    Observations that the function would have used have no ``get`` yet. But it may return a frame that the script has made, and it is
    unknown which.
    """
    if not stored:
        return
    names = [one.name for one in stored]
    say(state_messages.metrics_missing(uid, ", ".join(filter(None, names)), "its function was not called"))
    for observation, handle in _observations():
        if (observation._name or "") in names:
            observation._jo = _Unfilled(spark, handle, uid)


def _nodes(df: DataFrame, plan: Plan) -> Iterator[tuple[tuple[str, int], Any]]:
    """Yield the nodes that collect metrics, by name and frame, in an order that only the plan decides."""
    if NODE not in plan.text:
        return
    root = df._jdf.queryExecution().analyzed()
    nodes = [root, *scala_items(root.subqueriesAll())]
    while nodes:
        node = nodes.pop()
        if node.getClass().getSimpleName() == NODE:
            yield (node.name(), node.dataframeId()), node
        nodes += scala_items(node.children())


def _waiting(df: DataFrame) -> dict[tuple[str, int], Any]:
    """Return Spark's Observations that wait for an action, by name and frame. Spark has no public list of them."""
    manager = _manager(df.sparkSession)
    field = manager.getClass().getDeclaredField("observations")
    field.setAccessible(True)
    entries = list(field.get(manager).entrySet())
    return {(entry.getKey()._1(), entry.getKey()._2()): entry.getValue() for entry in entries}


def _observations() -> Iterator[tuple[Observation, Any]]:
    """Yield the Observations of the script that wait for an action, each with Spark's own."""
    for found in gc.get_objects():
        handle = found._jo if issubclass(type(found), Observation) else None
        if isinstance(handle, JavaObject) and not handle.future().isCompleted():
            yield found, handle


# -- as JSON -------------------------------------------------------------------------------------------------------------


def _json_of(spark: SparkSession, row: Any, schema: Any) -> str:
    """Return a row as JSON. Two metrics may have one name, so their positions are the names. Starts no job."""
    frame = dataframe_of(
        spark, spark._jsparkSession.createDataFrame(java_class(spark, "java.util.List").of(row), schema)
    )
    text: str = frame.toDF(*map(str, range(len(frame.columns)))).select(F.to_json(F.struct("*"), EXACT)).collect()[0][0]
    return text


def _refuse_other_names(text: str, schema: str) -> None:
    """Raise an error unless a stored row names each metric: Spark takes null for a missing one, and ignores the rest."""
    names = sorted(map(str, range(len(json.loads(schema)["fields"]))))
    if sorted(loads(text)) != names:
        raise ValueError(f"it has not the names {', '.join(names)}")


def _row_of(spark: SparkSession, schema: str, text: str) -> Any:
    """Return Spark's row from its JSON. Starts no job."""
    encoder = java_class(spark, "org.apache.spark.sql.Encoders").STRING()
    texts = spark._jsparkSession.createDataset(java_class(spark, "java.util.List").of(text), encoder)
    fields = json.loads(schema)["fields"]
    numbered = json.dumps({"type": "struct", "fields": [{**field, "name": str(i)} for i, field in enumerate(fields)]})
    rows = dataframe_of(spark, texts.toDF()).select(F.from_json("value", numbered, EXACT).alias("row")).select("row.*")
    return rows.toDF(*(field["name"] for field in fields))._jdf.head()


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _manager(spark: SparkSession) -> Any:
    return spark._jsparkSession.observationManager()
