"""A Delta table: which batches of a query it has, and what they wrote. Runs in the Spark driver.

Each commit of a table is a file of its log, ``_delta_log/00000000000000000012.json``, with an action in each line. A query writes a batch
in one commit, with the action ``txn``: its own id and the number of the batch. Delta 4.4 skips a batch whose number is not greater than the
newest one of the query's id. It refuses a commit if another driver was faster with the same id.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from airflow_checkpoint_provider.location.files import NOTHING
from airflow_checkpoint_provider.location.foreign import loads, long, readable
from airflow_checkpoint_provider.protocol.file_records import File
from airflow_checkpoint_provider.protocol.query_details import DELTA, delta_commit
from airflow_checkpoint_provider.protocol.records import cut
from airflow_checkpoint_provider.spark.java_classes import hadoop_path, java_class, read_text, scala_none
from airflow_checkpoint_provider.spark.queries.sinks.sink_log import logged, spelled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.readwriter import DataFrameWriter


ONE_DRIVER = "S3SingleDriverLogStore"


@dataclass(frozen=True)
class Commit:
    """One commit of a table: its number, the batches that it holds by the ids of their queries, and the files that it adds.

    ``restored_to``: the version to which it took the table back, -1 if it does not name one; None if it is no restore. ``note`` is what
    its writer has noted (``userMetadata``). ``at_ms``: when it was made, since 1970; None if it does not say.
    """

    version: int
    batches: Mapping[str, int]
    files: tuple[File, ...]
    restored_to: int | None = None
    note: str = ""
    at_ms: int | None = None


@dataclass(frozen=True)
class DeltaOffset:
    """How far a source has read the table with the id ``table``: of the commit ``version``, the files up to ``index``.

    A negative ``index`` means none of them. With ``initial``, the files are those of the whole table at that commit.
    """

    table: str
    version: int
    index: int
    initial: bool

    @classmethod
    def parse(cls, offset: str) -> DeltaOffset:
        """Return it from an offset, as Delta 4.4 writes it. Raises ``Damaged``."""
        with readable(f"the offset {cut(offset)} of a source", "Delta"):
            parsed: dict[str, Any] = loads(offset)
            version, index = long(parsed["reservoirVersion"]), long(parsed["index"])
            return cls(str(parsed["reservoirId"]), version, index, bool(parsed["isStartingVersion"]))

    @property
    def touched(self) -> int:
        """Return the number after the last commit of which rows were read."""
        return self.version if self.index < 0 else self.version + 1


class DeltaTable:
    """The Delta table at ``path``, which may not be there yet."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        session: Any = spark._jsparkSession
        self._spark = spark
        self._conf = session.sessionState().newHadoopConf()
        self.folder = spelled(spark, path)
        self._table: Any = java_class(spark, "org.apache.spark.sql.delta.DeltaLog").forTable(session, self.folder)

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Return the id of the table, which is another one if it is made anew."""
        return str(self._snapshot().metadata().id())

    @property
    def version(self) -> int:
        """Return the number of its newest commit, -1 if there is no table."""
        return int(self._snapshot().version())

    @property
    def schema(self) -> StructType:
        """Return the schema of the table, which exists."""
        return StructType.fromJson(loads(self._snapshot().schema().json()))

    @property
    def one_driver_only(self) -> bool:
        """Return whether Delta's class that writes commits cannot tell two drivers apart."""
        return str(self._table.store().getClass().getSimpleName()) == ONE_DRIVER

    def newest_batch(self, query_id: str) -> int:
        """Return the newest batch of a query that the table has, -1 if it has none."""
        batch = self._snapshot().transactions().get(query_id)
        return int(batch.get()) if batch.isDefined() else NOTHING

    def logged_batch(self, query_id: str) -> int:
        """Return the newest batch of a query in the commits that the log still has, -1 if there is none. Reads all of them."""
        return max((commit.batches.get(query_id, NOTHING) for commit in self.commits(0)), default=NOTHING)

    def _snapshot(self) -> Any:
        """Return what is in the table now, as Delta's own object."""
        nothing = scala_none(self._spark)
        return self._table.update(False, nothing, nothing)

    def is_empty(self) -> bool:
        """Return whether a reader finds no file, or there is no table."""
        return self.version == NOTHING or int(self._snapshot().numOfFiles()) == 0

    def first_logged(self, first: int) -> int | None:
        """Return the first commit from ``first`` on that the log still has; None if it has none."""
        found = self._table.getChangeLogFiles(first, scala_none(self._spark), False)
        return int(found.next()._1()) if found.hasNext() else None

    def remembers_since(self) -> float:
        """Return when the oldest commit was made that the log still has, in seconds since 1970; 0 if it has all."""
        first = self.first_logged(0)
        if not first:
            return 0.0
        oldest = self._commit(first)
        return oldest.at_ms / 1000 if oldest and oldest.at_ms is not None else math.inf

    def files_gone(self, version: int) -> list[str] | None:
        """Return the files of the table at ``version`` that it does not hold any more; None if the log does not say which they were."""
        nothing = scala_none(self._spark)
        try:
            then = self._table.getSnapshotAt(version, nothing, nothing, False)
            old, now = (DataFrame(at.allFiles().toDF(), self._spark).select("path") for at in (then, self._snapshot()))
            return [str(row.path) for row in old.subtract(now).collect()]
        except Py4JJavaError:
            return None

    def uri(self, file: str) -> str:
        """Return the path of a file that a commit names, encoded as in a URI."""
        whole = file.startswith("/") or ":/" in file  # a clone of a table names the files of the original
        return file if whole else f"{logged(hadoop_path(self._spark, self.folder))}/{file}"

    def commits(self, first: int, last: int | None = None) -> Iterator[Commit]:
        """Yield the commits from the newest to ``first``, as far as the log still has them. Raises ``Damaged``."""
        for version in range(self.version if last is None else last, first - 1, -1):
            commit = self._commit(version)
            if commit is None:
                return
            yield commit

    def version_of(self, query_id: str, batch: int) -> int | None:
        """Return the commit that wrote a batch of a query; None if the log does not have it any more. Raises ``Damaged``."""
        for commit in self.commits(0):
            written = commit.batches.get(query_id, batch + 1)
            if written <= batch:
                return commit.version if written == batch else None
        return None

    def first_of(self, query_id: str) -> Commit | None:
        """Return the first commit of a query that the log still has; None if there is none. Raises ``Damaged``."""
        own = (commit for commit in self.commits(0) if query_id in commit.batches)
        return min(own, key=lambda commit: commit.version, default=None)

    def _commit(self, version: int) -> Commit | None:
        path = hadoop_path(self._spark, self.folder, delta_commit(version))
        files = path.getFileSystem(self._conf)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            text = read_text(self._spark, stream)
        finally:
            stream.close()
        return commit_in(text, version, str(path))

    # -- changing ----------------------------------------------------------------------------------------------------

    def mark(self, query_id: str, batch: int, no_rows: DataFrameWriter) -> None:
        """Let the table count the batches of a query up to ``batch``. Makes the table if it is not there. May be repeated."""
        writer = no_rows.format(DELTA).mode("append").options(txnAppId=query_id, txnVersion=str(batch))
        writer.save(self.folder)


def not_taken_out(commits: Iterable[Commit]) -> Iterator[Commit]:
    """Yield the commits that no later restore has taken out, a restore too. ``commits``: the newest first, without a gap."""
    kept = math.inf
    for commit in commits:
        if commit.version <= kept:
            kept = kept if commit.restored_to is None else commit.restored_to
            yield commit


def commit_in(text: str, version: int, what: str) -> Commit:
    """Return the commit in a file of a table's log. Raises ``Damaged``, naming ``what``."""
    with readable(what, "Delta"):
        actions: list[dict[str, Any]] = [loads(line) for line in text.split("\n") if line]
        batches = {str(each["txn"]["appId"]): long(each["txn"]["version"]) for each in actions if "txn" in each}
        added = [each["add"] for each in actions if "add" in each]
        about: dict[str, Any] = next((each["commitInfo"] for each in actions if "commitInfo" in each), {})
        files = tuple(_file(file) for file in added if file["dataChange"])
        note, at = str(about.get("userMetadata") or ""), about.get("timestamp")
        return Commit(version, batches, files, _restored_to(about), note, None if at is None else long(at))


def _file(added: dict[str, Any]) -> File:
    if (size := long(added["size"])) < 0:
        raise ValueError("a file has a size below zero")
    return File(name=str(added["path"]), bytes=size, rows=0)


def _restored_to(about: Mapping[str, Any]) -> int | None:
    if about.get("operation") != "RESTORE":
        return None
    version = about.get("operationParameters", {}).get("version")  # None if a moment was named instead
    return NOTHING if version is None else long(version)
