"""The files of one stage: write them into a directory of their own, list them, and read the listed files. Runs in the Spark driver.

Spark does not report empty, doubled, hidden, flipped or missing files, nor two writers in one directory. So a directory is
written once and never shared. The list that is made after the commit counts. The rows are compared before the list is
acknowledged; names, sizes and footers when an attempt starts with it. URIs are taken literally: no glob, no percent-encoding.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql.functions import col, count, lit
from pyspark.sql.types import StructType

from airflow_checkpoint_provider.coordinator.files import compare
from airflow_checkpoint_provider.errors import Damaged, StoreDenied, StoreError, StoreUnavailable
from airflow_checkpoint_provider.protocol.file_records import File, Footer
from airflow_checkpoint_provider.spark.java_classes import await_future, hadoop_path
from airflow_checkpoint_provider.spark.java_errors import java_reason
from airflow_checkpoint_provider.spark.stages.confs import overridden
from airflow_checkpoint_provider.spark.stages.schemas import marked, schema_json, stored_schema, unmarked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WRITE = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default, INT96, has no statistics and no pushdown
    "mapreduce.output.basename": "part",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "mapreduce.fileoutputcommitter.algorithm.version": "1",  # 2 leaves files of failed jobs behind
    "parquet.page.write-checksum.enabled": "true",
}
EACH_FILE = {"ignoredPathSegmentRegex": "^[._]"}
"""The option with which Spark reads each file that is named to it. Since 4.3 it leaves out files whose names the session ignores."""
READ = {
    **EACH_FILE,
    "parquet.page.verify-checksum.enabled": "true",
    "ignoreCorruptFiles": "false",  # as options they win over the confs of the user's session
    "ignoreMissingFiles": "false",
}
REBASE = "spark.sql.parquet.datetimeRebaseModeInWrite"
READER = {"spark.sql.sources.useV1SourceList": "parquet"}  # the other one neither reads all types nor shows its paths
NO_STAT_JOB = {"spark.sql.sources.parallelPartitionDiscovery.threshold": str(2**31 - 1)}
PART = re.compile(r"part-\d+-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-c\d+")
PATTERN_LETTERS = re.compile(r"([\\{}\[\]*?])")  # Spark's own switch for them, `__globPaths__`, reads such paths twice
COUNT_TIMEOUT = 600  # seconds from the commit until Spark's listeners have handed over the number of rows


@dataclass(frozen=True)
class WrittenFiles:
    """The result of one write: the files with their sizes in bytes, and Spark's count of the rows, which comes a little later."""

    spark: SparkSession
    uri: str
    sizes: dict[str, int]
    schema: str
    """Spark's JSON."""
    observed: Observation

    @property
    def files(self) -> tuple[File, ...]:
        """Return the files as they were listed: their rows are not counted yet."""
        return tuple(File(name=name, bytes=size, rows=0) for name, size in sorted(self.sizes.items()))

    @cached_property
    def rows(self) -> int:
        """Return the number of rows that Spark counted."""
        return rows_of(self.spark, self.observed)


def rows_of(spark: SparkSession, observed: Observation) -> int:
    """Return the metric ``rows`` of a write that has ended. Raises ``StoreError`` if Spark does not report it.

    It comes through Spark's listeners, which drop events under load. Then ``get`` would wait for ever; this waits a bounded time.
    """
    try:
        await_future(spark, _handle(observed).future(), COUNT_TIMEOUT)
    except Py4JJavaError as error:
        raise StoreError(
            "Spark did not report how many rows it wrote. It may have dropped the event: run the job again"
        ) from error
    return int(observed.get["rows"])


def codec_for(scheme: str) -> str:
    """Return the codec for a store: the smallest files over a network, the least CPU time for local files."""
    return "lz4_raw" if scheme == "file" else "zstd"


def write(df: DataFrame, uri: str, *, codec: str) -> WrittenFiles:
    """Write ``df`` once into ``uri``, a directory that must not exist, and list the directory after the commit.

    Raises Spark's error if the rows cannot be computed or written, and ``StoreError`` if the directory then holds other files than those of
    this write. A directory in which a write failed is never used again.
    """
    observed = Observation()
    counted = df.observe(observed, count(lit(1)).alias("rows"))
    with overridden(df.sparkSession, _confs_for_write(df.sparkSession)):
        counted.write.mode("errorifexists").options(compression=codec, **WRITE, **rights(uri)).parquet(uri)
    sizes = _listed(df.sparkSession, uri)
    writes = {match[1] for name in sizes if (match := PART.match(name))}
    if len(writes) != 1 or not all(map(PART.match, sizes)):
        raise StoreError(
            f"{uri} holds files of {len(writes)} writes after one write. Nothing else may write there: run the job again"
        )
    return WrittenFiles(df.sparkSession, uri, sizes, schema_json(df), observed)


def _confs_for_write(spark: SparkSession) -> dict[str, str]:
    """Return the conf that has no option, if Spark would refuse old dates. Other threads may write in this session meanwhile."""
    return {REBASE: "CORRECTED"} if spark.conf.get(REBASE, None) == "EXCEPTION" else {}


def rights(uri: str) -> dict[str, str]:
    """Return the options by which Hadoop creates local files and directories with the rights of the directory above.

    The cached file system of the session has read its umask already, so this write gets one of its own.
    """
    if not uri.startswith("file://"):
        return {}
    above = next(folder for folder in Path(uri.removeprefix("file://")).parents if folder.exists())
    umask = ~above.stat().st_mode & 0o077
    return {"fs.permissions.umask-mode": f"{umask:03o}", "fs.file.impl.disable.cache": "true"}


def count_rows(
    spark: SparkSession, written: WrittenFiles, footers: Mapping[str, tuple[Footer, int | None]]
) -> tuple[File, ...]:
    """Return the files of ``written`` with the number of rows in each, as their footers tell it.

    If ``footers`` lacks one of them, or one is encrypted, a small Spark job counts. Raises ``StoreError`` if the sum differs from
    the rows that Spark counted while it wrote. Acknowledge the files only after this.
    """
    expected = written.rows
    told = {name: rows for name, (_, rows) in footers.items() if rows is not None}
    rows = told if told.keys() >= written.sizes.keys() else _rows_by_file(spark, written.uri, written.sizes)
    if sum(rows.values()) != expected:
        raise StoreError(
            f"{expected} rows were written to {written.uri}, but its files hold {sum(rows.values())}. The files are not used: run the job again"
        )
    return tuple(
        replace(file, rows=rows.get(file.name, 0), footer=footers[file.name][0] if file.name in footers else None)
        for file in written.files
    )


def _rows_by_file(spark: SparkSession, uri: str, names: Collection[str]) -> dict[str, int]:
    """Return the number of rows by file name, from the footers. A file without rows is not in it."""
    footers = _load(spark, {uri: names}, StructType([]))
    per_file = footers.groupBy(col("_metadata.file_name").alias("name")).agg(count(lit(1)).alias("rows"))
    return {row["name"]: row["rows"] for row in per_file.collect()}


def verify_rows(spark: SparkSession, uri: str, files: Sequence[File]) -> None:
    """Compare the rows of acknowledged files with their footers, by one small Spark job, where the footers have no checksum.

    A footer with a checksum was compared before the attempt began. Raises ``Damaged``. Page checksums do not cover footers: a
    flipped bit there can hide rows without an error.
    """
    unproved = [file for file in files if file.footer is None]
    rows = _rows_by_file(spark, uri, [file.name for file in unproved]) if unproved else {}
    for file in unproved:
        if rows.get(file.name, 0) != file.rows:
            found = rows.get(file.name, 0)
            raise Damaged(
                f"{uri}/{file.name} holds {found} rows, but {file.rows} were written. Restore an older checkpoint"
            )


def verify(spark: SparkSession, uri: str, files: Sequence[File]) -> None:
    """Compare names and sizes of the acknowledged ``files`` with those in ``uri``. Other files there do not matter.

    Raises ``Damaged``, which names the first file that differs; ``StoreDenied`` and ``StoreUnavailable`` if the directory
    cannot be listed.
    """
    _refuse_odd(uri, [file.name for file in files])
    try:
        compare(uri, _listed(spark, uri), files)
    except Damaged as error:
        raise Damaged(f"{error.message}. Restore an older checkpoint") from None


def read(spark: SparkSession, uri: str, files: Sequence[File], schema: str) -> DataFrame:
    """Verify and return the rows of the acknowledged ``files`` in ``uri``. Starts no job. All columns are nullable."""
    verify(spark, uri, files)
    return load(spark, {uri: files}, schema)


def load(spark: SparkSession, folders: Mapping[str, Sequence[File]], schema: str) -> DataFrame:
    """Return the rows of files by the URI of their directory, which were compared with a listing. Starts no job. All columns are nullable."""
    return _load(spark, {uri: [file.name for file in files] for uri, files in folders.items()}, stored_schema(schema))


def _refuse_odd(uri: str, names: Iterable[str]) -> None:
    """Raise ``Damaged`` if Spark would skip a file, read it twice, or look for it elsewhere."""
    counted = Counter(iter(names))
    odd = [name for name, times in counted.items() if times > 1 or "/" in name or name.startswith((".", "_"))]
    if odd or not counted:
        raise Damaged(
            f"the list of files of {uri} is not a list of data files ({odd or 'empty'}). Restore an older checkpoint"
        )


def _load(spark: SparkSession, folders: Mapping[str, Collection[str]], schema: StructType) -> DataFrame:
    for folder, names in folders.items():
        _refuse_odd(folder, names)
    *_, uri = folders
    paths = [PATTERN_LETTERS.sub(r"\\\1", f"{folder}/{name}") for folder in folders for name in folders[folder]]
    plain, with_marks = unmarked(schema), marked(schema)
    with _schema_refused(uri, PySparkException, Py4JJavaError):
        reader = spark.read.schema(plain).options(**READ)
    with (
        _schema_refused(uri, PySparkException),  # other errors of the JVM come from the store
        overridden(spark, READER | (NO_STAT_JOB if uri.startswith("file:") else {})),
    ):
        rows = reader.parquet(*paths)
        return rows if plain == with_marks else rows.to(with_marks)


@contextmanager
def _schema_refused(uri: str, *errors: type[Exception]) -> Iterator[None]:
    """Take ``errors`` for damage: this package writes only schemas that Spark has made."""
    try:
        yield
    except errors as error:
        why = java_reason(error)
        raise Damaged(
            f"Spark does not take the stored schema of {uri}: {why}. Somebody or something changed it. Restore an older checkpoint"
        ) from None


def _listed(spark: SparkSession, uri: str) -> dict[str, int]:
    """Return the sizes in bytes of the data files in ``uri`` by name; an empty dict if there is no such directory."""
    path = hadoop_path(spark, uri)
    try:
        statuses = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).listStatus(path)
    except Py4JJavaError as error:
        return _unlisted(uri, error)
    entries = {status.getPath().getName(): status.getLen() for status in statuses if status.isFile()}
    return {name: size for name, size in entries.items() if not name.startswith((".", "_"))}


def _unlisted(uri: str, error: Py4JJavaError) -> dict[str, int]:
    """Return an empty list for an absent directory. Denied and unreachable are errors, never taken for absent."""
    name = error.java_exception.getClass().getSimpleName()
    why = f"{uri} cannot be listed ({error.java_exception.toString()})"
    if name == "FileNotFoundException":
        return {}
    if name in ("AccessControlException", "AccessDeniedException"):
        raise StoreDenied(f"{why}. Give this job the right to list and read there") from error
    raise StoreUnavailable(f"{why}. Try again") from error


def _handle(observed: Observation) -> Any:
    return observed._jo
