"""Refuse writes of a script through PySpark, during a preflight. Runs in the Spark driver.

A call that is neither known to read nor to build raises, so that a release of Spark with more calls writes nothing, too. Of a text of SQL,
Spark's own parser says which statement it is.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from importlib import import_module
from types import FrameType
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.sql_formatter import SQLStringFormatter

from airflow_checkpoint_provider.errors import WriteRefused
from airflow_checkpoint_provider.protocol.preflight import PREFLIGHT_VARIABLE

OWN = f"{__name__.rpartition('.')[0]}.queries."  # the modules of this package that start queries, on copies
REFUSING = "_refuses_writes"  # the mark of a function that replaces one of Spark's
LONGEST = 120  # characters of a statement or a line of the script in an error

_OPTIONS = ("option", "options", "clusterBy")
BUILD_OR_READ: dict[str, tuple[str, ...]] = {
    "pyspark.sql.readwriter.DataFrameWriter": (*_OPTIONS, "mode", "format", "partitionBy", "bucketBy", "sortBy"),
    "pyspark.sql.readwriter.DataFrameWriterV2": (*_OPTIONS, "using", "tableProperty", "partitionedBy"),
    "pyspark.sql.merge.MergeIntoWriter": ("when", "When", "withSchemaEvolution"),
    "pyspark.sql.streaming.readwriter.DataStreamWriter": (
        *(*_OPTIONS, "outputMode", "format", "partitionBy", "queryName", "trigger", "foreach", "foreachBatch"),
    ),
    "pyspark.sql.catalog.Catalog": (
        *("list", "get", "current", "setCurrent", "is", "cache", "uncache", "clearCache", "refresh", "registerFunction"),
        *("tableExists", "databaseExists", "functionExists", "dropTempView", "dropGlobalTempView"),
    ),
    "delta.tables.DeltaTable": (
        *("alias", "toDF", "history", "detail", "for", "isDeltaTable", "merge", "optimize", "create", "replace", "columnBuilder"),
    ),
    "delta.tables.DeltaMergeBuilder": ("when", "withSchemaEvolution"),
    "delta.tables.DeltaOptimizeBuilder": ("where",),
    "delta.tables.DeltaTableBuilder": (
        *("tableName", "location", "comment", "addColumn", "partitionedBy", "clusterBy", "property", "dataType"),
    ),
}  # fmt: skip
"""Names, or beginnings of names, of the calls of a class that write nothing. All other calls are refused."""

WRITE: dict[str, tuple[str, ...]] = {
    "pyspark.sql.classic.dataframe.DataFrame": ("foreach",),
    "pyspark.core.rdd.RDD": ("foreach", "saveAs"),
    "pyspark.ml.util.MLWriter": ("save",),
    "pyspark.ml.util.JavaMLWriter": ("save",),
    "pyspark.mllib.util.Saveable": ("save",),
    "pyspark.mllib.util.JavaSaveable": ("save",),
}
"""The beginnings of the names of refused calls. All other calls of the class are allowed."""

SESSION_COMMANDS = (
    *("Show", "Describe"),
    *("SetCommand", "ResetCommand", "SetVariable", "CreateVariable", "DropVariable"),
    *("SetCatalogCommand", "SetNamespaceCommand", "SetCatalogAndNamespace"),
    *("CreateViewCommand", "CreateTempViewUsing"),  # a view that stays is a `CreateView`
    *("CacheTable", "CacheTableAsSelect", "UncacheTable", "ClearCacheCommand"),
)  # fmt: skip
"""Spark's names, or beginnings of names, of the statements that change nothing but the session."""


def refuse_writes() -> None:
    """Let each call of PySpark that writes raise ``WriteRefused``, in all sessions of this process. A second call changes nothing."""
    for owner, name, call in writing_calls():
        if not hasattr(call, REFUSING):
            setattr(owner, name, _refusing(f"{owner.__name__}.{name}", call))
    if not hasattr(SparkSession.sql, REFUSING):
        SparkSession.sql = _reading(SparkSession.sql)  # type: ignore[method-assign]  # on purpose


def writing_calls() -> Iterator[tuple[type, str, Callable[..., Any]]]:
    """Yield the refused calls: class, name and function."""
    for owner, begins in _classes(BUILD_OR_READ):
        yield from ((owner, name, call) for name, call in _calls(owner) if not name.startswith(begins))
    for owner, begins in _classes(WRITE):
        yield from ((owner, name, call) for name, call in _calls(owner) if name.startswith(begins))


def _classes(names: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[type, tuple[str, ...]]]:
    """Yield the classes that this driver has: pyspark.ml needs NumPy, and Delta is a package of its own."""
    for name, begins in names.items():
        module, _, own = name.rpartition(".")
        with contextlib.suppress(ImportError, AttributeError):
            yield getattr(import_module(module), own), begins


def _calls(owner: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    names = (name for name in dir(owner) if not name.startswith("_"))
    return ((name, call) for name in names if callable(call := getattr(owner, name)) and not isinstance(call, type))


def _refusing(title: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that replaces ``call``: it raises, unless a query is compared."""

    @wraps(call)
    def refusing(*args: Any, **options: Any) -> Any:
        if (script := _script()) is None:
            return call(*args, **options)
        raise _refused(script, title)

    setattr(refusing, REFUSING, True)
    return refusing


def _reading(sql: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that replaces ``SparkSession.sql``: it runs queries, and statements that change nothing but the session."""

    @wraps(sql)
    def reading(spark: SparkSession, sqlQuery: str, args: Any = None, **kwargs: Any) -> Any:  # noqa: N803 - Spark's own name
        if (script := _script()) is not None and not _changes_nothing(spark, sqlQuery, bool(args), kwargs):
            raise _refused(script, f"sql({' '.join(sqlQuery.split())[:LONGEST]!r})")
        return sql(spark, sqlQuery, args, **kwargs)

    setattr(reading, REFUSING, True)
    return reading


def _changes_nothing(spark: SparkSession, text: str, has_args: bool, kwargs: Mapping[str, Any]) -> bool:
    formatter = SQLStringFormatter(spark)
    try:
        text = formatter.format(text, **kwargs) if kwargs else text
        return _statement(spark, text).startswith(SESSION_COMMANDS) or _is_query(spark, text)
    except (Py4JError, PySparkException):
        if has_args:  # some places take a parameter only once it has its value
            return False
        raise
    finally:
        formatter.clear()


def _is_query(spark: SparkSession, text: str) -> bool:
    """Return whether a statement is a query: only a query can be described as one."""
    with contextlib.suppress(Py4JError, PySparkException):
        return _statement(spark, f"DESCRIBE QUERY {text}") == "DescribeQueryCommand"
    return False


def _statement(spark: SparkSession, text: str) -> str:
    """Return Spark's name of a statement. Raises the errors of its parser."""
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(text)
    return str(plan.getClass().getSimpleName())


def _script() -> FrameType | None:
    """Return the frame that calls Spark; None if a module that compares queries calls it."""
    frame: FrameType | None = sys._getframe(2)
    while frame and _module(frame).partition(".")[0] in ("pyspark", "py4j", "delta"):
        frame = frame.f_back
    return None if frame and _module(frame).startswith(OWN) else frame or sys._getframe(2)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _refused(script: FrameType, call: str) -> WriteRefused:
    file, line = script.f_code.co_filename, script.f_lineno
    text = linecache.getline(file, line).strip()[:LONGEST]
    return WriteRefused(
        f"{file}, line {line}: {text or call}: {call} may write, and this is a preflight ({PREFLIGHT_VARIABLE} is set). Nothing was"
        " written. Put the line after the start of the last query: a preflight ends there"
    )
