"""The interface of a sink: what a target must offer so that rows are in it once. Runs in the Spark driver.

A sink of your own is two classes. ``Sink`` holds the options that the script writes; ``open`` returns an ``OpenSink`` for one run. Its four
methods are enough: ``prepare`` before a barrier, ``commit`` after the checkpoint is completed, ``abort`` if that will never be, and
``position`` for people.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_checkpoint_provider.errors import NotSupportedYet
from airflow_checkpoint_provider.protocol.transactions import Transaction
from airflow_checkpoint_provider.sinks.log import RunOfSink
from airflow_checkpoint_provider.text.units import plural

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class SinkContext:
    """The run that writes to a sink.

    ``history`` is the URI of the history's folder, ``incarnation`` its id. ``run`` is the key of the run, equal in every retry.
    ``generation`` rises when a person clears the task. ``run_began`` is when the run began, in seconds since 1970, equal in every retry.
    ``attempt`` is the epoch of this attempt. ``temporary`` gives ``prepare`` the URI of a folder for the name of its transaction. It does
    not exist yet, all hosts reach it, and it is deleted after the block. ``also`` are other names that the sink has had in this history: what
    the target holds under them is its own.
    """

    spark: SparkSession
    uid: str
    job: str
    history: str
    incarnation: str
    run: str
    generation: int
    run_began: float
    attempt: int
    temporary: Callable[[str], AbstractContextManager[str]]
    also: tuple[str, ...] = ()

    @property
    def by(self) -> RunOfSink:
        """Return the run as the sinks of this package note it in their targets."""
        return RunOfSink(
            history=self.history,
            incarnation=self.incarnation,
            run=self.run,
            uid=self.uid,
            generation=self.generation,
        )


@dataclass(frozen=True)
class Prepared:
    """Rows that a sink holds ready: their number, their bytes, and what ``commit`` needs, as small JSON without secrets."""

    rows: int
    bytes: int
    content: dict[str, Any]


@dataclass(frozen=True)
class Leftover:
    """A transaction that somebody prepared in the target and nobody has ended: its name, and URI and incarnation of the history that wrote it.

    Without an incarnation, the URI alone tells whose it is.
    """

    name: str
    history: str
    incarnation: str = ""


@dataclass(frozen=True)
class Committed:
    """A transaction whose rows readers see: its name, its version, and the run that wrote it."""

    name: str
    version: int
    run: str


class OpenSink(ABC):
    """A sink that one run of a job writes to. The script's thread prepares; another thread commits, one transaction at a time."""

    replaces: bool = False
    """Whether ``commit`` takes out the rows of ``Transaction.replaces`` in the same step. Else a run that would append twice is refused."""

    in_order: bool = False
    """Whether a write takes the place of rows of earlier writes, as an overwrite and an upsert do. If a retry does one write again, it does
    all later ones again, too."""

    lists_prepared: bool = False
    """Whether ``leftovers`` names all transactions that are prepared: one that it does not name was aborted, or is committed."""

    @abstractmethod
    def prepare(self, df: DataFrame, name: str, version: int) -> Prepared:
        """Compute the rows of ``df`` and hold them ready under ``name``, where no reader finds them. They must survive a crash.

        ``name`` is used once. ``version`` rises with each write of the history to this sink, through retries and clears. Called once for a
        write, so an error leaves leftovers under a name that never comes back.
        """

    def prepare_removal(self, name: str, version: int) -> Prepared | None:
        """Hold ready what ``commit`` needs to take out the rows of ``Transaction.replaces`` and to add none; None if no rows are there.

        Called at the end of a run whose script has written less often than its earlier attempts.
        """
        raise NotSupportedYet(
            'this sink cannot take them out. Bring the script back as it was, or remove the rows. With mode="overwrite", write(df.limit(0))'
            " replaces them, too"
        )

    @abstractmethod
    def commit(self, transaction: Transaction) -> bool:
        """Let readers see the rows. Return False if the transaction was aborted before.

        Called again after a crash, also by another process and in another attempt: a transaction that is committed must stay so. Raises a
        ``CheckpointError``: if it is not ``permanent``, the driver tries again.
        """

    @abstractmethod
    def abort(self, names: Collection[str]) -> tuple[str, ...]:
        """See to it that these transactions are never committed, also by a process that wakes up later, and delete what was prepared.

        Return the names of those that are committed already: these stay as they are.
        """

    @abstractmethod
    def position(self) -> str:
        """Return in a few words what the target holds now: ``entry 41``."""

    def standing(self) -> tuple[str, ...]:
        """Return the names of the transactions of this run, in any attempt, whose rows readers see. Empty if the target does not say."""
        return ()

    def later(self, version: int) -> Sequence[Committed]:
        """Return the transactions of this history after ``version`` whose rows readers see. Empty if the target does not say."""
        return ()

    def take_out(self, names: Collection[str]) -> None:
        """Take the rows of committed transactions out, because the job goes back. Called only for those that ``later`` returned."""
        raise NotSupportedYet(f"the rows of {plural(len(names), 'transaction')} cannot be taken out of this sink")

    def taken_out(self, transactions: Sequence[Transaction]) -> Collection[str]:
        """Return the names of those committed transactions that ``take_out`` has taken out since. Empty if the target does not say."""
        return ()

    def leftovers(self) -> Sequence[Leftover]:
        """Return the transactions that are prepared in the target and not committed, of any run. Empty if the target does not say."""
        return ()


class Sink(ABC):
    """The options of a sink, as the script writes them: ``job.sink("report", FileSink(path)).write(df)``."""

    kind: ClassVar[str]
    """The kind of the sink, for people and for a checkpoint: it refuses another kind under the same uid."""

    @property
    @abstractmethod
    def target(self) -> str:
        """Return the place of the rows in one spelling, without secrets: a URI, the name of a table."""

    @property
    def compared_options(self) -> Mapping[str, Any]:
        """Return the options on which the rows in the target depend, as small JSON without secrets: a mode, a format. If they have changed, a
        retry does the writes of its restore point again.
        """
        return {}

    @abstractmethod
    def open(self, context: SinkContext) -> OpenSink:
        """Reach the target, check the rights that ``commit`` needs, and return the sink of this run.

        Called once in an attempt, before anything is computed for it. Raises a ``CheckpointError`` that says what to do.
        """
