"""The values that the Python functions of a plan have captured: by closures, globals of the script, defaults. Runs in the Spark driver.

No text of a plan shows them. PySpark has pickled them for its workers, and ``pickled.py`` reads the pickle of this driver's own function.
Plain values have a digest, and of other objects only the names are told.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.spark.java_classes import java_class, scala_items
from airflow_checkpoint_provider.spark.stages.pickled import Inspector, StandIn, Texts, code_name, is_of_library
from airflow_checkpoint_provider.spark.stages.redaction import is_secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNKNOWN = "an object"
WHOLE = "a captured function"
"""The name for the functions and classes of one pickle, each with what it holds: so values do not change places."""


@dataclass(frozen=True)
class Captured:
    """Digests of plain values by name, and other objects as the log names them."""

    values: dict[str, str] = field(default_factory=dict)
    objects: tuple[str, ...] = ()


def captured(spark: SparkSession, plan: Any) -> Captured:
    """Return what the Python functions of a plan have captured. No digest of a secret is stored: it may be short, and change in each try."""
    secret = is_secret(spark)
    read = cache(lambda command: sorted(captured_by(command, secret), key=repr))
    values: dict[str, list[str]] = {}
    objects: set[str] = set()
    for number, command in enumerate(_commands(spark, plan)):
        for name, text in read(command):
            if text is None:
                objects.add(name)
            else:  # two functions may have a variable of one name, and change values with each other
                values.setdefault(name, []).append(f"{number} {text}")
    digests = {name: hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16] for name, texts in values.items()}
    return Captured(dict(sorted(digests.items())), tuple(f"{name} of a Python function" for name in sorted(objects)))


def digest_of(values: Mapping[str, str]) -> str:
    """Return one digest of the values of a plan; empty if it has none."""
    return hashlib.sha256(canonical(dict(values))).hexdigest()[:16] if values else ""


def changed(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return the names of the values that differ."""
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return [name for name in names if name != WHOLE] or names


def _commands(spark: SparkSession, plan: Any) -> Iterator[bytes]:
    """Yield the pickles of the functions of a plan, in its order; one as often as the plan has it."""
    pattern = java_class(spark, "org.apache.spark.sql.catalyst.trees.TreePattern").PYTHON_UDF()
    byte = java_class(spark, "scala.reflect.ClassTag").Byte()
    for node in _holding(pattern, [plan, *scala_items(plan.subqueriesAll())]):
        for expression in _holding(pattern, scala_items(node.expressions())):
            if expression.getClass().getSimpleName() in ("PythonUDF", "PythonUDAF"):
                yield bytes(expression.func().command().toArray(byte))


def _holding(pattern: Any, trees: list[Any]) -> Iterator[Any]:
    """Yield the nodes in which, or below which, the pattern occurs. Each node is a question to the JVM."""
    waiting = list(reversed(trees))
    while waiting:
        node = waiting.pop()
        if node.containsPattern(pattern):
            waiting += scala_items(node.children())
            yield node


def captured_by(command: bytes, secret: Callable[[str], bool]) -> Iterator[tuple[str, str | None]]:
    """Yield name and text of what the functions of one pickle have captured; no text of a secret and of an object that is not plain."""
    inspector, texts = Inspector(command), Texts(secret)
    try:
        found = list(_found(inspector))
    except Exception:  # noqa: BLE001  # another shape can fail anywhere, and the stage must go on
        found = [(UNKNOWN, StandIn())]
    for name, value in found:
        yield name, texts.under(name, value)


def _found(inspector: Inspector) -> Iterator[tuple[str, Any]]:
    whole = inspector.load()
    function = whole[0] if isinstance(whole, tuple) else whole
    if code_name(function):
        yield WHOLE, function
    else:
        yield function.name if function.plain else UNKNOWN, function
    for holder in inspector.holders:
        if is_of_library(holder):
            yield from [(holder.module, StandIn())] if any(holder.held()) else []
        else:
            yield from ((name, value) for name, value in holder.held() if not code_name(value))
