"""The checks of the arguments that a job's author passes to the driver's API, to stages and to queries. Runs in the Spark driver."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any, NoReturn

from pyspark import RDD
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from airflow_checkpoint_provider.coordinator.assignment import check_allowance
from airflow_checkpoint_provider.errors import InvalidConfig, WrongUse
from airflow_checkpoint_provider.policies import arguments
from airflow_checkpoint_provider.policies.arguments import Check
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.keys import check_job_id, check_uid
from airflow_checkpoint_provider.spark.stages.reuse import INPUTS

ON_SPARK = "pyspark.pandas"
MODELS = "pyspark.ml"
CONNECT = "pyspark.sql.connect"
MOST_GROUPS = 32_768  # key groups, as in Flink


# -- options -------------------------------------------------------------------------------------------------------------


def _session(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, SparkSession) and not _module(value).startswith(CONNECT):
        raise InvalidConfig(f"{name}={value!r} is not a SparkSession: write CheckpointedJob(spark), or leave it out")


def _a_session(name: str, value: Any) -> None:
    if value is None:
        raise InvalidConfig(f"{name}=None is not a SparkSession: write {name}=spark")
    _session(name, value)


def _job_id(name: str, value: Any) -> None:
    if value is not None:
        check_job_id(value)


def _checkpointing(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, CheckpointConfig):
        raise InvalidConfig(f'{name}={value!r}: write {name}=CheckpointConfig(timeout="10 min")')


def _restore(name: str, value: Any) -> None:
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise InvalidConfig(f'{name}={value!r}: write "latest", "none", an id such as 7, or a pointer')


def _uid(name: str, value: Any) -> None:
    check_uid(value)


def _uids(name: str, value: Any) -> None:
    if isinstance(value, str):
        raise WrongUse(f"{name}={value!r} is a text: write {name}=[{value!r}]")
    if not isinstance(value, Collection):
        raise InvalidConfig(f'{name}={value!r} is not a list of uids: write {name}=["..."]')
    for uid in value:
        check_uid(uid)


def _inputs(name: str, value: Any) -> None:
    if value not in INPUTS:
        raise InvalidConfig(f"{name}={value!r} is not one of {', '.join(map(repr, INPUTS))}")


def _not_a_class(name: str, value: Any) -> None:
    if isinstance(value, type):
        raise WrongUse(f"{name} is the class {value.__name__}: give an object of it, {value.__name__}(...)")


def _text(name: str, value: Any) -> None:
    if value is None:
        raise InvalidConfig(f'{name}=None is not text: write {name}="..."')
    arguments.text(name, value)


JOB: dict[str, Check] = {
    "spark": _session,
    "job_id": _job_id,
    "root": arguments.path,
    "checkpointing": _checkpointing,
    "restore": _restore,
    "allow_non_restored_state": lambda name, value: check_allowance(value),
}
STAGE: dict[str, Check] = {"uid": _uid, "version": arguments.text, "inputs": _inputs, "by": arguments.text}
FILES: dict[str, Check] = {
    "uid": _uid,
    "write": lambda name, value: _writes(value),
    "local": arguments.flag,
    "version": arguments.text,
}
KEYED: dict[str, Check] = {
    "uid": _uid,
    "key": lambda name, value: _key(value),
    "schema": lambda name, value: _columns(value),
    "max_parallelism": lambda name, value: _groups(value),
}
UID: dict[str, Check] = {"uid": _uid}
REGISTER: dict[str, Check] = {"uid": _uid, "obj": _not_a_class}
QUERY: dict[str, Check] = {
    "uid": _uid,
    "writer": lambda name, value: check_writer(value),
    "after": _uids,
    "adopt": arguments.path,
    "rescale": arguments.flag,
}
WAIT: dict[str, Check] = {"timeout": arguments.wait}
CHECKPOINT: dict[str, Check] = {"wait": arguments.flag}
OPEN: dict[str, Check] = {"pointer": _text, "spark": _a_session}
SINK: dict[str, Check] = {"path": arguments.path, "format": _text}
BATCH: dict[str, Check] = {"frame": lambda name, value: _batch(value)}


# -- a table by key ------------------------------------------------------------------------------------------------------


def _key(key: Any) -> None:
    """Raise ``InvalidConfig`` unless ``key`` names columns, each once."""
    names = [key] if isinstance(key, str) else key
    if (
        not isinstance(names, Collection)
        or not names
        or not all(isinstance(name, str) and name for name in names)
        or len(set(names)) < len(names)
    ):
        raise InvalidConfig(f'key={key!r} does not name the columns of a key, each once: write key=["carrier"]')


def _columns(schema: Any) -> None:
    if schema is not None and not isinstance(schema, StructType) and not (isinstance(schema, str) and schema.strip()):
        raise InvalidConfig(
            f'schema={schema!r} names no columns: write schema="carrier string, delay bigint", or a StructType'
        )


def _groups(number: Any) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MOST_GROUPS:
        raise InvalidConfig(f"max_parallelism={number!r} is not a number from 1 to {MOST_GROUPS}")


# -- what a folder of files gets ----------------------------------------------------------------------------------------


def _writes(write: Any) -> None:
    """Raise ``WrongUse`` if ``write`` cannot be called with a path."""
    say = "Give a function that takes a path: lambda path: model.write().save(path)"
    if not callable(write):
        raise WrongUse(f"files was given {named(write)}. {say}")
    try:
        inspect.signature(write).bind("path")
    except ValueError:  # nobody knows what it takes
        return
    except TypeError as error:
        raise WrongUse(f"files was given a function that does not take a path ({error}). {say}") from None


# -- what a query writes -------------------------------------------------------------------------------------------------


def check_writer(writer: Any) -> None:
    """Raise ``WrongUse`` unless ``writer`` is a stream's writer that was not started."""
    if isinstance(writer, DataStreamWriter):
        return
    say = (
        'Give the stream\'s writer, not started: start_query("orders", df.writeStream.format(...).option("path", ...))'
    )
    if isinstance(writer, StreamingQuery):
        raise WrongUse(f"start_query was given a query that runs already. Leave out .start(). {say}")
    if isinstance(writer, DataFrameWriter):
        raise WrongUse(f"start_query was given df.write, which writes rows that end. {say}")
    raise WrongUse(f"start_query was given {named(writer)}. {say}")


def _batch(frame: Any) -> None:
    if not isinstance(frame, DataFrame):
        raise WrongUse(
            f"a batch_sink was given {named(frame)}. Give the DataFrame of the batch, then its id: sink(frame, batch_id)"
        )


# -- what a stage stores -------------------------------------------------------------------------------------------------


def check_function(uid: str, function: Any) -> None:
    """Raise ``WrongUse`` if ``function`` cannot be called without arguments."""
    try:
        inspect.signature(function).bind()
    except ValueError:  # nobody knows what it takes
        return
    except TypeError as error:
        raise WrongUse(
            f"stage '{uid}' was given a function that needs arguments ({error}). Give one without: lambda: clean(orders)"
        ) from None


def written_frame(uid: str, source: Any, spark: SparkSession) -> DataFrame:
    """Return the DataFrame that the script writes to a sink. Raises ``WrongUse`` for other values, for streams and other sessions."""
    return given_frame(f"sink '{uid}'", source, spark, f'Give a DataFrame: job.sink("{uid}", ...).write(df)')


def given_frame(name: str, source: Any, spark: SparkSession, advice: str) -> DataFrame:
    """Return the DataFrame that a sink or a frame was given. Raises ``WrongUse`` for other values, for streams and other sessions.

    ``name`` names the receiver in errors, ``advice`` says what to give instead of something that is no DataFrame.
    """
    if not isinstance(source, DataFrame):
        raise WrongUse(f"{name} was given {named(source)}. {advice}")
    if source.isStreaming:
        raise WrongUse(f"{name} was given a streaming DataFrame. It takes rows that end: use start_query for a stream")
    if _is_of_another_session(source, spark):
        raise WrongUse(f"{name} was given a DataFrame of another session. Build it with job.spark")
    return source


def _is_of_another_session(source: DataFrame, spark: SparkSession) -> bool:
    return source.sparkSession is not spark and source.sparkSession._jsparkSession != spark._jsparkSession


def stage_frame(uid: str, source: Any, spark: SparkSession, *, function: bool) -> DataFrame:
    """Return the DataFrame of a stage, which its function may have returned. Raises ``WrongUse`` for other values, and for streams."""
    if not isinstance(source, DataFrame):
        _refuse(uid, source, function)
    if source.isStreaming:
        raise WrongUse(
            f"stage '{uid}' was given a streaming DataFrame. A stage takes rows that end: use start_query, or read with spark.read"
        )
    if _is_of_another_session(source, spark):
        raise WrongUse(
            f"stage '{uid}' was given a DataFrame of another session (newSession()?). Its rows would come back with the time zone and the"
            " views of the job's session. Build it with job.spark, or give that session to CheckpointedJob(...)"
        )
    if not source.columns and _is_command(source):
        raise WrongUse(
            f"stage '{uid}' was given a command, such as an insert. It has run already, and has no rows. Run commands outside of stages"
        )
    return source


def _refuse(uid: str, source: Any, function: bool) -> NoReturn:
    given = f"stage '{uid}': its function returned" if function else f"stage '{uid}' was given"
    advice = "Give a DataFrame, or a function without arguments that returns one"
    origins = {f"{origin.__module__}." for origin in type(source).__mro__}
    if source is None and function:
        advice = "Does it lack a `return`?"
    elif _module(source).startswith(CONNECT):
        advice = "A Spark Connect session cannot be checkpointed. Use a session without remote()"
    elif _module(source).startswith(ON_SPARK):
        advice = "Give frame.to_spark()"
    elif isinstance(source, RDD) or _module(source).partition(".")[0] in ("pandas", "pyarrow", "polars"):
        advice = "Give spark.createDataFrame(...) of it"
    elif any(origin.startswith(f"{MODELS}.") for origin in origins):
        advice = "A model is not rows. Keep its files: job.files(uid, lambda path: fit().write().save(path))"
    elif isinstance(source, DataFrameWriter | DataStreamWriter | StreamingQuery):
        advice = "Give the DataFrame itself"
    raise WrongUse(f"{given} {named(source)}. {advice}")


def _is_command(frame: DataFrame) -> bool:
    plan = frame._jdf.queryExecution().commandExecuted()
    return bool(plan.getClass().getSimpleName() == "CommandResult")


def _module(value: Any) -> str:
    return type(value).__module__


def named(value: Any) -> str:
    """Return the type of a value with its package: ``pandas.DataFrame``."""
    package, name = _module(value).partition(".")[0], type(value).__qualname__
    return repr(value) if value is None else name if package == "builtins" else f"{package}.{name}"
