"""The log of a file sink: which batches it has, and which files they wrote. Runs in the Spark driver.

Spark 4.2 writes ``_spark_metadata/N`` for each batch: a line ``v1``, and a line of JSON for each file. Every tenth entry is
``N.compact``: it holds the lines of all entries before it. A reader begins with the newest ``.compact``, and needs every entry behind
it. Where the log has two of them, their distance is taken for that of all.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from py4j.protocol import Py4JJavaError

from airflow_checkpoint_provider.coordinator.foreign import HEADER, LONG, NUMBER, loads, logged_lines, readable
from airflow_checkpoint_provider.coordinator.query_location import NOTHING
from airflow_checkpoint_provider.coordinator.sealing import TEMPORARY
from airflow_checkpoint_provider.errors import Damaged, NoObject
from airflow_checkpoint_provider.protocol.records import cut
from airflow_checkpoint_provider.storage.directories import opened, refuse_other

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG, COMPACT = "_spark_metadata", ".compact"
TAIL = 64 * 1024  # bytes of an entry in which its last file is looked for
ENTRY = re.compile(rf"({NUMBER})(?:\.compact)?")
ONE_SLASH = re.compile("^file:/(?=[^/])")
INTERVAL = "spark.sql.streaming.fileSink.log.compactInterval"


@dataclass(frozen=True)
class SinkFile:
    """A file that a sink holds: its ``path``, and its ``line`` in the log."""

    path: str
    line: str

    @classmethod
    def of(cls, status: Any) -> SinkFile:
        """Return a file as the log names it; ``status`` is Hadoop's."""
        path = logged(status.getPath())
        about = {
            "path": path,
            "size": status.getLen(),
            "isDir": False,
            "modificationTime": status.getModificationTime(),
            "blockReplication": status.getReplication(),
            "blockSize": status.getBlockSize(),
            "action": "add",
        }
        return cls(path, json.dumps(about))

    @property
    def bytes(self) -> int:
        """Return its size. Raises ``Damaged``."""
        with readable(f"the entry of {self.path} in the log of a sink"):
            size = loads(self.line)["size"]
            if type(size) is not int or not 0 <= size < LONG:
                raise ValueError("it does not say how large the file is")
            return size


class SinkLog:
    """The log of the file sink that writes to ``path``."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        session: Any = spark._jsparkSession
        self._jvm = jvm
        self._conf = session.sessionState().newHadoopConf()
        self._log = jvm.org.apache.hadoop.fs.Path(path, LOG)
        self._files = self._log.getFileSystem(self._conf)
        self.folder = _in_one_spelling(jvm, self._files, self._log.getParent())
        self._logged = logged(jvm.org.apache.hadoop.fs.Path(self.folder))
        self.interval = int(str(spark.conf.get(INTERVAL, "10")))

    # -- reading -----------------------------------------------------------------------------------------------------

    def newest_batch(self) -> int:
        """Return the newest batch in the log, -1 if it has none."""
        return max(self._entries(), default=NOTHING)

    def newest_file(self, batch: int) -> str | None:
        """Return the newest file of the sink when ``batch`` was written; None if it had none. Raises ``Damaged``."""
        entries = self._entries()
        for number in range(batch, NOTHING, -1):
            last = self._read(self._entry(entries, number), at_most=TAIL)[-1:]
            if last or entries[number].endswith(COMPACT):
                return last[0].path if last else None
        return None

    def files(self) -> list[SinkFile]:
        """Return all files that a reader of the sink sees, the oldest first. Raises ``Damaged``."""
        entries = self._entries()
        compacted = max((number for number, name in entries.items() if name.endswith(COMPACT)), default=0)
        numbers = range(compacted, max(entries, default=NOTHING) + 1)
        return [file for number in numbers for file in self._read(self._entry(entries, number))]

    def written(self, since: int, after: int = NOTHING) -> list[tuple[int, SinkFile]]:
        """Return the files that the entries after ``after`` are the first to name, each with the batch that wrote it. Batches up to
        ``since`` may be reported as one. Raises ``Damaged``.
        """
        entries = self._entries()
        compacted = (number for number, name in entries.items() if name.endswith(COMPACT) and number <= since)
        first = max(compacted, default=min(entries, default=0))
        if first > max(since, after, 0):
            raise Damaged(f"{self._log}/{first - 1} is missing; somebody or something deleted it")
        found: dict[str, tuple[int, SinkFile]] = {}
        for number in range(max(first, after + 1), max(entries, default=NOTHING) + 1):
            for file in self._read(self._entry(entries, number)):
                found.setdefault(file.path, (number, file))
        return list(found.values())

    def _entries(self) -> dict[int, str]:
        return entries_among(self._listed())

    def _listed(self) -> list[str]:
        there = self._files.listStatus(self._log) if self._files.exists(self._log) else []
        return [str(status.getPath().getName()) for status in there]

    def _entry(self, entries: dict[int, str], number: int) -> str:
        if number not in entries:
            raise Damaged(f"{self._log}/{number} is missing; somebody or something deleted it")
        return entries[number]

    def _read(self, entry: str, at_most: int | None = None) -> list[SinkFile]:
        """Return the files that an entry names; with ``at_most``, those in its last bytes."""
        path = self._jvm.org.apache.hadoop.fs.Path(self._log, entry)
        stream = self._files.open(path)
        try:
            behind = max(self._files.getFileStatus(path).getLen() - at_most, 0) if at_most else 0
            stream.seek(behind)
            text = str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()
        return files_in(text, str(path), whole=not behind)

    # -- changing ----------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Delete temporary entries: an older driver may be about to rename one over an entry of ours."""
        for name in self._listed():
            if name.startswith(".") and name.endswith(TEMPORARY):
                self._files.delete(self._jvm.org.apache.hadoop.fs.Path(self._log, name), False)

    def fill_up(self, up_to: int, files: Sequence[SinkFile] = ()) -> None:
        """Put entries for the batches up to ``up_to`` that the sink does not have. Only the last one names ``files``: until it is
        there, the sink counts as empty.

        A query may come to a new path in its middle, or leave out a batch. But Spark reads and compacts only a log without gaps.
        """
        newest = self.newest_batch()
        if newest >= up_to:
            return
        compacted = (up_to + 1) // self.interval * self.interval - 1
        if compacted > newest:
            there = self.files()
            self.keep([*there, *(files if compacted == up_to else ())], compacted, there)
            newest = compacted
        for batch in range(newest + 1, up_to + 1):
            self._put(str(batch), files if batch == up_to else ())

    def keep(self, files: Sequence[SinkFile], batch: int, before: Sequence[SinkFile] | None = None) -> None:
        """Let the log end with ``batch``, and hold just ``files``. ``batch`` is one that is compacted.

        The entry before it is written, too: of an older one, Spark would take the distance for that of all. It holds ``before``, or the
        same.
        """
        if batch >= self.interval:
            self._put(f"{batch - self.interval}{COMPACT}", files if before is None else before)
        self._put(f"{batch}{COMPACT}", files)

    def _put(self, entry: str, files: Iterable[SinkFile]) -> None:
        """Write an entry as Spark does, unless it is there."""
        path = self._jvm.org.apache.hadoop.fs.Path(self._log, entry)
        if self._files.exists(path):
            return
        checkpointing = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing
        self._files.mkdirs(self._log)
        stream = checkpointing.CheckpointFileManager.create(self._log, self._conf).createAtomic(path, True)
        stream.write("\n".join((HEADER, *(file.line for file in files))).encode())
        stream.close()

    def delete(self, files: Iterable[SinkFile]) -> None:
        """Delete files that the log names no more. Raises ``Damaged`` for a path outside the sink; nothing is deleted then."""
        doomed = [(self._path(file.path), self._names(file.path)) for file in files]
        for _, names in doomed:
            self._refuse_link(names)
        for path, _ in doomed:
            self._files.delete(path, False)

    def below(self, file: SinkFile) -> str:
        """Return the path of a file below the sink, encoded as in the log. Raises ``Damaged`` if that is not a data file of the sink."""
        self._names(file.path)
        return quote(logged(self._path(file.path)).removeprefix(f"{self._logged}/"), safe=string.punctuation)

    def at(self, below: str) -> Any:
        """Return the path of what ``below`` returned. Raises ``Damaged`` if that is not a data file of the sink, or lies behind a link."""
        path = f"{self._logged}/{below}"
        self._refuse_link(self._names(path))
        return self._path(path)

    def _names(self, path: str) -> Sequence[str]:
        """Return the names below the sink that lead to a file. Raises ``Damaged`` if they lead out of it, or to what is no data.

        They are decoded: ``%2e%2e`` leads out as well, and ``%5fspark_metadata`` is the log.
        """
        there, names = decoded(path)
        own, above = walked(self.folder)
        below = names[len(above) :]
        outside = there != own or names[: len(above)] != above or not below
        if outside or below[0] == LOG or any(name.startswith(".") for name in below):
            raise Damaged(
                f"{path!r} is no data file of the sink {self.folder}, and the log there or the checkpoint names it; somebody changed one of them."
                " Nothing was done with that file"
            )
        return below

    def _refuse_link(self, names: Sequence[str]) -> None:
        """Raise ``Damaged`` for a file of a local sink that lies behind a link, which may lead anywhere."""
        (scheme, _), above = walked(self.folder)
        if scheme != "file":
            return
        folder = "/" + "/".join(above)
        try:
            with suppress(OSError), opened(folder, names[:-1]) as handle:  # of what is absent, Hadoop says so
                refuse_other(names[-1], handle, "/".join((folder, *names)))
        except NoObject as error:
            raise Damaged(f"{error.message}. Nothing was done with that file of the sink {self.folder}") from None

    def copy_out(self, below: str, uri: str) -> None:
        """Copy a data file of the sink, which may replace an earlier copy. Raises ``Damaged``."""
        self._copy(self.at(below), self._jvm.org.apache.hadoop.fs.Path(uri))

    def copy_in(self, uri: str, below: str) -> SinkFile:
        """Copy a file into the sink, which may replace an earlier copy. Return it as the log names it. Raises ``Damaged``."""
        target = self.at(below)
        self._copy(self._jvm.org.apache.hadoop.fs.Path(uri), target)
        return SinkFile.of(self._files.getFileStatus(target))

    def _copy(self, source: Any, target: Any) -> None:
        copy, conf = self._jvm.org.apache.hadoop.fs.FileUtil.copy, self._conf
        copy(source.getFileSystem(conf), source, target.getFileSystem(conf), target, False, True, conf)

    def _path(self, encoded: str) -> Any:
        """Return a path that the log or a checkpoint names. Raises ``Damaged`` if it is none."""
        try:
            return self._jvm.org.apache.hadoop.fs.Path(self._jvm.java.net.URI(encoded))
        except Py4JJavaError as error:
            why = cut(str(error.java_exception.getMessage()))
            raise Damaged(
                f"the log of the sink {self.folder}, or a checkpoint, names what is no path ({why}); somebody changed it"
            ) from None


def entries_among(names: Iterable[str]) -> dict[int, str]:
    """Return the entries of a log by their numbers; other names mean nothing to Spark. Where a number has two, it is the compacted one."""
    return {int(match[1]): match[0] for match in map(ENTRY.fullmatch, sorted(names)) if match}


def files_in(text: str, what: str, *, whole: bool = True) -> list[SinkFile]:
    """Return the files that an entry names; if it is not ``whole``, its first line is a part of one. Raises ``Damaged``, naming ``what``."""
    with readable(what):
        lines = logged_lines(text) if whole else text.split("\n")[1:]
        return [SinkFile(str(loads(line)["path"]), line) for line in lines if line]


def _in_one_spelling(jvm: Any, files: Any, path: Any) -> str:
    """Return a path in one spelling: Spark's log begins with ``file:///``, and the author may write ``file:/`` or leave it out."""
    uri = files.makeQualified(path).toUri()
    return str(jvm.org.apache.hadoop.fs.Path(uri.getScheme(), uri.getAuthority(), uri.getPath()))


def walked(uri: str) -> tuple[tuple[str, str], tuple[str, ...]]:
    """Return scheme and host of a URI that is not encoded, and the names in its path. Hadoop writes one slash behind ``file:``, or three."""
    scheme, _, rest = uri.partition(":")
    host, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest)
    return (scheme.lower(), host), tuple(name for name in path.split("/") if name)


def decoded(path: str) -> tuple[tuple[str, str], tuple[str, ...]]:
    """Return what ``walked`` returns for a path that is encoded, as in Spark's logs. No such path has a query or a fragment, which would
    hide what Hadoop reads: then it is nowhere.
    """
    return walked(unquote(path) if {"?", "#"}.isdisjoint(path) else "")


def place(spark: SparkSession, path: str) -> str:
    """Return the path of a source or a sink as ``SinkLog.folder`` is spelled."""
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    folder = jvm.org.apache.hadoop.fs.Path(path)
    return _in_one_spelling(jvm, folder.getFileSystem(session.sessionState().newHadoopConf()), folder)


def logged(path: Any) -> str:
    """Return a path as Spark's logs spell it: encoded, and with three slashes behind ``file:``. A source takes another one for new."""
    return ONE_SLASH.sub("file:///", str(path.toUri()))
