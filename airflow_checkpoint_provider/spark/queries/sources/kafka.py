"""The Kafka sources of a query: whether the brokers still have the rows that it reads next. Runs in the Spark driver.

Kafka deletes rows by their age, also if a query still needs them. Without this module, Spark begins a batch with offsets that cannot be
read any more, and the query can never continue after that batch.

Spark's own connector asks the brokers, with the options of the query. So the topics and the credentials are the same, and the credentials
stay in the JVM.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.coordinator.liveness import Beat, EarliestOffsets
from airflow_checkpoint_provider.errors import SourceUnavailable
from airflow_checkpoint_provider.location.files import NOTHING
from airflow_checkpoint_provider.protocol import wording
from airflow_checkpoint_provider.protocol.kafka_offsets import Gap, Partition, gaps, kafka_offsets
from airflow_checkpoint_provider.spark.java_classes import java_class, scala_none
from airflow_checkpoint_provider.spark.queries.sources.reading import NEWER, Loss, Reading
from airflow_checkpoint_provider.spark.queries.sources.sources import Leaf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RELATION = "StreamingRelationV2"
TABLE = "org.apache.spark.sql.kafka010.KafkaSourceProvider$KafkaTable"
ERRORS = "org.apache.kafka.common.errors."
NO_TOPIC = f"{ERRORS}UnknownTopicOrPartitionException"
LOSS_ALLOWED = "failOnDataLoss"
TOPICS = "subscribe"
NO_LOCATION = "unused"  # a source writes there only when its query begins

PACE = 60.0  # seconds between two questions for the earliest offsets

Offsets = dict[Partition, int]


class KafkaSources:
    """The sources of the query ``uid`` that read Kafka, by their numbers in its offsets."""

    def __init__(self, spark: SparkSession, uid: str, leaves: Sequence[Leaf]) -> None:
        self._spark = spark
        self._uid = uid
        self._sources = {leaf.offset: leaf.relation for leaf in leaves if _reads_kafka(leaf.relation)}

    def losses(self, reading: Reading) -> Iterator[Loss]:
        """Yield what the brokers lack of the rows that the query reads next. Raises ``SourceUnavailable``."""
        own, position = reading.own, reading.position
        if not self._sources or position.committed == NOTHING:
            return
        needed, until = own.offsets(position.committed).sources, own.offsets(position.begun).sources
        for number, source in self._sources.items():
            wanted = kafka_offsets(needed.get(number))
            if wanted is not None:
                loss = self._loss(source, wanted, kafka_offsets(until.get(number)))
                if loss.missing:
                    yield loss

    def _loss(self, source: Any, wanted: Offsets, until: Offsets | None) -> Loss:
        """Return the partitions that lack rows. A topic that the source names must be there, whatever ``failOnDataLoss`` says."""
        options = source.extraOptions()
        with self._reader(source) as reader:
            try:
                earliest = reader.fetchEarliestOffsets()
                latest = reader.fetchLatestOffsets(scala_none(self._spark))
            except Py4JJavaError as error:
                if _root(error).getClass().getName() != NO_TOPIC:
                    raise
                topics = set(reader.admin().listTopics().names().get())
                named = {(name.strip(), 0): 0 for name in (options.get(TOPICS) or "").split(",") if name.strip()}
                places = sorted((named | wanted).items())
                missing = [Gap(place, at, None) for place, at in places if place[0] not in topics]
                if not missing:  # another broker knows them all
                    raise
                return _loss_of(missing)
            lost = gaps(wanted, self._offsets(earliest), self._offsets(latest), until)
            return _loss_of(lost, f"{LOSS_ALLOWED}=false" if _allows_loss(source) else "")

    def follow(self, runs: Callable[[], bool], heart: Heart) -> None:
        """Show the earliest offsets in the heartbeat, every minute while the query runs.

        A thread asks for them, because it waits for minutes if the brokers are down.
        """
        if self._sources:
            threading.Thread(target=self._show, args=(runs, heart), name="kafka-offsets", daemon=True).start()

    def _show(self, runs: Callable[[], bool], heart: Heart) -> None:
        with contextlib.suppress(Exception):  # a JVM that is ending may raise anything; the watchdog handles its end
            while runs():
                with contextlib.suppress(Exception):  # the last known offsets stay, with their time
                    found = self._earliest()
                    heart.update(functools.partial(_with, found=found))
                    heart.pulse()  # the query may end before the next beat
                time.sleep(PACE)

    def _earliest(self) -> EarliestOffsets:
        now = utc_now()
        return EarliestOffsets(
            uid=self._uid,
            at=now,
            sources={str(number): self._begins(number) for number in self._sources},
            loss_allowed=tuple(str(number) for number, source in self._sources.items() if _allows_loss(source)),
        )

    def _begins(self, number: int) -> str:
        with self._reader(self._sources[number]) as reader:
            return self._text(reader.fetchEarliestOffsets())

    @contextlib.contextmanager
    def _reader(self, source: Any) -> Iterator[Any]:
        """Yield the object with which Spark asks the brokers of a source. Raises ``SourceUnavailable`` if they do not answer."""
        stream = source.table().newScanBuilder(source.extraOptions()).build().toMicroBatchStream(NO_LOCATION)
        try:
            yield stream.kafkaOffsetReader()
        except Py4JJavaError as error:
            raise SourceUnavailable(
                f"query '{self._uid}': Kafka does not say which rows it has ({_why(error)}), so nobody knows whether the query could continue."
                " Look at the brokers and at the options of the source, and try again"
            ) from None
        finally:
            with contextlib.suppress(Py4JJavaError):  # it would hide the error above
                stream.stop()

    def _offsets(self, found: Any) -> Offsets:
        return kafka_offsets(self._text(found)) or {}

    def _text(self, found: Any) -> str:
        return str(java_class(self._spark, "org.apache.spark.sql.kafka010.JsonUtils").partitionOffsets(found))


def _loss_of(missing: Sequence[Gap], allowed: str = "") -> Loss:
    remedy = (
        f"{NEWER.rstrip('.')}: `{wording.command('list', 'JOB')}` says which. To continue without these rows, set"
        f' .option("{LOSS_ALLOWED}", "false") on the source, and remove deleted topics from its `{TOPICS}`'
    )
    return Loss("Kafka", missing, remedy, allowed)


def _with(beat: Beat, *, found: EarliestOffsets) -> Beat:
    return replace(beat, earliest=(*(other for other in beat.earliest if other.uid != found.uid), found))


def _reads_kafka(leaf: Any) -> bool:
    return bool(leaf.getClass().getSimpleName() == RELATION and leaf.table().getClass().getName() == TABLE)


def _allows_loss(source: Any) -> bool:
    return not source.extraOptions().getBoolean(LOSS_ALLOWED, True)


def _why(error: Py4JJavaError) -> str:
    """Return the cause in Kafka's words. For any other error, return only its name: its text may hold a part of a malformed password."""
    cause = _root(error)
    name = str(cause.getClass().getName())
    return str(cause.toString()) if name.startswith(ERRORS) else name


def _root(error: Py4JJavaError) -> Any:
    """Return the Java error that caused the others."""
    cause = error.java_exception
    while deeper := cause.getCause():
        cause = deeper
    return cause
