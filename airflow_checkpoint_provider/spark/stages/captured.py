"""The values that the Python functions of a plan have captured: by closures, globals of the script, defaults. Runs in the Spark driver.

No text of a plan shows them. PySpark has pickled them for its workers. The pickle of this driver's own function is read here without running
anything: each class and function in it is replaced by a stand-in. Plain values have a digest, and of other objects only the names are told.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.spark.java_classes import java_class, scala_items
from airflow_checkpoint_provider.spark.stages.installed import is_installed
from airflow_checkpoint_provider.spark.stages.leaves import every_node
from airflow_checkpoint_provider.spark.stages.redaction import is_secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAIN = (bool, int, float, complex, str, bytes, type(None))
VALUES = {
    *(("datetime", name) for name in ("date", "datetime", "time", "timedelta", "timezone")),
    *(("numpy", "dtype"), ("numpy.core.multiarray", "scalar"), ("numpy._core.multiarray", "scalar")),
    *(("decimal", "Decimal"), ("functools", "partial")),
}
"""The classes whose objects are values: their arguments say all."""
UNKNOWN = "an object"
PICKLER = "pyspark.cloudpickle"
"""Makes functions, modules and classes; they are code, and the application has a digest of it."""


@dataclass(frozen=True)
class Captured:
    """Digests of plain values by name, and other objects as the log names them."""

    values: dict[str, str] = field(default_factory=dict)
    objects: tuple[str, ...] = ()


class _StandIn:
    """Stands for an object of a class, or for the result of a function, that was not called."""

    module = name = ""

    def __new__(cls, *args: Any, **_: Any) -> _StandIn:
        made = super().__new__(cls)
        made.args = args
        return made

    args: tuple[Any, ...]

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *args: Any) -> _StandIn:
        return type(self)(*args)

    def __setstate__(self, state: Any) -> None:
        self.args = (*self.args, state)

    def append(self, item: Any) -> None:
        self.args = (*self.args, item)

    def __setitem__(self, key: Any, item: Any) -> None:
        self.args = (*self.args, key, item)


class _Inspector(pickle.Unpickler):
    """Reads a pickle with stand-ins for all classes and functions. ``made`` holds the functions whose state the pickle sets."""

    def __init__(self, command: bytes) -> None:
        super().__init__(io.BytesIO(command))
        self.made: list[tuple[_StandIn, dict[str, Any]]] = []

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith(PICKLER) and name == "_function_setstate":
            return lambda function, state: self.made.append((function, state[1]))
        return type(name, (_StandIn,), {"module": module, "name": name})


def captured(spark: SparkSession, plan: Any) -> Captured:
    """Return what the Python functions of a plan have captured. No digest of a secret is stored: it may be short, and change in each try."""
    values: dict[str, set[str]] = {}
    objects: set[str] = set()
    secret = is_secret(spark)
    for command in dict.fromkeys(_commands(spark, plan)):
        for name, value in _captured_by(command):
            if (text := _text(value)) is None or (text and secret(name)):
                objects.add(name)
            elif text:
                values.setdefault(name, set()).add(text)
    digests = {
        name: hashlib.sha256("\0".join(sorted(texts)).encode()).hexdigest()[:16] for name, texts in values.items()
    }
    return Captured(dict(sorted(digests.items())), tuple(f"{name} of a Python function" for name in sorted(objects)))


def _commands(spark: SparkSession, plan: Any) -> Iterator[bytes]:
    """Yield the pickles of the functions of a plan."""
    pattern = java_class(spark, "org.apache.spark.sql.catalyst.trees.TreePattern").PYTHON_UDF()
    byte = java_class(spark, "scala.reflect.ClassTag").Byte()
    waiting = [expression for node in every_node(plan) for expression in scala_items(node.expressions())]
    while waiting:
        expression = waiting.pop()
        if expression.containsPattern(pattern):
            waiting += scala_items(expression.children())
            if expression.getClass().getSimpleName() in ("PythonUDF", "PythonUDAF"):
                yield bytes(expression.func().command().toArray(byte))


def _captured_by(command: bytes) -> Iterable[tuple[str, Any]]:
    """Yield name and value of what the functions of one pickle have captured."""
    try:
        return _found(_Inspector(command))
    except Exception:  # noqa: BLE001  # another shape can fail anywhere, and the stage must go on
        return [(UNKNOWN, _StandIn())]


def _found(inspector: _Inspector) -> list[tuple[str, Any]]:
    whole = inspector.load()
    function = whole[0] if isinstance(whole, tuple) else whole
    found = [] if _is_code(function) else [(UNKNOWN, function)]
    for made, state in inspector.made:
        held = list(_held(made, state))
        # What a library holds may differ in each driver: a folder of its own, for example
        found += [(state["__module__"], _StandIn())] if held and is_installed(state["__module__"]) else held
    return found


def _held(function: _StandIn, state: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    code = function.args[0]
    cells = (cell.args[0] if cell.args else None for cell in state["__closure__"] or ())
    yield from zip(code.args[-2], cells, strict=False)  # the code has the names of its free variables there
    yield from state["__globals__"].items()
    yield from ((f"default {i}", value) for i, value in enumerate(state["__defaults__"] or (), start=1))
    yield from (state["__kwdefaults__"] or {}).items()


def _is_code(value: Any) -> bool:
    return isinstance(value, type) or (isinstance(value, _StandIn) and value.module.startswith(PICKLER))


def _text(value: Any) -> str | None:
    """Return a text that is equal for equal values; empty for code, and None for an object that is not plain."""
    if _is_code(value):
        return ""
    if isinstance(value, _StandIn) and (value.module, value.name) not in VALUES:
        return None
    if isinstance(value, PLAIN):
        return f"{type(value).__name__} {value!r}"
    items = value.args if isinstance(value, _StandIn) else value.items() if isinstance(value, dict) else value
    texts = [_text(item) for item in items]
    if None in texts:
        return None
    kept = [text for text in texts if text is not None]
    return f"{type(value).__name__} {sorted(kept) if isinstance(value, set | frozenset) else kept}"
