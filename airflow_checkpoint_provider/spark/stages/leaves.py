"""What the leaves of a plan read: paths, options, rows of the driver, file sets of this job. Runs in the Spark driver."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

Readbacks = Mapping[str, tuple[str, str]]
"""Directory URI of a file set of this job -> (uid of its stage, path of the file set)."""

ROWS = {"LocalRelation": "data", "Transpose": "data", "CommandResult": "rows"}


class Leaves:
    """Describes what the leaves of a plan read, as small JSON objects in the plan's order."""

    def __init__(self, jvm: Any, readbacks: Readbacks) -> None:
        self.jvm = jvm
        self.readbacks = {_plain(uri): stage for uri, stage in readbacks.items()}

    def all(self, plan: Any) -> Iterable[dict[str, Any]]:
        below = plan.subqueriesAll()
        for root in (plan, *(below.apply(i) for i in range(below.size()))):
            leaves = root.collectLeaves()
            for i in range(leaves.size()):
                yield self.leaf(leaves.apply(i))

    def leaf(self, node: Any) -> dict[str, Any]:
        name = _class(node)
        if name == "LogicalRelation":
            return self.relation(node.relation())
        if name == "DataSourceV2Relation":
            python = {"python": True} if _class(node.table()) == "PythonTable" else {}
            return {"leaf": name, "table": node.table().name(), **_options(dict(node.options())), **python}
        if name in ROWS:
            return {"leaf": name, "rows": _sha(getattr(node, ROWS[name])().mkString(";"))}
        return {"leaf": name}

    def relation(self, relation: Any) -> dict[str, Any]:
        name = _class(relation)
        if name == "HadoopFsRelation":
            paths = sorted(relation.location().rootPaths().mkString("\n").split("\n"))
            return self.stage(paths) or {
                "leaf": _class(relation.fileFormat()),
                "paths": paths,
                **_options(self.mapping(relation.options())),
            }
        if name == "JDBCRelation":
            parts = [part.toString() for part in relation.parts()]
            return {"leaf": name, **_options(self.mapping(relation.jdbcOptions().parameters()), *parts)}
        return {"leaf": name}  # the tree shows its text

    def stage(self, paths: list[str]) -> dict[str, Any] | None:
        """Return the stage that wrote these files; None if it was none. Its file set counts, not the directory where it lies."""
        stages = {self.readbacks.get(_plain(path.rpartition("/")[0])) for path in paths}
        if len(stages) != 1 or (stage := stages.pop()) is None:
            return None
        return {
            "leaf": "stage",
            "uid": stage[0],
            "file_set": stage[1],
            "files": _sha(*(path.rpartition("/")[2] for path in paths)),
        }

    def mapping(self, scala: Any) -> dict[str, str]:
        return dict(self.jvm.scala.jdk.javaapi.CollectionConverters.asJava(scala))


def _options(options: dict[str, str], *more: str) -> dict[str, Any]:
    """Return the names of a source's options, and one digest of their values, which may be secrets. User and password do not count."""
    shown = {
        name: value for name, value in options.items() if name.lower() not in ("path", "paths", "user", "password")
    }
    values = [f"{name}={value}" for name, value in sorted(shown.items())]
    return {"options": sorted(shown), "values": _sha(*values, *more)} if values or more else {}


def _class(java_object: Any) -> str:
    name: str = java_object.getClass().getSimpleName()
    return name


def _plain(uri: str) -> str:
    """Return the URI in Hadoop's spelling: ``file:///a`` and ``file:/a`` are the same directory."""
    return re.sub("^file:/+", "file:/", uri).rstrip("/")


def _sha(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
