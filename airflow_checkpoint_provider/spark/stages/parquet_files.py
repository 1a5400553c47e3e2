"""The files of one stage: one write into a directory of its own, an exact list, and reading that list back. Runs in the Spark driver.

Spark is silent about empty, doubled, hidden, flipped and missing files, and about two writers in one directory. So a directory is
written once and never shared, what counts is the list made after the commit, and names, sizes and rows are compared before anybody
trusts it and again before it is read. URIs are taken literally: no glob, no percent-encoding.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import Observation
from pyspark.sql.functions import col, count, lit
from pyspark.sql.types import StructType

from airflow_checkpoint_provider.coordinator.files import compare
from airflow_checkpoint_provider.errors import Damaged, StoreDenied, StoreError, StoreUnavailable
from airflow_checkpoint_provider.protocol.metadata import File
from airflow_checkpoint_provider.spark.stages.confs import overridden
from airflow_checkpoint_provider.spark.stages.schemas import schema_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WRITE = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default, INT96, has no statistics and no pushdown
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "mapreduce.fileoutputcommitter.algorithm.version": "1",  # 2 leaves files of failed jobs behind
    "parquet.page.write-checksum.enabled": "true",
}
READ = {
    "parquet.page.verify-checksum.enabled": "true",
    "ignoreCorruptFiles": "false",  # as options they win over what the user's session says
    "ignoreMissingFiles": "false",
}
NO_STAT_JOB = {"spark.sql.sources.parallelPartitionDiscovery.threshold": str(2**31 - 1)}
PART = re.compile(r"part-\d+-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-c\d+")
PATTERN_LETTERS = re.compile(r"([\\{}\[\]*?])")  # Spark's own switch for them, `__globPaths__`, reads such paths twice
COUNTED_WITHIN = 600  # seconds from the commit until Spark's listeners have handed over the number of rows


@dataclass(frozen=True)
class Written:
    """What one write left behind: the files with their sizes in bytes, and how many rows Spark saw pass while it wrote."""

    uri: str
    sizes: dict[str, int]
    rows: int
    schema: str
    """Spark's JSON."""


def codec_for(scheme: str) -> str:
    """Few bytes where they travel, little work where they do not."""
    return "lz4_raw" if scheme == "file" else "zstd"


def write(df: DataFrame, uri: str, *, codec: str) -> Written:
    """Write ``df`` once into ``uri``, a directory that must not exist, and list what is there after the commit.

    Raises what Spark raises when the rows cannot be computed or written, and ``StoreError`` when the directory then holds
    anything but the files of this one write. A directory in which a write failed is never used again.
    """
    observed = Observation()
    counted = df.observe(observed, count(lit(1)).alias("rows"))
    counted.write.mode("errorifexists").options(compression=codec, **WRITE).parquet(uri)
    sizes = _listed(df.sparkSession, uri)
    writes = {found[1] for name in sizes if (found := PART.match(name))}
    if len(writes) != 1 or not all(map(PART.match, sizes)):
        raise StoreError(
            f"{uri} holds files of {len(writes)} writes after one. Nothing else may write there: run the job again"
        )
    return Written(uri, sizes, _rows(df.sparkSession, observed), schema_json(df))


def count_rows(spark: SparkSession, written: Written) -> tuple[File, ...]:
    """The files of ``written`` with the rows that each holds, from their footers, by one small Spark job.

    Raises ``StoreError`` when they do not add up to the rows that passed. Only after this the files may be acknowledged.
    """
    rows = _rows_by_file(spark, written.uri, written.sizes)
    if sum(rows.values()) != written.rows:
        raise StoreError(
            f"{written.rows} rows were written to {written.uri}, its files hold {sum(rows.values())}. They are not used: run the job again"
        )
    return tuple(File(name=name, bytes=size, rows=rows.get(name, 0)) for name, size in sorted(written.sizes.items()))


def _rows_by_file(spark: SparkSession, uri: str, names: Iterable[str]) -> dict[str, int]:
    """From the footers; a file without rows is not named."""
    footers = _load(spark, uri, names, StructType([]).json())
    per_file = footers.groupBy(col("_metadata.file_name").alias("name")).agg(count(lit(1)).alias("rows"))
    return {row["name"]: row["rows"] for row in per_file.collect()}


def verify_rows(spark: SparkSession, uri: str, files: Sequence[File]) -> None:
    """Compare the rows of each acknowledged file with its footer, after ``verify``, by one small Spark job.

    Raises ``Damaged``. Page checksums do not cover footers: a flipped one can hide rows and say nothing.
    """
    rows = _rows_by_file(spark, uri, [file.name for file in files])
    for file in files:
        if rows.get(file.name, 0) != file.rows:
            found = rows.get(file.name, 0)
            raise Damaged(
                f"{uri}/{file.name} holds {found} rows, {file.rows} were written: restore an older checkpoint"
            )


def verify(spark: SparkSession, uri: str, files: Sequence[File]) -> None:
    """Compare names and sizes of the acknowledged ``files`` with what lies in ``uri``. Other files there do not matter.

    Raises ``Damaged``, naming the first that is not as it was; ``StoreDenied`` and ``StoreUnavailable`` when one cannot look.
    """
    names = Counter(file.name for file in files)
    odd = [name for name, times in names.items() if times > 1 or "/" in name or name.startswith((".", "_"))]
    if odd or not names:
        raise Damaged(
            f"the list of files of {uri} is no list of data files ({odd or 'empty'}): restore an older checkpoint"
        )
    try:
        compare(uri, _listed(spark, uri), files)
    except Damaged as error:
        raise Damaged(f"{error.message}: restore an older checkpoint") from None


def read(spark: SparkSession, uri: str, files: Sequence[File], schema: str) -> DataFrame:
    """The rows of the acknowledged ``files`` in ``uri``, after ``verify``. Starts no job. All columns are nullable."""
    verify(spark, uri, files)
    return _load(spark, uri, [file.name for file in files], schema)


def _load(spark: SparkSession, uri: str, names: Iterable[str], schema: str) -> DataFrame:
    paths = [PATTERN_LETTERS.sub(r"\\\1", f"{uri}/{name}") for name in names]
    with overridden(spark, NO_STAT_JOB if uri.startswith("file:") else {}):
        return spark.read.schema(StructType.fromJson(json.loads(schema))).options(**READ).parquet(*paths)


def _rows(spark: SparkSession, observed: Observation) -> int:
    """The count, which reaches us through Spark's listeners: those drop events under load, and ``get`` would wait for ever."""
    scala, handle = _jvm(spark).scala.concurrent, _handle(observed)
    try:
        scala.Await.ready(handle.future(), scala.duration.Duration.apply(COUNTED_WITHIN, "s"))
    except Py4JJavaError as error:
        raise StoreError(
            "Spark did not say how many rows it wrote; it may have dropped the event. Run the job again"
        ) from error
    return int(observed.get["rows"])


def _listed(spark: SparkSession, uri: str) -> dict[str, int]:
    """Name -> size in bytes of the data files in ``uri``; none if there is no such directory."""
    jvm: Any = _jvm(spark)
    path = jvm.org.apache.hadoop.fs.Path(uri)
    try:
        found = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).listStatus(path)
    except Py4JJavaError as error:
        return _unlisted(uri, error)
    entries = {status.getPath().getName(): status.getLen() for status in found if status.isFile()}
    return {name: size for name, size in entries.items() if not name.startswith((".", "_"))}


def _unlisted(uri: str, error: Py4JJavaError) -> dict[str, int]:
    """Absent is an answer; denied and unreachable are none, and are never taken for it."""
    name = error.java_exception.getClass().getSimpleName()
    why = f"{uri} cannot be listed ({error.java_exception.toString()})"
    if name == "FileNotFoundException":
        return {}
    if name in ("AccessControlException", "AccessDeniedException"):
        raise StoreDenied(f"{why}: give this job the right to list and read there") from error
    raise StoreUnavailable(f"{why}: try again") from error


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm


def _handle(observed: Observation) -> Any:
    return observed._jo
