"""Stored schemas that try to run code where they are read. ``python -m`` tries them with any release of PySpark, without a session."""

from __future__ import annotations

import base64
import json
import os
import pickle
import secrets
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.spark.stages.schemas import stored_schema, unmarked

SCRIPT = "script_of_the_job"
ABSENT = "module_that_nobody_imported"
NAMES = [
    f"{ABSENT}.Anything",
    f"{ABSENT}",  # PySpark takes all but the last letter for the module
    f"{SCRIPT}.NoSuch",
    f"{SCRIPT}.drop_all",
    f"{SCRIPT}.Plain",
    f"{SCRIPT}.called",
    f"{SCRIPT}.lazy",
    "os.NoSuch",
    "os.getcwd",
    "pyspark.NoSuch",
    "pyspark.shell.SparkSession",
    "pyspark.sql.types.UserDefinedType",
    "pyspark.ml.linalg.NoSuch",
    "pyspark.ml.linalg.Vectors",
    "sys.exit",
    ".",
    "",
]
"""What ``pyClass`` says. ``os``, ``sys`` and ``SCRIPT`` are imported, and have no type of a column."""


class Marker:
    """An object whose pickle creates a folder where it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return tempfile.mkdtemp, ("", self.path.name, str(self.path.parent))


def stored(kind: object) -> str:
    """Return the schema of a table with one column, as it is stored."""
    return json.dumps({"type": "struct", "fields": [{"name": "id", "type": kind, "nullable": True, "metadata": {}}]})


def user_type(name: str, mark: Path) -> dict[str, Any]:
    """Return a type of a column whose pickle creates ``mark``."""
    pickled = base64.b64encode(pickle.dumps(Marker(mark))).decode()
    return {"type": "udt", "pyClass": name, "serializedClass": pickled, "sqlType": "long"}


def nested(kind: object) -> list[object]:
    """Return the types in which a type of a column can stand, and itself."""
    return [
        kind,
        {"type": "array", "elementType": kind, "containsNull": True},
        {"type": "map", "keyType": "string", "valueType": kind, "valueContainsNull": True},
        json.loads(stored(kind)),
    ]


def planted(folder: Path) -> list[str]:
    """Return schemas that would create something in ``folder``, which joins the path on which Python looks for modules."""
    (folder / f"{ABSENT}.py").write_text(f"open({str(folder / 'imported')!r}, 'w').close()\n")
    sys.path.insert(0, str(folder))
    sys.modules[SCRIPT] = _script(folder)
    return [stored(kind) for name in NAMES for kind in nested(user_type(name, folder / "unpickled"))]


def _script(folder: Path) -> ModuleType:
    """Return a module whose functions, objects and lazy names create something in ``folder``."""
    module = ModuleType(SCRIPT)

    def drop_all(*_: object) -> None:
        (folder / f"called-{secrets.token_hex(4)}").touch()

    module.drop_all = drop_all  # type: ignore[attr-defined]
    module.called = type("Callable", (), {"__call__": drop_all})()  # type: ignore[attr-defined]
    module.Plain = type("Plain", (), {"__init__": drop_all})  # type: ignore[attr-defined]
    module.__getattr__ = drop_all  # type: ignore[method-assign]
    return module


def ways(schemas: list[str], folder: Path) -> list[str]:
    """Read the schemas. Return what must not happen: something new in ``folder``, a module, an untyped error, a schema that is read."""
    harm: list[str] = []
    before = set(os.listdir(folder))
    for schema in schemas:
        modules = set(sys.modules)
        try:
            unmarked(stored_schema(schema))
            harm.append(f"read: {schema}")
        except CheckpointError:
            pass
        except BaseException as error:  # noqa: BLE001 - SystemExit too
            harm.append(f"{error!r}: {schema}")
        imported = {name for name in sys.modules.keys() - modules if name == ABSENT or name.startswith("pyspark.")}
        made = set(os.listdir(folder)) - before
        before |= made
        harm += [f"{what}: {schema}" for what in sorted(imported | made)]
    return harm


def vectors() -> str:
    """Return how a column of vectors of Spark ML is read, in a process that has not imported them."""
    kind = {"type": "udt", "class": "org.apache.spark.ml.linalg.VectorUDT", "pyClass": "pyspark.ml.linalg.VectorUDT"}
    return stored_schema(stored(kind | {"sqlType": "long"})).fields[0].dataType.__class__.__name__


def main() -> None:
    """Print what happened that must not, as JSON, and then how vectors are read, if NumPy is there."""
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(ways(planted(Path(folder)), Path(folder))))
    if find_spec("numpy"):
        print(vectors())


if __name__ == "__main__":
    main()
