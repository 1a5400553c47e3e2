"""The parts of a frame by a column of its source, and the proof that Spark reads only the files of one. Runs in the Spark driver.

The values come from the folders of the source, so nothing is read. A part is the frame with a filter on the column. That is cheap only if
Spark takes the filter for one of the folders: else each part would read all files. So the plan of one part is looked at.
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import DataType, DateType, IntegralType, StringType

from airflow_checkpoint_provider.errors import NotInParts
from airflow_checkpoint_provider.spark.java_classes import (
    dataframe_of,
    frame_of,
    java_class,
    scala_items,
    scala_none,
    scala_seq,
)
from airflow_checkpoint_provider.spark.sql_names import quoted
from airflow_checkpoint_provider.spark.stages.leaves import Leaves, class_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SCAN, CONDITIONS = "FileSourceScanExec", ("EqualTo", "IsNull")
INSTEAD = "give the stage a function for each value: job.stage(uid, lambda value: ..., parts=[...])"


def column_values(uid: str, df: DataFrame, by: str) -> list[Any]:
    """Return the values of a partition column of the frame's source as JSON, null first; a null alone if the source has no folder.

    Raises ``NotInParts`` if ``by`` is no such column.
    """
    relation = _source(uid, df, by)
    schema, location = relation.partitionSchema(), relation.location()
    spark = df.sparkSession
    nothing = scala_seq(spark, [])
    folders = location.listFiles(nothing, nothing)
    rows = scala_seq(spark, (folder.values() for folder in scala_items(folders)))
    attributes = java_class(spark, "org.apache.spark.sql.catalyst.types.DataTypeUtils").toAttributes(schema)
    table = java_class(spark, "org.apache.spark.sql.catalyst.plans.logical.LocalRelation")(
        attributes, rows, False, scala_none(spark)
    )
    found = {_as_json(row[0]) for row in dataframe_of(spark, frame_of(spark, table)).select(_plain(df, by)).collect()}
    values = sorted(found - {None})
    return [None, *values] if None in found or not values else values


def _as_json(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value


def part_of(df: DataFrame, by: str, value: Any) -> DataFrame:
    """Return the rows of one part. ``value`` is one of ``column_values``."""
    column, literal = _plain(df, by), F.lit(value)
    if isinstance(df.schema[by].dataType, DateType):
        literal = literal.cast("date")
    return df.where(column.isNull() if value is None else column == literal)


def refuse_unpruned(uid: str, df: DataFrame, by: str, value: Any) -> None:
    """Raise ``NotInParts`` unless Spark reads only the files of one part, as the plan of the part with ``value`` shows."""
    without, part = df._jdf.queryExecution().sparkPlan(), part_of(df, by, value)._jdf.queryExecution()
    if _conditions(part.sparkPlan()) - _conditions(without):
        return
    top = part.optimizedPlan()
    below = class_name(top.child()) if class_name(top) == "Filter" else class_name(top)
    raise NotInParts(
        f"stage '{uid}' cannot be computed by=\"{by}\": Spark does not move a filter on it below {below}, so each part would read all"
        f" files. Do what {below} does after this stage, or {INSTEAD}",
        operator=below,
    )


def _conditions(plan: Any) -> set[str]:
    """Return the conditions by which a plan's scans leave out folders."""
    scans = [leaf for leaf in scala_items(plan.collectLeaves()) if class_name(leaf) == SCAN]
    found = [condition for scan in scans for condition in scala_items(scan.partitionFilters())]
    return {condition.toString() for condition in found if class_name(condition) in CONDITIONS}


def _source(uid: str, df: DataFrame, by: str) -> Any:
    """Return the relation of files of which ``by`` is a partition column, unchanged up to the frame."""
    plan = df._jdf.queryExecution().commandExecuted()
    first, *others = scala_items(plan.collectLeaves())
    if others or class_name(first) != "LogicalRelation":
        raise _no_column(uid, by, f"its plan reads {class_name(first)}, not one folder or table of files")
    relation = first.relation()
    if not Leaves(df.sparkSession, {}).is_of_files(relation):
        raise _no_column(uid, by, f"its plan reads {class_name(relation)}, not a folder or a table of files")
    names = list(relation.partitionSchema().fieldNames())
    ids = {_id(field): field.name() for field in scala_items(first.output()) if field.name() in names}
    given = [_id(field) for field in scala_items(plan.output()) if field.name() == by]
    if len(given) != 1 or ids.get(given[0]) != by:
        columns = ", ".join(names) or "none"
        raise _no_column(uid, by, f"it is not a partition column of the source, unchanged (the source has {columns})")
    return relation


def _no_column(uid: str, by: str, why: str) -> NotInParts:
    return NotInParts(f"stage '{uid}' cannot be computed by=\"{by}\": {why}. Name a partition column, or {INSTEAD}")


def _plain(df: DataFrame, by: str) -> Column:
    """Return the column as text, unless Python has its values exactly. Text of a time zone's doubled hour is one part."""
    column = F.col(quoted(by))
    return column if _is_exact(df.schema[by].dataType) else column.cast("string")


def _is_exact(kind: DataType) -> bool:
    return kind == StringType() or isinstance(kind, IntegralType | DateType)


def _id(attribute: Any) -> int:
    return int(attribute.exprId().id())
