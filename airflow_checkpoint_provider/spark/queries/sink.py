"""The batches that a file sink holds, and whether a query may go on there. Runs in the Spark driver.

A file sink skips each batch that it has, without a word. So a query that began anew in front of an old sink would lose rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.coordinator.query_location import NOTHING, Position
from airflow_checkpoint_provider.coordinator.sealing import TEMPORARY
from airflow_checkpoint_provider.errors import SinkMoved
from airflow_checkpoint_provider.spark.log import say
from airflow_checkpoint_provider.spark.queries.writer import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = "_spark_metadata"


def newest_batch(spark: SparkSession, target: Target) -> int:
    """Return the newest batch in the log of a file sink, -1 if it has none."""
    _, entries = _log(spark, target)
    names = [entry.getName() for entry in entries]
    return max((int(name.removesuffix(".compact")) for name in names if name[:1].isdecimal()), default=NOTHING)


def sweep(spark: SparkSession, target: Target) -> None:
    """Delete the temporary files in the log of a file sink: an older driver may be about to rename one over an entry of ours."""
    if not target.exact:
        return
    files, entries = _log(spark, target)
    for entry in entries:
        name = entry.getName()
        if name.startswith(".") and name.endswith(TEMPORARY):
            files.delete(entry, False)


def _log(spark: SparkSession, target: Target) -> tuple[Any, list[Any]]:
    """Return the file system of a file sink, and the paths of what lies in its log."""
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    log = jvm.org.apache.hadoop.fs.Path(target.path, LOG)
    files = log.getFileSystem(session.sessionState().newHadoopConf())
    return files, [status.getPath() for status in files.listStatus(log)] if files.exists(log) else []


def refuse_other(spark: SparkSession, uid: str, target: Target, position: Position, before: str | None) -> None:
    """Raise ``SinkMoved`` unless the sink has the batches up to ``position``, or is empty. It may have the begun batch, too.

    Of a sink that does not say which batches it has, nothing is known. ``before`` is the path in the restored checkpoint: there,
    the sink must not be empty.
    """
    if not target.exact:
        return
    found, committed = newest_batch(spark, target), position.committed
    if committed <= found <= position.begun or found == committed:
        return
    if found == NOTHING and target.path != before:
        say(f"query '{uid}' goes on behind batch {committed} and writes to {target.path}, which is empty")
        return
    begins = "begins anew" if committed == NOTHING else f"would go on behind batch {committed}"
    effect = f"skip {found - committed} of the new ones" if found > committed else f"lack {committed - found} of them"
    has = "no batches any more" if found == NOTHING else f"batches up to {found}"
    raise SinkMoved(
        f"query '{uid}' {begins}, but its sink {target.path} has {has}: it would {effect}. Nothing was started."
        " Write to another path, or restore the checkpoint with which these batches were written",
        sink=found,
        checkpoint=committed,
    )
