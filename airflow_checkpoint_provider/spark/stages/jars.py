"""The jars that the job brings: they count as the application, by their content. Runs in the Spark driver.

The content of a jar is the names, sizes and checksums in its directory, which lies at its end: a jar of any size is read in
milliseconds, and the same classes packed again are the same jar. Spark's own jars, and those that a cluster gives to every job without
a conf, do not count.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.spark.java_classes import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLASS_PATHS = ("spark.driver.extraClassPath", "spark.executor.extraClassPath")


def jars(spark: SparkSession) -> tuple[dict[str, bytes], list[str]]:
    """Return the identities of the job's jars by their names, and the names of those that cannot be read here."""
    conf, loaded = spark.sparkContext._conf, _loaded(spark)
    found: dict[str, bytes] = {}
    unread: list[str] = []
    for uri in filter(None, (conf.get("spark.jars") or "").split(",")):
        name = Path(urlsplit(uri).path).name
        path = next(filter(Path.is_file, filter(None, (_local(uri), loaded.get(name)))), None)
        found[name] = found.get(name, b"") + (_content(path) if path else name.encode())
        if path is None:
            unread.append(f"the jar {name}")
    if packages := conf.get("spark.jars.packages"):
        found["the conf spark.jars.packages"] = packages.encode()
    for name in CLASS_PATHS:
        if entries := conf.get(name):
            found[f"the conf {name}"] = canonical([_entry(entry) for entry in entries.split(os.pathsep)])
    return found, unread


def added_jars(spark: SparkSession) -> list[str]:
    """Return the names of the jars that the script itself has added: their content does not count."""
    given = {Path(urlsplit(uri).path).name for uri in (spark.sparkContext._conf.get("spark.jars") or "").split(",")}
    listed: str = spark.sparkContext._jsc.sc().listJars().mkString(",")
    names = {Path(urlsplit(uri).path).name for uri in filter(None, listed.split(","))}
    return sorted(f"the jar {name}" for name in names - given)


def _loaded(spark: SparkSession) -> dict[str, Path]:
    """Return the files from which the driver loads classes: also Spark's copies of jars that lie elsewhere."""
    loader = java_class(spark, "java.lang.Thread").currentThread().getContextClassLoader()
    if not hasattr(loader, "getURLs"):
        return {}
    paths = filter(None, (_local(url.toString()) for url in loader.getURLs()))
    return {path.name: path for path in paths}


def _local(uri: str) -> Path | None:
    """Return the path of a URI of this host."""
    parts = urlsplit(uri)
    return Path(unquote(parts.path)) if parts.scheme in ("", "file", "local") else None


def _entry(entry: str) -> str:
    """Return an entry of a class path and the content of its jars; of a folder of classes, that of each file."""
    path = Path(entry)
    files = sorted(path.parent.glob("*.[jJ][aA][rR]")) if path.name == "*" else sorted(_below(path))
    return " ".join([entry, *(f"{file.name} {_content(file).decode()}" for file in files)])


def _below(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    for folder, _, names in os.walk(path):
        yield from (Path(folder, name) for name in names)


def _content(path: Path) -> bytes:
    """Return a digest of the members of a jar, or of the bytes of another file."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [[member.filename, member.file_size, member.CRC] for member in archive.infolist()]
        return hashlib.sha256(canonical(sorted(members))).hexdigest().encode()
    except zipfile.BadZipFile:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest().encode()
