"""The inputs of a plan's leaves: paths, options, rows of the driver, file sets of this job. Runs in the Spark driver."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError

from airflow_checkpoint_provider.spark.java_classes import java_class, scala_items
from airflow_checkpoint_provider.spark.stages.redaction import is_secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Readbacks = Mapping[str, tuple[str, str]]
"""Directory URI of a file set of this job -> (uid of its stage or folder, path of the file set)."""

FILES = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"
DELTA = "TahoeLogFileIndex"
"""The class of a Delta table in a plan: Delta's only class that knows the version."""
PATHS = ("path", "paths")
"""The options of a source of files that its leaf shows as paths."""
KNOWN = ("org.apache.spark.", "org.apache.iceberg.", "io.delta.")
"""The sources whose plans show what they read."""
ROWS = {"LocalRelation": "data", "Transpose": "data", "CommandResult": "rows"}


class Leaves:
    """Describes the inputs of a plan's leaves, as small JSON objects in the plan's order."""

    def __init__(self, spark: SparkSession, readbacks: Readbacks) -> None:
        self.spark = spark
        self.readbacks = {_plain(uri): stage for uri, stage in readbacks.items()}

    def all(self, plan: Any) -> Iterable[dict[str, Any]]:
        return map(self.leaf, nodes(plan))

    def leaf(self, node: Any) -> dict[str, Any]:
        name = class_name(node)
        if name == "LogicalRelation":
            return self.relation(node.relation())
        if name == "DataSourceV2Relation":
            table = node.table()
            code = {"code": True} if class_name(table) == "PythonTable" else self.code_of(table)
            shown = PATHS if answer(table, "fileIndex") is not None else ()
            options = self.options(dict(node.options()), shown)
            return {"leaf": name, "table": table.name(), **options, **_version_of_table(node), **code}
        if name in ROWS:
            # The text of a row would show arrays of bytes by their identity; the text of an unsafe one is its bytes
            unsafe = java_class(self.spark, "org.apache.spark.sql.catalyst.expressions.UnsafeProjection")
            rows = getattr(node, ROWS[name])().iterator().map(unsafe.create(node.schema()))
            return {"leaf": name, "rows": _sha(rows.mkString(";"))}
        return {"leaf": name}

    def relation(self, relation: Any) -> dict[str, Any]:
        name = class_name(relation)
        if self.is_of_files(relation):
            paths = root_paths(relation)
            return self.stage(paths) or {
                "leaf": class_name(relation.fileFormat()),
                "paths": paths,
                **self.options(mapping(relation.options()), PATHS),
                **_version_of_files(relation.location()),
                **self.code_of(relation.fileFormat()),
            }
        if name == "JDBCRelation":
            parts = [part.toString() for part in relation.parts()]
            return {"leaf": name, **self.options(mapping(relation.jdbcOptions().parameters()), (), *parts)}
        # The tree shows its text, and nothing shows its options: the servers of Kafka, for example
        return {"leaf": name, "code": True}

    def options(self, options: dict[str, str], shown: Collection[str], *more: str) -> dict[str, Any]:
        """Return the names of a source's options, and one digest of their values. Secrets do not count: they may differ in each attempt.

        :param shown: the options that the leaf shows in another place. :param more: what counts as a value, too.
        """
        secret = is_secret(self.spark)
        left_out = {"password", *shown}
        counted = {name: value for name, value in options.items() if name.lower() not in left_out and not secret(name)}
        values = [f"{name}={value}" for name, value in sorted(counted.items())]
        return {"options": sorted(counted), "values": _sha(*values, *more)} if values or more else {}

    def code_of(self, java_object: Any) -> dict[str, Any]:
        """Return the mark of a source whose class the job brings: what it reads, no plan shows."""
        return {} if java_object.getClass().getName().startswith(KNOWN) else {"code": True}

    def is_of_files(self, relation: Any) -> bool:
        """Return whether a relation reads files by paths. The relation of a Delta table is a nameless subclass of Spark's."""
        return self.is_a(FILES, relation)

    def is_a(self, name: str, java_object: Any) -> bool:
        """Return whether an object is of this Java class, or of one below it."""
        return bool(java_class(self.spark, "py4j.reflection.TypeUtil").isInstanceOf(name, java_object))

    def stage(self, paths: list[str]) -> dict[str, Any] | None:
        """Return the stage, or the folder, that holds these paths; None if none does. Its file set counts, not the directory where it lies."""
        found = [self._within(_plain(path)) for path in paths]
        stages = {stage for stage, _ in found}
        if len(stages) != 1 or (stage := stages.pop()) is None:
            return None
        return {"leaf": "stage", "uid": stage[0], "file_set": stage[1], "files": _sha(*(name for _, name in found))}

    def _within(self, path: str) -> tuple[tuple[str, str] | None, str]:
        """Return the file set that holds a path, and the path below it."""
        above, below = path, ""
        while above:
            if stage := self.readbacks.get(above):
                return stage, below
            above, _, name = above.rpartition("/")
            below = f"{name}/{below}" if below else name
        return None, path


def mapping(scala: Any) -> dict[str, str]:
    """Return a map of texts. Asks the JVM once, not for each entry."""
    pairs = (pair.partition(" -> ") for pair in filter(None, scala.mkString("\0").split("\0")))
    return {name: value for name, _, value in pairs}


def nodes(plan: Any) -> Iterator[Any]:
    """Yield the leaves of a plan and of its subqueries."""
    for root in (plan, *scala_items(plan.subqueriesAll())):
        yield from scala_items(root.collectLeaves())


def every_node(plan: Any) -> Iterator[Any]:
    """Yield the nodes of a plan and of its subqueries."""
    waiting = [plan, *scala_items(plan.subqueriesAll())]
    while waiting:
        node = waiting.pop()
        waiting += scala_items(node.children())
        yield node


def computed_columns(plan: Any) -> Iterator[str]:
    """Yield the names of the columns that the nodes of a plan give out; not those of its leaves, which name what is read."""
    for node in every_node(plan):
        if node.children().nonEmpty() and (columns := node.output().mkString("\0")):
            yield from (column.rpartition("#")[0] for column in columns.split("\0"))


def root_paths(relation: Any) -> list[str]:
    """Return the paths that a relation of files was given, sorted."""
    return sorted(relation.location().rootPaths().mkString("\n").split("\n"))


def _version_of_files(location: Any) -> dict[str, str]:
    """Return the version of a Delta table that the script names. Delta has resolved it, and no path or option shows it any more."""
    if class_name(location) != DELTA or not location.isTimeTravelQuery():
        return {}
    return {"version": f"version {location.snapshotAtAnalysis().version()}"}


def _version_of_table(node: Any) -> dict[str, str]:
    """Return the version of a table that the script names: number, time, tag or branch."""
    table, spec, identifier = node.table(), answer(node, "timeTravelSpec"), node.identifier()
    named = [
        answer(table, "branch"),
        identifier.get().name() if identifier.isDefined() else None,
    ]  # `rows.tag_x` of Iceberg
    if spec is None:  # before Spark 4.1; since then Iceberg has the newest snapshot there, too
        named.append(answer(table, "snapshotId"))
    elif spec.isDefined():
        named.append(spec.get())
    return {"version": ", ".join(str(part) for part in named if part is not None)}


def answer(java_object: Any, method: str) -> Any:
    """Call a method and return its result; None if the object does not have it, as in older releases and other tables."""
    try:
        return getattr(java_object, method)()
    except Py4JJavaError:
        raise
    except Py4JError:
        return None


def class_name(java_object: Any) -> str:
    """Return the class of a Java object without its package."""
    found = java_object.getClass()
    return str(found.getSimpleName() or found.getName().rpartition(".")[2])  # a nameless class has no simple name


def _plain(uri: str) -> str:
    """Return the URI in Hadoop's spelling: ``file:///a`` and ``file:/a`` are the same directory."""
    return re.sub("^file:/+", "file:/", uri).rstrip("/")


def _sha(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
