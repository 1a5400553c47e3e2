"""Another number of partitions for the state of a query, by Spark's own tool. Runs in the Spark driver.

The number is that of the session, ``spark.sql.shuffle.partitions``. Without this module, Spark 4.2 keeps the number that the checkpoint
location names, whatever the session says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from airflow_checkpoint_provider.errors import Damaged, NotSupportedYet, WrongUse
from airflow_checkpoint_provider.location.files import NOTHING, OFFSETS, Location, LocationFiles, Position
from airflow_checkpoint_provider.location.foreign import long, readable
from airflow_checkpoint_provider.location.rescaling import PARTITIONS, copy_logs, take_state
from airflow_checkpoint_provider.spark.s3a import spark_uri
from airflow_checkpoint_provider.spark.versions import minor_release
from airflow_checkpoint_provider.text import query_messages
from airflow_checkpoint_provider.text.units import plural

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPARKS = ("4.2", "4.3")  # with the tool
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "RocksDBStateStoreProvider"
ALL_ROWS = "_readAllColumnFamilies"  # an option of Spark's state reader, with which its own tool reads the state

Rows = dict[str, tuple[int, str]]
"""Number and digest of the rows of each state store."""


class Rescaling:
    """Gives the state of the query ``uid`` as many partitions as the session says."""

    def __init__(self, spark: SparkSession, uid: str) -> None:
        self._spark, self._uid = spark, uid
        self._partitions = int(str(spark.conf.get(PARTITIONS)))
        self._stored = self._partitions

    def needed(self, location: Location, position: Position) -> bool:
        """Return whether the state in a location has another number of partitions.

        Raises ``WrongUse`` if a batch has begun there, because it must run with the old number, and ``NotSupportedYet``.
        """
        found = LocationFiles(location)
        if position.begun == NOTHING or not found.stores_at(position):
            return False
        confs = location.offsets(position.begun).confs
        with readable(location.key_of(f"{OFFSETS}/{position.begun}")):
            self._stored = long(confs[PARTITIONS])
        if self._stored == self._partitions:
            return False
        if position.begun != position.committed:
            raise WrongUse(
                f"query '{self._uid}' has state in {plural(self._stored, 'partition')}, and batch {position.begun} has begun with that number."
                f" Nothing was started. Start the job once with {PARTITIONS}={self._stored}, and stop it with --drain. Then start it with"
                f" {self._partitions}"
            )
        if minor_release(self._spark.version) not in SPARKS:
            raise self._refused(f"the tool comes with Spark {SPARKS[0]}, and this is {self._spark.version}")
        if not confs.get(PROVIDER, "").endswith(ROCKSDB):
            raise self._refused(f"its state is in {confs.get(PROVIDER)}, and Spark can divide only that of {ROCKSDB}")
        if found.undivided:  # of an aggregation, Spark's tool puts it where no query reads it
            raise self._refused("an aggregation without a key, or a limit, has all of its state in one partition")
        return True

    def possible(self, location: Location, position: Position) -> bool:
        """Return whether the state at ``position`` has another number of partitions than the session, and can get that of the session."""
        try:
            return self.needed(location, position)
        except (NotSupportedYet, WrongUse):
            return False

    def refuse_to_adopt(self, location: Location, position: Position) -> None:
        """Raise ``NotSupportedYet`` if the state in a location from elsewhere has another number of partitions. Nothing is changed.

        The query may still run there, and begin a batch before its location is fenced. That batch must run with the old number. So the
        query would be refused, after its old driver has ended.
        """
        batch = max(position.committed, 0)
        if self.needed(location, Position(batch, batch)):
            raise NotSupportedYet(
                f"query '{self._uid}' has state in {plural(self._stored, 'partition')} in {location.uri}, and is taken over only with that number."
                f" Nothing was changed. Start the job once with {PARTITIONS}={self._stored}, and stop it with --drain. Then start it with"
                f" {self._partitions}"
            )

    def rescale(self, draft: Location, own: Location, batch: int) -> str:
        """Write the files of a query after ``batch`` to ``own``, from those in ``draft``. Return a line for the log.

        Raises ``NotSupportedYet`` for a state that Spark's tool cannot divide, and ``Damaged`` if the rows are not the same afterwards.
        """
        try:
            before = self._rows(draft, batch)
            copy_logs(draft, own, batch)
            tool = self._spark._streamingCheckpointManager
            tool.repartition(spark_uri(draft.store, draft.key), self._partitions)
        except (PySparkException, Py4JJavaError) as error:
            reason = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error
            raise self._refused(f"Spark cannot divide its state: {reason}") from error
        take_state(draft, own, batch, self._partitions)
        after = self._rows(own, batch)
        if before != after:
            raise Damaged(
                f"query '{self._uid}': in {plural(self._partitions, 'partition')} its state is not the same: {_told(after)}, before"
                f" {_told(before)}. Nothing was started. Set {PARTITIONS} to {self._stored} again"
            )
        return query_messages.rescaled(self._uid, self._stored, self._partitions, _told(after))

    def _rows(self, location: Location, batch: int) -> Rows:
        """Return number and digest of the rows in each state store, as Spark reads them."""
        self._spark.streams.active  # noqa: B018 - in a new driver, this starts what Spark needs to read a state
        uri = spark_uri(location.store, location.key)
        stores = self._spark.read.format("state-metadata").load(uri).collect()
        return {
            f"{store.operatorName} {store.operatorId}, {store.stateStoreName}": self._digest(
                self._spark.read.format("statestore")
                .option("batchId", batch)
                .option("operatorId", store.operatorId)
                .option("storeName", store.stateStoreName)
                .option(ALL_ROWS, value=True)
                .load(uri)
            )
            for store in stores
        }

    def _digest(self, rows: DataFrame) -> tuple[int, str]:
        digest = F.xxhash64("key_bytes", "value_bytes", "column_family_name").cast("decimal(38,0)")
        number, total = rows.agg(F.count("*"), F.sum(digest)).collect()[0]
        return number, str(total)

    def _refused(self, why: str) -> NotSupportedYet:
        return NotSupportedYet(
            f"query '{self._uid}' cannot continue with {plural(self._partitions, 'partition')} instead of {self._stored}: {why}. Nothing was"
            f" started. Set {PARTITIONS} to {self._stored} again"
        )


def _told(rows: Rows) -> str:
    return "; ".join(
        f"{store}: {plural(number, 'row')}, digest {digest}" for store, (number, digest) in sorted(rows.items())
    )
