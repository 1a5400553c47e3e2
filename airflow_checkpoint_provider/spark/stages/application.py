"""The identity of the application: a digest of everything that its author can change. Runs in the Spark driver.

Two attempts with the same digest run the same program. Files that the program reads are not part of it, nor memory, cores or
cluster.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pyspark import SparkFiles

from airflow_checkpoint_provider.errors import WrongUse
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.spark.stages.confs import result_changing
from airflow_checkpoint_provider.spark.stages.imports import ModuleSource, Read, closure
from airflow_checkpoint_provider.spark.stages.installed import (
    archives_elsewhere,
    folders_elsewhere,
    modules_in,
    read_elsewhere,
)
from airflow_checkpoint_provider.spark.stages.jars import jars
from airflow_checkpoint_provider.text import state_messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OUR_ARCHIVE = "airflow_checkpoint_provider*.zip"
MOST_FILES = 2_000
MOST_STORED, SHORT = 100, 8  # parts in the journal, and the letters of the digest of each
LEFT_OUT = {"__pycache__", "site-packages"}


@dataclass(frozen=True)
class Application:
    """The ``digest`` of the program, the digest of each of its ``parts`` by name, and a ``note`` for the log if imports are computed.

    ``not_compared`` names the parts of the program that are not in the digest.
    """

    digest: str
    parts: dict[str, str]
    note: str | None = None
    not_compared: tuple[str, ...] = ()

    @classmethod
    def of(cls, parts: Mapping[str, bytes], note: str | None = None, not_compared: Sequence[str] = ()) -> Application:
        """Return the application that consists of ``parts``."""
        digests = {name: hashlib.sha256(content).hexdigest() for name, content in parts.items()}
        return cls(hashlib.sha256(canonical(digests)).hexdigest(), digests, note, tuple(not_compared))

    @property
    def stored_parts(self) -> dict[str, str]:
        """Return short digests of the parts for the journal, which is bounded: nothing if there are too many."""
        if len(self.parts) > MOST_STORED:
            return {}
        return {name: content[:SHORT] for name, content in self.parts.items()}


def digest(spark: SparkSession, script: Path | None, arguments: Sequence[str]) -> Application:
    """Return the digest of main script, the modules that it imports, jars, arguments, Spark's version and confs.

    Modules lie in the script's folder, in ``--py-files``, or elsewhere where nothing is installed. If an import is computed, all
    modules of the first two count.
    Only confs that change results count. Without a script, each call returns another digest.
    """
    if script is None:
        return Application.of({"the program": secrets.token_bytes(32)}, state_messages.no_file())
    script = script.resolve()
    body = script.read_bytes()
    archives, missing = _py_files(spark)
    package = _package(script)
    root = script.parents[len(package)]
    sources = [ModuleSource("", _reader(root, script)), *map(_source, archives), _elsewhere(spark)]
    imported = closure(body, ".".join(package), sources)
    modules, note = imported.modules, None
    found_jars, not_compared = jars(spark)
    if imported.computed:
        executors = _executor_path(spark)
        not_compared += [f"modules below {folder}" for folder in folders_elsewhere(root, executors)]
        for archive in (*archives, *archives_elsewhere(executors)):
            modules |= _members(archive, modules)
        beside, note = _modules_beside(script, imported.computed)
        modules |= {name: path.read_bytes() for name, path in beside.items()}
    confs = {f"the conf {name}": value.encode() for name, value in result_changing(spark).items()}
    rest = {"the arguments": canonical(list(arguments)), "the version of Spark": spark.version.encode(), **confs}
    parts = {**missing, **modules, **found_jars, "the script": body, **rest}
    return Application.of(parts, note, not_compared)


def _package(script: Path) -> tuple[str, ...]:
    """Return the package of a script that was started with ``python -m``, as folders above it; empty for other scripts."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    folders = tuple(spec.parent.split(".")) if spec and spec.parent else ()
    return folders if script.parts[-len(folders) - 1 : -1] == folders else ()


def _reader(folder: Path, script: Path) -> Read:
    def read(name: str) -> bytes | None:
        path = folder / name
        return path.read_bytes() if path.is_file() and path != script else None

    return read


def _elsewhere(spark: SparkSession) -> ModuleSource:
    """Return the modules that Python finds in other folders: ``PYTHONPATH``, also that of executors, and editable installations."""
    folders = _executor_path(spark)
    return ModuleSource("", lambda name: read_elsewhere(name, folders))


def _executor_path(spark: SparkSession) -> list[str]:
    folders = (spark.sparkContext._conf.get("spark.executorEnv.PYTHONPATH") or "").split(os.pathsep)
    return list(filter(None, folders))


def _py_files(spark: SparkSession) -> tuple[list[tuple[str, dict[str, bytes]]], dict[str, bytes]]:
    """Return the modules in each ``--py-files`` entry but the archive of this package, and the entries that are not there.

    A module file is an entry with an empty name: it is imported from no folder.
    """
    found: list[tuple[str, dict[str, bytes]]] = []
    missing: dict[str, bytes] = {}
    entries = spark.sparkContext._conf.get("spark.submit.pyFiles", "") or ""
    for entry in filter(None, entries.split(",")):
        path = Path(urlsplit(entry).path)
        if fnmatch(path.name, OUR_ARCHIVE):
            continue
        local = next((place for place in (path, Path(SparkFiles.get(path.name))) if place.is_file()), None)
        if local is None:
            missing[path.name] = entry.encode()
        elif zipfile.is_zipfile(local):
            found.append((path.name, modules_in(local)))
        else:
            found.append(("", {path.name: local.read_bytes()}))
    return found, missing


def _source(py_file: tuple[str, dict[str, bytes]]) -> ModuleSource:
    name, members = py_file
    return ModuleSource(f"{name}/" if name else "", members.get)


def _members(archive: tuple[str, dict[str, bytes]], before: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the modules of an archive by their names in logs. Another archive of the same name adds to what came ``before``."""
    name, members = archive
    named = {f"{name}/{member}".strip("/"): body for member, body in members.items()}
    return {
        member: body if before.get(member, body) == body else before[member] + body for member, body in named.items()
    }


def _modules_beside(script: Path, computed: str) -> tuple[dict[str, Path], str]:
    """Return the modules below the script's folder by their relative names, none if there are too many, and the note about it."""
    modules: dict[str, Path] = {}
    for folder, below, files in os.walk(script.parent):
        below[:] = [name for name in below if not name.startswith(".") and name not in LEFT_OUT]
        for path in (Path(folder, name) for name in files if name.endswith(".py")):
            if path != script and path.is_file():
                modules[str(path.relative_to(script.parent))] = path
        if len(modules) > MOST_FILES:
            return {}, state_messages.too_many_modules(computed, MOST_FILES, str(script.parent))
    return modules, state_messages.computed_imports(computed, str(script.parent))


def refuse_connect(spark: SparkSession) -> None:
    """Raise ``WrongUse`` for a Spark Connect session: its driver is elsewhere, and could not be fenced."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise WrongUse(
            "a Spark Connect session cannot be checkpointed, because its driver is elsewhere. Use a session without remote()"
        )
