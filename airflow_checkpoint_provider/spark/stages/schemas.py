"""Which columns a stage can hold, and its schema as JSON that holds no code. Runs in the Spark driver."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    MapType,
    StructType,
    TimeType,
    UserDefinedType,
)

from airflow_checkpoint_provider.errors import UnsupportedType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PICKLED_CLASS = re.compile(r'("serializedClass":)"[^"]*"')


def schema_json(df: DataFrame) -> str:
    """The schema as Spark's JSON, where a Python type of the user's stands by the name of its class alone, without its pickle."""
    return PICKLED_CLASS.sub(r'\1""', df._jdf.schema().json())


def refuse_types(df: DataFrame, uid: str) -> None:
    """Raise ``UnsupportedType`` for what Parquet refuses, or takes and Spark cannot read back, before any work is done."""
    exact = df.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    for trouble in _troubles(df.schema, "", exact):
        raise UnsupportedType(f"stage '{uid}': {trouble}, before the stage", uid=uid)


def _troubles(held: DataType, path: str, exact: bool) -> Iterator[str]:
    match held:
        case TimeType() | CalendarIntervalType():
            yield f"column `{path}` is {_name(held)}, which Parquet files cannot hold: cast it to string, or drop it"
        case StructType():
            yield from _struct_troubles(held, path, exact)
        case ArrayType():
            yield from _troubles(held.elementType, f"{path}[]", exact)
        case MapType():
            yield from _troubles(held.keyType, f"{path}.key", exact)
            yield from _troubles(held.valueType, f"{path}.value", exact)
        case UserDefinedType():
            yield from _troubles(held.sqlType(), path, exact)


def _struct_troubles(struct: StructType, path: str, exact: bool) -> Iterator[str]:
    if not struct.fields:
        what = f"column `{path}` is a struct without fields" if path else "the DataFrame has no columns"
        yield f"{what}, which Parquet files cannot hold: add one, or drop it"
    seen: dict[str, str] = {}
    for field in struct.fields:
        inner = f"{path}.{field.name}" if path else field.name
        name = field.name if exact else field.name.lower()
        if name in seen:
            yield f"columns `{seen[name]}` and `{inner}` have one name to Spark: rename one"
        seen[name] = inner
        yield from _troubles(field.dataType, inner, exact)


def _name(held: DataType) -> str:
    return "a calendar interval" if isinstance(held, CalendarIntervalType) else "of type TIME"
