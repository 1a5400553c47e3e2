"""Files of sources by their paths: whether they lie where the source reads, are there, and when they were changed. Runs in the Spark driver.

Each file is asked for by itself: the folder of a source may hold millions of others.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError

from airflow_checkpoint_provider.errors import SourceUnavailable, without_userinfo
from airflow_checkpoint_provider.file_sink.log import decoded, walked
from airflow_checkpoint_provider.spark.java_classes import java_class, path_of_uri
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.text import source_messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOGETHER = 16  # files that are asked for at the same time
AT_MOST = 100_000  # files; a store answers some hundreds of questions in a second
PACE = 30.0  # seconds between two lines
PATTERN = re.compile(r"[*?\[{\\]")
MISSING = "java.io.FileNotFoundException"


class SourcePaths:
    """Asks for files by their paths, which are encoded as in Spark's logs, for the query ``uid``."""

    def __init__(self, spark: SparkSession, uid: str) -> None:
        session: Any = spark._jsparkSession
        self._spark = spark
        self._conf = session.sessionState().newHadoopConf()
        self._uid = uid

    def changed(self, paths: Sequence[str]) -> Iterator[tuple[str, int | None]]:
        """Yield when each file was changed, in milliseconds since 1970; None if it is not there. Raises ``SourceUnavailable``."""
        told = time.monotonic()
        with ThreadPoolExecutor(TOGETHER, thread_name_prefix="source-files") as threads:
            for number, answer in enumerate(threads.map(self._changed, paths)):
                if time.monotonic() > told + PACE:
                    told = time.monotonic()
                    say(source_messages.asking(self._uid, number, len(paths)))
                yield paths[number], answer

    def _changed(self, path: str) -> int | None:
        try:
            where = path_of_uri(self._spark, path)
            return int(where.getFileSystem(self._conf).getFileStatus(where).getModificationTime())
        except Py4JJavaError as error:
            why = str(error.java_exception.getClass().getName())
            if why == MISSING:
                return None
            raise SourceUnavailable(
                f"query '{self._uid}': nobody can tell whether {shown(path)} is still there ({why}), so nobody knows whether the query could"
                " continue. Look at the storage and at the credentials of the job, and try again"
            ) from None


class Below:
    """Tells whether files lie at the ``folder`` of a source, as ``sink_log.spelled`` spells it. It may be a pattern.

    Names are compared one by one and decoded, because the text ``/data/in-private`` also begins with ``/data/in``. A link below the folder
    may lead anywhere: Spark also follows it when it looks for new files.
    """

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._pattern = java_class(spark, "org.apache.hadoop.fs.GlobPattern")
        self._folder, names = walked(folder)
        whole = takewhile(lambda name: name.count("{") == name.count("}"), names)  # a choice may go over several names
        self._names = tuple(whole)
        self._matching: dict[tuple[str, str], bool] = {}

    def holds(self, path: str) -> bool:
        """Return whether a file lies there. Its ``path`` is encoded, as in Spark's logs."""
        found, names = decoded(path)
        if found != self._folder or len(names) < len(self._names) or not {".", ".."}.isdisjoint(names):
            return False
        return all(map(self._matches, self._names, names))

    def _matches(self, pattern: str, name: str) -> bool:
        if pattern == name or not PATTERN.search(pattern):
            return pattern == name
        if (pattern, name) not in self._matching:
            self._matching[pattern, name] = bool(self._pattern(pattern).matches(name))
        return self._matching[pattern, name]


def shown(path: str) -> str:
    """Return a path as people write it, without user and password."""
    return without_userinfo(unquote(path))
