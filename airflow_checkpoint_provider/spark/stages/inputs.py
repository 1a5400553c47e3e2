"""The files, or the newest version of a table, that Spark has listed when a frame was built. Runs in the Spark driver.

No plan shows them: a folder grows, a table gets versions, and the plan stays the same. Nothing is listed again here, and no job is started:
Spark's relations hold their listings. An input that Spark lists later, or never, cannot be compared; only its name is noted.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.protocol.records import VERSION, Record, added, canonical
from airflow_checkpoint_provider.spark.java_classes import java_class
from airflow_checkpoint_provider.spark.stages.leaves import (
    DELTA,
    ROWS,
    Leaves,
    Readbacks,
    answer,
    class_name,
    nodes,
    root_paths,
)
from airflow_checkpoint_provider.spark.stages.redaction import Hide, redaction
from airflow_checkpoint_provider.storage.base import Store
from airflow_checkpoint_provider.text.units import plural, some

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

INPUTS_FILE = "inputs.json"
LARGEST = 64 * 1024 * 1024  # bytes of a stored list
MOST_FILES = 200_000  # of one input; their list has 25 MB
MOST_NAMES = 5  # in one line
LISTED_FILES = "org.apache.spark.sql.execution.datasources.PartitioningAwareFileIndex"
WITHOUT_INPUT = (*ROWS, "Range", "OneRowRelation", "CTERelationRef", "UnionLoopRef")
LINE = "\n\0"
"""Separates the texts of two files: no path holds it, and a greedy pattern ends before it."""
STATUS = r"(?s)[^\x00]*?\{path=([^\x00]*?); isDirectory=false; length=(\d+);[^\x00]*?modification_time=(\d+);[^\x00]*"
"""The text of a file's status, as Hadoop writes it in every file system. Java's spelling of the expression."""


@dataclass(frozen=True, kw_only=True)
class Input(Record):
    """An input of a plan, as Spark has listed it: ``files``, each as size, time and path, or the ``version`` of a table."""

    name: str
    files: tuple[str, ...] = added(factory=tuple)
    table: str = added("")
    """The id of the table: another one may have the same name, and the same version."""
    version: str = added("")

    def redacted(self, hide: Hide) -> Input:
        """Return the input with its name and paths hidden. One call hides all paths: each call reaches the JVM."""
        files = hide(LINE.join(self.files))
        return replace(self, name=hide(self.name), files=tuple(files.split(LINE)) if files else ())


@dataclass(frozen=True, kw_only=True)
class Listing(Record):
    """The inputs that Spark has listed for one plan, and the names of those that it has not listed.

    Names and paths are without the parts that the session's redaction hides. The digest is of the whole text.
    """

    inputs: tuple[Input, ...] = ()
    unseen: tuple[str, ...] = ()
    digest: str = added("")
    """Equal for equal files and versions; empty if Spark has listed nothing."""

    @property
    def names(self) -> str:
        """Return the names of all inputs for one line."""
        return some(list(dict.fromkeys([*(given.name for given in self.inputs), *self.unseen])), MOST_NAMES)

    def to_bytes(self) -> bytes:
        return canonical({"v": VERSION, **self.to_json()})

    def redacted(self, hide: Hide) -> Listing:
        """Return the listing with its names and paths hidden."""
        inputs = tuple(given.redacted(hide) for given in self.inputs)
        return replace(self, inputs=inputs, unseen=tuple(map(hide, self.unseen)))


def listing(df: DataFrame, readbacks: Readbacks) -> Listing:
    """Return the listing of the plan of ``df``. The stages of this job are left out: their file sets never change."""
    listing = _Lister(Leaves(df.sparkSession, readbacks))
    found = [listing.at(node) for node in nodes(df._jdf.queryExecution().commandExecuted())]
    once = [
        part for number, part in enumerate(found) if part not in found[:number]
    ]  # a self-join reads one input twice
    inputs = tuple(part for part in once if isinstance(part, Input))
    whole = Listing(
        inputs=inputs,
        unseen=tuple(part for part in once if isinstance(part, str)),
        digest=hashlib.sha256(canonical(inputs)).hexdigest() if inputs else "",
    )
    return whole.redacted(redaction(df.sparkSession))


class _Lister:
    """Returns the listed input of a leaf, a name if Spark has listed nothing for it, and None if there is nothing to list."""

    def __init__(self, leaves: Leaves) -> None:
        self.leaves = leaves

    def at(self, node: Any) -> Input | str | None:
        name = class_name(node)
        if name == "LogicalRelation":
            return self.relation(node.relation())
        if name == "DataSourceV2Relation":
            return self.table(node.table())
        if name == "HiveTableRelation":
            return str(node.tableMeta().identifier().unquotedString())
        if name in ("LogicalRDD", "ExternalRDD"):
            return "an RDD or createDataFrame"
        return None if name in WITHOUT_INPUT else name

    def relation(self, relation: Any) -> Input | str | None:
        if not self.leaves.is_of_files(relation):
            return class_name(relation)
        paths, location = root_paths(relation), relation.location()
        if self.leaves.stage(paths):
            return None
        name = some(paths, 1)
        if class_name(location) == DELTA:
            return Input(
                name=name,
                table=location.snapshotAtAnalysis().metadata().id(),
                version=str(location.snapshotAtAnalysis().version()),
            )
        return self.files(name, location)

    def table(self, table: Any) -> Input | str:
        """Return the version of a table; Spark asks for it since 4.1. Tables of Spark's own file formats have files."""
        name = table.name()
        if (location := answer(table, "fileIndex")) is not None:
            return self.files(name, location)
        number, version = answer(table, "id"), answer(table, "version")
        if number is None and version is None:
            return str(name)
        return Input(name=name, table=number or "", version=version or "")

    def files(self, name: str, location: Any) -> Input | str:
        """Return the files that Spark holds; a name if it lists them later, as partitions of a catalog, or if they are too many."""
        if not self.leaves.is_a(LISTED_FILES, location):
            return name
        statuses = location.allFiles()
        if (count := statuses.size()) > MOST_FILES:
            return f"{name} ({count} files, more than {MOST_FILES})"
        files = self.described(statuses) if count else []
        whole = len(files) == count and all(file[0].isdigit() for file in files)
        return Input(name=name, files=tuple(files)) if whole else name

    def described(self, statuses: Any) -> list[str]:
        """Return size, time and path of each file, with few calls of the JVM. A status of another shape is returned as it is."""
        text = java_class(self.leaves.spark, "scala.collection.mutable.StringBuilder")()
        statuses.addString(text, "\0")
        pattern = java_class(self.leaves.spark, "java.util.regex.Pattern").compile(STATUS)
        return sorted(pattern.matcher(text).replaceAll("$2 $3 $1").split("\0"))


# -- what moved --------------------------------------------------------------------------------------------------------


def moved_since_stored(store: Store, key: str, new: Listing) -> str:
    """Return in one line which inputs moved between the listing stored at ``key`` and ``new``, or why they cannot be compared."""
    try:
        body = store.read_range(key, 0, LARGEST + 1)
        return moved(Listing.from_bytes(body, key), new) if body else "the list of what Spark had listed is gone"
    except CheckpointError as error:
        return f"the list of what Spark had listed cannot be read ({error.message})"


def moved(old: Listing, new: Listing) -> str:
    """Return in one line which inputs moved between two listings of one plan."""
    pairs = zip(old.inputs, new.inputs, strict=False)
    return some([_moved(a, b) for a, b in pairs if a != b], MOST_NAMES) or "Spark lists other inputs"


def _moved(old: Input, new: Input) -> str:
    if old.table != new.table:
        return f"{new.name} is another table with the same name"
    if old.version != new.version:
        return f"{new.name} is at version {new.version or 'none'}, and was at {old.version or 'none'}"
    before, after = _by_path(old), _by_path(new)
    counts = {
        "new": len(after.keys() - before.keys()),
        "changed": sum(before[path] != after[path] for path in before.keys() & after.keys()),
        "gone": len(before.keys() - after.keys()),
    }
    told = [f"{plural(count, 'file')} {how}" for how, count in counts.items() if count]
    return f"{' and '.join(told) or 'other files'} in {new.name}"


def _by_path(listed: Input) -> dict[str, str]:
    """Return size and time of each file by its path. A stored line of another shape is only another path."""
    found = {}
    for file in listed.files:
        size, _, rest = file.partition(" ")
        time, _, path = rest.partition(" ")
        found[path] = f"{size} {time}"
    return found
