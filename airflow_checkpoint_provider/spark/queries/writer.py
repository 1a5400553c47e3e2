"""The writer of a query as its author built it: where it writes, and which settings this package refuses. Runs in the Spark driver.

PySpark shows nothing of a ``DataStreamWriter`` before its query starts, so the fields of Spark's own writer are read.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from airflow_checkpoint_provider.errors import NotInstalled, NotSupportedYet, VersionMismatch, WrongUse
from airflow_checkpoint_provider.protocol.query_details import DELTA, FILE_SINKS, FOREACH_BATCH, ICEBERG
from airflow_checkpoint_provider.spark.java_classes import java_class, scala_items, scala_pairs
from airflow_checkpoint_provider.spark.queries.batch_function import batch_function, java_fields
from airflow_checkpoint_provider.spark.versions import TRIED, minor_release, untried

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.readwriter import DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

LOCATION = "checkpointLocation"
OF_STREAM = ("path", LOCATION.lower(), "queryname")  # options that a writer of plain rows does not have
AT_LEAST_ONCE = {
    FOREACH_BATCH: "its function gets the batch that had begun again after a restart, with the same rows",
    "foreach": "it gets the rows of the batch that had begun again after a restart",
    "kafka": "it gets the rows of the batch that had begun again after a restart",
    "console": "it shows the batch that had begun again after a restart",
    "noop": "it writes nothing",
}
"""Sinks that do not say which batches they have, and what that means for them."""
NOTES = {
    **AT_LEAST_ONCE,
    ICEBERG: "an older driver that still runs can write the begun batch a second time. If the older driver is dead, each row is"
    " there once",
}
"""The line of the log when a query starts, by the format of its sink."""
TABLES = {
    DELTA: (
        "org.apache.spark.sql.delta.DeltaLog",
        {release: f"io.delta:delta-spark_{release}_2.13:4.4.0" for release in ("4.0", "4.1", "4.2")},
    ),
    ICEBERG: (
        "org.apache.iceberg.spark.Spark3Util",
        {
            "4.0": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
            "4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
        },
    ),
}
"""Formats of tables: a class by which their package is found, and the package with which each release of Spark was tried."""
SESSION_BRANCHES = ("spark.wap.branch", "spark.wap.id")  # confs of Iceberg that send rows elsewhere
IN_A_BRANCH = ("branch", *SESSION_BRANCHES)
TRIGGERS = ("ProcessingTimeTrigger", "AvailableNowTrigger$", "OneTimeTrigger$")
CONFS = {
    "spark.sql.streaming.checkpointFileManagerClass": "it writes a location without a condition, so an older driver could continue",
    "spark.sql.streaming.checkpointLocation": "each attempt has a location of its own",
}
RETAINED, LEAST_RETAINED = "spark.sql.streaming.minBatchesToRetain", 10
FORMAT_VERSION = "spark.sql.streaming.stateStore.checkpointFormatVersion"
FORMATS = {
    FORMAT_VERSION: "a query whose sink skips a batch",
    "spark.sql.streaming.offsetLog.formatVersion": "a query that ends in the middle of a batch",
}
"""Confs whose version 2 makes Spark itself lose queries, the second before 4.3, and which queries. Version 1 is the default of both."""


@dataclass(frozen=True)
class Target:
    """The sink of a query: its format, and the path to which it writes, empty if it has none."""

    format: str
    path: str


def examine(spark: SparkSession, uid: str, writer: DataStreamWriter) -> Target:
    """Return where the query writes. Raises ``WrongUse`` and ``NotSupportedYet`` for settings with which the query could not continue
    exactly.
    """
    if untried(spark.version):
        raise VersionMismatch(
            f"query '{uid}': queries were tried with Spark {TRIED}, and this is {spark.version}. Run the job with one of these releases"
        )
    _refuse_confs(spark, uid)
    fields = java_fields(writer._jwrite)
    options = _options(fields)
    if LOCATION.lower() in options:
        raise WrongUse(
            f"query '{uid}' has the option {LOCATION}: each attempt has a location of its own. Leave the option out"
        )
    if options.get("asyncprogresstrackingenabled", "").lower() == "true":
        raise NotSupportedYet(
            f"query '{uid}': asynchronous progress tracking writes no offsets before a batch; leave it out"
        )
    _need_protobuf(uid, writer)
    _refuse_trigger(uid, fields["trigger"])
    if fields["source"] == FOREACH_BATCH:
        # A sink of this package has a ``target``. Any other function is its author's responsibility
        target = getattr(batch_function(spark, fields), "target", None)
        return target if isinstance(target, Target) else Target(FOREACH_BATCH, "")
    return _target(spark, uid, str(fields["source"]).lower(), options)


def _refuse_confs(spark: SparkSession, uid: str) -> None:
    session: Any = spark._jsparkSession
    hadoop = session.sessionState().newHadoopConf()
    for name, why in CONFS.items():
        if spark.conf.get(name, None) or hadoop.get(name):
            raise WrongUse(f"query '{uid}': the conf {name} is set: {why}. Leave it out")
    if int(spark.conf.get(RETAINED, "100") or 100) < LEAST_RETAINED:
        raise WrongUse(
            f"query '{uid}': with {RETAINED} below {LEAST_RETAINED}, Spark deletes files while a checkpoint copies them. Leave it out"
        )
    for name, lost in FORMATS.items():
        if spark.conf.get(name, "1") != "1":
            raise NotSupportedYet(f"query '{uid}': {name}=2 loses {lost}, in Spark itself. Leave it out")


def _need_protobuf(uid: str, writer: DataStreamWriter) -> None:
    """Raise ``NotInstalled`` if Spark could not call the query's ``StatefulProcessor``. Spark itself does not say why."""
    rows: Any = writer._df
    if "TransformWithStateInPySpark" not in rows._jdf.queryExecution().analyzed().toString():
        return
    try:
        importlib.import_module("google.protobuf")
    except ImportError as error:
        raise NotInstalled(
            f"query '{uid}' uses transformWithState, with which Spark needs protobuf: {error}. Install protobuf in the Python of the"
            " driver and of the executors"
        ) from None


def _refuse_trigger(uid: str, trigger: Any) -> None:
    name = trigger.getClass().getSimpleName()
    if name not in TRIGGERS:
        raise NotSupportedYet(
            f"query '{uid}': a {name.removesuffix('$')} has no batches that could be checkpointed. Use"
            " trigger(processingTime=...) or trigger(availableNow=True)"
        )


def _target(spark: SparkSession, uid: str, sink: str, options: dict[str, str]) -> Target:
    if sink in AT_LEAST_ONCE:
        return Target(sink, "")
    if sink not in (*FILE_SINKS, *TABLES):
        raise NotSupportedYet(
            f"query '{uid}' writes to {sink!r}. This version knows the formats {', '.join((*FILE_SINKS, *TABLES, *AT_LEAST_ONCE))}"
        )
    if not options.get("path"):
        raise WrongUse(f"query '{uid}' has no path: write .option(\"path\", ...) before start_query")
    if sink in TABLES:
        need_package(spark, f"query '{uid}'", sink)
    if sink == ICEBERG:
        _refuse_branch(spark, uid, options)
    return Target(sink, options["path"])


def need_package(spark: SparkSession, writer: str, sink: str) -> None:
    """Raise ``VersionMismatch`` or ``NotInstalled`` unless this Spark can write tables of a format. ``writer``: "query 'rows'"."""
    found_by, packages = TABLES[sink]
    release = minor_release(spark.version)
    if release not in packages:
        raise VersionMismatch(
            f"{writer} writes to {sink}, which was tried with Spark {', '.join(packages)}, and this is {spark.version}. Run the job"
            f" with pyspark=={max(packages)}.* and {packages[max(packages)]}"
        )
    try:
        java_class(spark, "java.lang.Thread").currentThread().getContextClassLoader().loadClass(found_by)
    except Py4JJavaError:
        raise NotInstalled(
            f"{writer} writes to {sink}, and Spark does not have it. Add the packages that its documentation names for Spark"
            f" {release}, such as {packages[release]}, to the job"
        ) from None


def _refuse_branch(spark: SparkSession, uid: str, options: Mapping[str, str]) -> None:
    """Raise ``NotSupportedYet`` for a query that writes to a branch of an Iceberg table, or to a snapshot that is audited first."""
    wanted = [name for name in IN_A_BRANCH if options.get(name) or spark.conf.get(name, None)]
    last = options["path"].rpartition(".")[2]
    if last.startswith("branch_"):
        wanted.append(last)
    if wanted:
        raise NotSupportedYet(
            f"query '{uid}' writes to a branch of an Iceberg table ({', '.join(wanted)}). Iceberg looks for the batches that it has in the"
            " main branch only, and would write the batch that had begun twice. Leave the branch out"
        )


def trigger_of(writer: DataStreamWriter) -> Any:
    """Return the trigger of a writer, as Spark's own object."""
    return java_fields(writer._jwrite)["trigger"]


def set_trigger(writer: DataStreamWriter, trigger: Any) -> None:
    """Give a writer what ``trigger_of`` returned."""
    java: Any = writer._jwrite
    java.trigger(trigger)


def empty_like(writer: DataStreamWriter) -> DataFrameWriter:
    """Return a writer of no rows, with the columns, options and partitions of a query's writer."""
    fields, rows = java_fields(writer._jwrite), writer._df
    options = {name: value for name, value in _options(fields).items() if name not in OF_STREAM}
    columns = fields["partitioningColumns"]
    names = scala_items(columns.get()) if columns.isDefined() else []
    return rows.sparkSession.createDataFrame([], rows.schema).write.options(**options).partitionBy(*names)


def _options(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of a writer with ``fields``, with their names in lower case."""
    return {name.lower(): value for name, value in scala_pairs(fields["extraOptions"])}
