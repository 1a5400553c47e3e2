"""The identity of the application: a digest of everything that its author can change. Runs in the Spark driver.

Two attempts with the same digest run the same program. Files that the program reads are not part of it, nor memory, cores or
cluster.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pyspark import SparkFiles

from airflow_checkpoint_provider.errors import VersionMismatch, WrongUse
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.spark.stages.confs import result_changing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OUR_ARCHIVE = "airflow_checkpoint_provider*.zip"
MOST_FILES = 2_000
LEFT_OUT = {"__pycache__", "site-packages"}
RELEASE = re.compile(r"\d+\.\d+\.\d+")


@dataclass(frozen=True)
class Application:
    """The ``digest`` of the program, the number of ``files`` in it, and a ``note`` for the log if the digest leaves modules out."""

    digest: str
    files: int
    note: str | None


def digest(spark: SparkSession, script: Path, arguments: Sequence[str]) -> Application:
    """Return the digest of main script, ``--py-files``, modules beside the script, arguments, Spark's version and confs.

    Only confs that change results count.
    """
    sources = {f"py-file {name}": content for name, content in _py_files(spark)}
    modules = _modules(script.resolve())
    note = None
    if modules is None:
        note = (
            f"more than {MOST_FILES} Python files lie below {script.resolve().parent}, so only the script and --py-files count as the"
            " application. A change of another module is not seen: keep the script in a folder of its own"
        )
    sources |= {f"module {name}": path.read_bytes() for name, path in (modules or {}).items()}
    sources["script"] = script.read_bytes()
    content = {name: hashlib.sha256(body).hexdigest() for name, body in sources.items()}
    rest = [list(arguments), spark.version, result_changing(spark)]
    return Application(hashlib.sha256(canonical([content, rest])).hexdigest(), len(content), note)


def _py_files(spark: SparkSession) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each ``--py-files`` entry but the archive of this package."""
    entries = spark.sparkContext.getConf().get("spark.submit.pyFiles", "") or ""
    for entry in filter(None, entries.split(",")):
        path = Path(urlsplit(entry).path)
        if fnmatch(path.name, OUR_ARCHIVE):
            continue
        local = next((place for place in (path, Path(SparkFiles.get(path.name))) if place.is_file()), None)
        yield path.name, _content(local) if local else entry.encode()


def _content(path: Path) -> bytes:
    """Return the bytes of a file. For an archive, return a digest of each member: packing the same files again changes nothing."""
    if not zipfile.is_zipfile(path):
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        return canonical({name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()})


def _modules(script: Path) -> dict[str, Path] | None:
    """Return the modules below the script's folder by their relative names; None if there are more than ``MOST_FILES``."""
    modules: dict[str, Path] = {}
    for folder, below, files in os.walk(script.parent):
        below[:] = [name for name in below if not name.startswith(".") and name not in LEFT_OUT]
        for path in (Path(folder, name) for name in files if name.endswith(".py")):
            if path != script and path.is_file():
                modules[str(path.relative_to(script.parent))] = path
        if len(modules) > MOST_FILES:
            return None
    return modules


def refuse_connect(spark: SparkSession) -> None:
    """Raise ``WrongUse`` for a Spark Connect session: its driver is elsewhere, and could not be fenced."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise WrongUse(
            "a Spark Connect session cannot be checkpointed, because its driver is elsewhere. Use a session without remote()"
        )


def check_versions(spark: SparkSession) -> None:
    """Raise ``VersionMismatch`` unless installed packages, imported package and JVM are one release of Spark."""
    _refuse_mixed(_versions(spark))


def _versions(spark: SparkSession) -> dict[str, str]:
    import pyspark

    versions = {"the JVM": spark.version, "pyspark as imported": pyspark.__version__}
    for package in ("pyspark", "pyspark-client"):  # both own the same files: the later installation overwrites them
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[f"{package} as installed"] = importlib.metadata.version(package)
    return versions


def _refuse_mixed(versions: Mapping[str, str]) -> None:
    releases = {match[0] if (match := RELEASE.match(version)) else version for version in versions.values()}
    if len(releases) > 1:
        listed = ", ".join(f"{label} {version}" for label, version in versions.items())
        raise VersionMismatch(
            f"this driver has several versions of Spark: {listed}. Install the same version of all of them"
        )
