"""The schema of a stage: which columns it can hold, and its JSON, which holds no code. Runs in the Spark driver."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark.sql import types
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, UserDefinedType

from airflow_checkpoint_provider.errors import Damaged, UnsupportedType, WrongUse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NOT_IN_PARQUET = {"CalendarIntervalType": "a calendar interval", "TimeType": "of type TIME"}
"""Types by their names in Python. Spark 4.0 has no TimeType."""

NULLABLE = ("nullable", "containsNull", "valueContainsNull")

BINARY_AS_STRING = "spark.sql.parquet.binaryAsString"
VARIANT = re.compile(r'ype":"variant"')

MARKS = ("__CHAR_VARCHAR_TYPE_STRING", "parquet.field.id")
"""Metadata by which Spark pads, cuts or looks for the values of a column where it reads files, at times in derived DataFrames only."""

SPARKS_CLASSES = {f"pyspark.{part}.linalg.{name}UDT" for part in ("ml", "mllib") for name in ("Matrix", "Vector")}
"""Spark's own Python types of columns. Spark makes such columns also in scripts that do not import them."""

PICKLED_CLASS = re.compile(r'("serializedClass":)"[^"]*"')


def schema_json(df: DataFrame) -> str:
    """Return the schema as Spark's JSON. Of a user's Python type it keeps the name of the class, and drops the pickle."""
    return PICKLED_CLASS.sub(r'\1""', df._jdf.schema().json())


def stored_schema(text: str) -> StructType:
    """Return the schema that ``schema_json`` wrote. This imports no module that the schema names, calls nothing, and reads no pickle.

    PySpark imports any module that a schema names. Old releases also read the pickle, or call what has the name. So PySpark gets
    only names of types that the script has imported. Raises ``WrongUse`` if the script has not imported one, and ``Damaged``.
    """
    try:
        schema = StructType.fromJson(_without_code(json.loads(text)))
        schema.jsonValue()  # an abstract type cannot be given to Spark
    except WrongUse:
        raise
    except Exception as error:  # noqa: BLE001 - PySpark checks little of what it reads
        raise Damaged(f"the stored schema cannot be read: {error!r}; somebody or something changed it") from None
    return schema


def _without_code(node: Any) -> Any:
    """Return a node of Spark's JSON of a schema without pickles. Check the classes that it names. Its metadata names no class."""
    if isinstance(node, list):
        return [_without_code(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "pyClass" in node:
        _check_class(str(node["pyClass"]))
    return {
        name: inner if name == "metadata" else _without_code(inner)
        for name, inner in node.items()
        if name != "serializedClass"
    }


def _check_class(path: str) -> None:
    """Raise ``WrongUse`` if the module of a Python class is not imported, and ``TypeError`` if the class is no type of a column."""
    module, _, name = path.rpartition(".")
    if path in SPARKS_CLASSES:
        import_module(module)
    if module not in sys.modules:
        raise WrongUse(f"the stored rows have a column of type {path}: import it before the stage is read")
    found = vars(sys.modules[module]).get(name)  # getattr would call the module's own __getattr__
    if not (isinstance(found, type) and issubclass(found, UserDefinedType)):
        raise TypeError(f"{path} is no type of a column")


def first_difference(before: str, now: str) -> str:
    """Return in words the first column in which two schemas differ, Spark's JSON both; empty if they have the same names and types."""
    old, new = (
        [(field["name"], _changed(field["type"], MARKS)) for field in json.loads(text)["fields"]]
        for text in (before, now)
    )
    for i, ((name, kind), (other, other_kind)) in enumerate(zip(old, new, strict=False), start=1):
        if name != other:
            return f"column {i} is `{other}`, and was `{name}`"
        if kind != other_kind:
            return f"column `{name}` is {_type_in_words(other_kind)}, and was {_type_in_words(kind)}"
    if len(old) == len(new):
        return ""
    name, what = (old[len(new)][0], "is gone") if len(old) > len(new) else (new[len(old)][0], "is new")
    return f"column `{name}` {what}"


def _type_in_words(node: Any) -> str:
    return node if isinstance(node, str) else json.dumps(node, sort_keys=True)


def marked(schema: StructType) -> StructType:
    """Return ``schema`` with all columns and fields nullable, as Spark reads files."""
    return StructType.fromJson(_changed(schema.jsonValue(), ()))


def unmarked(schema: StructType) -> StructType:
    """Return ``marked(schema)`` without ``MARKS``. Read files with it: they hold the values as they must stay."""
    return StructType.fromJson(_changed(schema.jsonValue(), MARKS))


def _changed(node: Any, dropped: tuple[str, ...]) -> Any:
    """Return a node of Spark's JSON of a schema, all nullable, without the ``dropped`` metadata."""
    if isinstance(node, list):
        return [_changed(item, dropped) for item in node]
    if not isinstance(node, dict):
        return node
    changed = {name: _changed(inner, dropped) for name, inner in node.items() if name != "metadata"}
    changed |= {name: True for name in NULLABLE if name in node}
    if "metadata" in node:
        changed["metadata"] = {name: value for name, value in node["metadata"].items() if name not in dropped}
    return changed


def refuse_types(df: DataFrame, uid: str, what: str = "stage") -> None:
    """Raise ``UnsupportedType``, before any work is done, for columns that Spark cannot write to Parquet or read back."""
    exact = df.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    for problem in _problems(df.schema, "", exact):
        raise UnsupportedType(f"{what} '{uid}': {problem}, before the {what}", uid=uid)
    if df.sparkSession.conf.get(BINARY_AS_STRING) == "true" and VARIANT.search(schema_json(df)):
        raise UnsupportedType(
            f"{what} '{uid}': Spark cannot read a VARIANT back while {BINARY_AS_STRING} is true. Leave that conf out, or use to_json before"
            f" the {what}",
            uid=uid,
        )


def _problems(data_type: DataType, path: str, exact: bool) -> Iterator[str]:
    for name, description in NOT_IN_PARQUET.items():
        if isinstance(data_type, getattr(types, name, ())):
            yield f"column `{path}` is {description}, which Parquet files cannot hold: cast it to string, or drop it"
    match data_type:
        case StructType():
            yield from _struct_problems(data_type, path, exact)
        case ArrayType():
            yield from _problems(data_type.elementType, f"{path}[]", exact)
        case MapType():
            yield from _problems(data_type.keyType, f"{path}.key", exact)
            yield from _problems(data_type.valueType, f"{path}.value", exact)
        case UserDefinedType():
            yield from _problems(data_type.sqlType(), path, exact)


def _struct_problems(struct: StructType, path: str, exact: bool) -> Iterator[str]:
    if not struct.fields:
        problem = f"column `{path}` is a struct without fields" if path else "the DataFrame has no columns"
        yield f"{problem}, which Parquet files cannot hold: add a column, or drop it"
    seen: dict[str, str] = {}
    for field in struct.fields:
        inner = f"{path}.{field.name}" if path else field.name
        name = field.name if exact else field.name.lower()
        if name in seen:
            yield f"columns `{seen[name]}` and `{inner}` have the same name for Spark: rename one of them"
        seen[name] = inner
        yield from _problems(field.dataType, inner, exact)
