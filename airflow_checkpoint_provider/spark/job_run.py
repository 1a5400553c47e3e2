"""The run of a job inside its ``with`` block: an attempt, or a preflight. Runs in the Spark driver."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.errors import WrongUse
from airflow_checkpoint_provider.spark.loops.frame import Frame
from airflow_checkpoint_provider.spark.loops.keyed import KeyedState
from airflow_checkpoint_provider.spark.loops.pace import Every
from airflow_checkpoint_provider.spark.queries.query import Query
from airflow_checkpoint_provider.spark.sinks.base import Sink
from airflow_checkpoint_provider.spark.sinks.writer import SinkWriter
from airflow_checkpoint_provider.spark.stages.part_arguments import Parts
from airflow_checkpoint_provider.spark.state.registered import CheckpointedObject
from airflow_checkpoint_provider.spark.state.value import Value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class CheckpointRef:
    """A checkpoint of a job: its id, and the pointer that opens it."""

    job: str
    scope: str
    id: int
    pointer: str


class JobRun(ABC):
    """One run of a script's ``with`` block. Its methods are those of ``CheckpointedJob``, which has checked the arguments."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._owner = os.getpid()

    @property
    def forked(self) -> bool:
        """Return whether this process is a fork of the process that runs the job."""
        return os.getpid() != self._owner

    def refuse_fork(self) -> None:
        """Raise ``WrongUse`` in a forked child."""
        if self.forked:
            raise WrongUse(
                "the job was called in a forked child. The attempt is that of the process that forked: call the job there. Start"
                " programs with subprocess, and let a child of os.fork end by os._exit"
            )

    @abstractmethod
    def finish(self) -> None:
        """Leave the ``with`` block whose script has ended well."""

    @abstractmethod
    def fail(self, error: BaseException | None) -> None:
        """Leave the ``with`` block whose script ended with ``error``."""

    @abstractmethod
    def stage(self, uid: str, df: DataFrame | Callable[[], DataFrame], version: str | None, inputs: str) -> DataFrame:
        """Return the rows of a stage."""

    @abstractmethod
    def stage_in_parts(self, uid: str, source: Any, parts: Parts, version: str | None, inputs: str) -> DataFrame:
        """Return the rows of a stage that is computed in parts."""

    @abstractmethod
    def files(self, uid: str, write: Callable[[str], object], version: str | None, *, local: bool) -> str:
        """Return the path of a folder of files."""

    @abstractmethod
    def value(self, uid: str, default: Any) -> Value:
        """Return a value."""

    @abstractmethod
    def register(self, uid: str, obj: CheckpointedObject) -> None:
        """Give an object its state."""

    @abstractmethod
    def sink(self, uid: str, sink: Sink, *, gated: bool) -> SinkWriter:
        """Open a sink."""

    @abstractmethod
    def txn(self, uid: str) -> dict[str, str]:
        """Return the id and the number of a write that the script makes itself."""

    @abstractmethod
    def iterate(self, uid: str, items: Iterable[Any], every: Every) -> Iterator[Any]:
        """Return the items of a loop that a run does once."""

    @abstractmethod
    def once(self, uid: str, items: Iterable[Any]) -> Iterator[Any]:
        """Return the items of a loop that a history does once."""

    @abstractmethod
    def frame(self, uid: str, initial: DataFrame | Callable[[], DataFrame]) -> Frame:
        """Return a frame."""

    @abstractmethod
    def keyed_state(
        self, uid: str, key: Sequence[str] | str, schema: StructType | str | None, max_parallelism: int
    ) -> KeyedState:
        """Return a table by key."""

    @abstractmethod
    def start_query(
        self, uid: str, writer: DataStreamWriter, after: Sequence[str], adopt: str | None, *, rescale: bool
    ) -> Query:
        """Start a query."""

    @abstractmethod
    def await_queries(self) -> None:
        """Wait until every query has ended."""

    @abstractmethod
    def checkpoint(self, *, wait: bool) -> bool:
        """Take a checkpoint. Return False if it was waited for and is not completed."""

    @property
    @abstractmethod
    def epoch(self) -> int:
        """Return the number of the attempt."""

    @property
    @abstractmethod
    def started_at(self) -> datetime:
        """Return when the run's first attempt was planned."""

    @property
    @abstractmethod
    def restored(self) -> CheckpointRef | None:
        """Return the checkpoint from which the attempt started."""
