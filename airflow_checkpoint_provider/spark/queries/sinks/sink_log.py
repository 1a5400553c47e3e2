"""The folder of a file sink as Hadoop reaches it, and the log in it. Runs in the Spark driver."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyspark
from py4j.protocol import Py4JJavaError

from airflow_checkpoint_provider.errors import Damaged, NoObject
from airflow_checkpoint_provider.file_sink.log import INTERVAL, FileSinkLog, SinkFile, refuse_other_size, walked
from airflow_checkpoint_provider.spark.java_classes import hadoop_path, java_class, path_of_uri, read_text
from airflow_checkpoint_provider.spark.versions import minor_release
from airflow_checkpoint_provider.storage.directories import opened, refuse_other

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ONE_SLASH = re.compile("^file:/(?=[^/])")
ABSENT = "java.io.FileNotFoundException"
COMPACTS_EVERY = "spark.sql.streaming.fileSink.log.compactInterval"


class HadoopFolder:
    """The folder ``path`` of a file sink, in any file system that Spark reaches."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark, self._conf = spark, _hadoop_conf(spark)
        folder = hadoop_path(spark, path)
        self._files = folder.getFileSystem(self._conf)
        self.uri = _in_one_spelling(spark, self._files, folder)
        self._logged = logged(hadoop_path(spark, self.uri))
        package = "streaming" if minor_release(pyspark.__version__) == "4.0" else "streaming.checkpointing"
        self._managers = java_class(spark, f"org.apache.spark.sql.execution.{package}.CheckpointFileManager")

    def names(self, below: str) -> list[str]:
        return [str(status.getPath().getName()) for status in self._listed(self.path(below))]

    def hidden(self, below: str) -> list[str]:
        return [name for name in self.names(below) if name.startswith(".")]

    def sizes(self, below: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for status in self._listed(self.path(below)):
            key = f"{below}/{status.getPath().getName()}"
            found |= self.sizes(key) if status.isDirectory() else {key: int(status.getLen())}
        return found

    def _listed(self, folder: Any) -> Iterable[Any]:
        return self._files.listStatus(folder) if self._files.exists(folder) else ()

    def read(self, key: str, at_most: int | None = None) -> tuple[str, bool]:
        path = self.path(key)
        try:
            stream = self._files.open(path)
        except Py4JJavaError as error:
            if not _is(error, ABSENT):
                raise
            raise Damaged(f"{self.uri}/{key} is missing; somebody or something deleted it") from None
        try:
            skipped = max(self._files.getFileStatus(path).getLen() - at_most, 0) if at_most else 0
            stream.seek(skipped)
            return read_text(self._spark, stream), not skipped
        finally:
            stream.close()

    def put(self, key: str, text: str) -> None:
        path = self.path(key)
        if self._files.exists(path):
            return
        self._files.mkdirs(path.getParent())
        stream = self._managers.create(path.getParent(), self._conf).createAtomic(path, False)
        try:
            stream.write(text.encode())
            stream.close()
        except Py4JJavaError as error:
            if not _is(error, "org.apache.hadoop.fs.FileAlreadyExistsException"):
                stream.cancel()
                raise

    def copy(self, key: str, new: str) -> None:
        """Copy a file, unless the copy is there. The partial copy of a killed driver has another size."""
        source, target = self.path(key), self.path(new)
        if not self._files.exists(target) or self._size(target) != self._size(source):
            self._copy(source, target)

    def move(self, key: str, new: str, size: int) -> bool:
        source, target = self.path(key), self.path(new)
        self._files.mkdirs(target.getParent())
        try:
            moved = bool(self._files.rename(source, target))
        except Py4JJavaError as error:
            if not _is(error, ABSENT):
                raise
            moved = False
        if moved:
            refuse_other_size(f"{self.uri}/{new}", self._size(target), size)
        return moved

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._files.delete(self.path(key), False)

    def refuse_link(self, key: str) -> None:
        (scheme, _), above = walked(self.uri)
        if scheme != "file":
            return
        folder, names = "/" + "/".join(above), key.split("/")
        try:
            with suppress(OSError), opened(folder, names[:-1]) as handle:  # Hadoop itself reports an absent file
                refuse_other(names[-1], handle, "/".join((folder, *names)))
        except NoObject as error:
            raise Damaged(f"{error.message}. Nothing was done with that file of the sink {self.uri}") from None

    def path(self, key: str) -> Any:
        """Return the path of a key as Hadoop takes it."""
        return path_of_uri(self._spark, f"{self._logged}/{quote(key)}")

    def copy_out(self, key: str, uri: str) -> None:
        """Copy a file of the sink, which may replace an earlier copy."""
        self._copy(self.path(key), hadoop_path(self._spark, uri))

    def copy_in(self, uri: str, key: str) -> SinkFile:
        """Copy a file into the sink, which may replace an earlier copy. Return the copy as the log names it."""
        target = self.path(key)
        self._copy(hadoop_path(self._spark, uri), target)
        return file_of(self._files.getFileStatus(target))

    def _copy(self, source: Any, target: Any) -> None:
        copy, conf = java_class(self._spark, "org.apache.hadoop.fs.FileUtil").copy, self._conf
        copy(source.getFileSystem(conf), source, target.getFileSystem(conf), target, False, True, conf)

    def _size(self, path: Any) -> int:
        return int(self._files.getFileStatus(path).getLen())


class SinkLog(FileSinkLog):
    """The log of the file sink that writes to ``path``."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._hadoop = HadoopFolder(spark, path)
        super().__init__(self._hadoop, int(str(spark.conf.get(COMPACTS_EVERY, str(INTERVAL)))))

    def copy_out(self, below: str, uri: str) -> None:
        """Copy a data file of the sink, which may replace an earlier copy. Raises ``Damaged``."""
        self._hadoop.copy_out(self.key(below), uri)

    def copy_in(self, uri: str, below: str) -> SinkFile:
        """Copy a file into the sink, which may replace an earlier copy. Return it as the log names it. Raises ``Damaged``."""
        return self._hadoop.copy_in(uri, self.key(below))


def file_of(status: Any) -> SinkFile:
    """Return a file as Spark's log names it; ``status`` is Hadoop's."""
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
    return SinkFile(path, json.dumps(about))


def spelled(spark: SparkSession, path: str) -> str:
    """Return the path of a source or a sink as ``FileSinkLog.folder`` is spelled."""
    folder = hadoop_path(spark, path)
    return _in_one_spelling(spark, folder.getFileSystem(_hadoop_conf(spark)), folder)


def logged(path: Any) -> str:
    """Return a path as Spark's logs spell it: encoded, and with three slashes after ``file:``.

    A source would treat a path in another spelling as a new file.
    """
    return ONE_SLASH.sub("file:///", str(path.toUri()))


def _in_one_spelling(spark: SparkSession, files: Any, path: Any) -> str:
    """Return a path in one spelling: a path in Spark's log begins with ``file:///``, and the author may write ``file:/`` or no scheme."""
    uri = files.makeQualified(path).toUri()
    return str(hadoop_path(spark, uri.getScheme(), uri.getAuthority(), uri.getPath()))


def _is(error: Py4JJavaError, name: str) -> bool:
    return str(error.java_exception.getClass().getName()) == name


def _hadoop_conf(spark: SparkSession) -> Any:
    session: Any = spark._jsparkSession
    return session.sessionState().newHadoopConf()
