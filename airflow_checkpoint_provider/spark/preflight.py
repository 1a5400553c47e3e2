"""Compare the queries of a script with a checkpoint without running them. Runs in the Spark driver.

``checkpoints preflight`` starts the script with an order in its environment. Then ``CheckpointedJob`` has the run here. It reads the
checkpoint, and writes neither a journal nor a checkpoint, so the job itself may run meanwhile. Writes of the script through Spark are
refused, from the import of this package on.
"""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql import SparkSession

from airflow_checkpoint_provider.coordinator.assignment import check_kind
from airflow_checkpoint_provider.coordinator.coordinator import open_history
from airflow_checkpoint_provider.coordinator.preflight import copy_at, copy_queries
from airflow_checkpoint_provider.errors import InvalidConfig, StoreError
from airflow_checkpoint_provider.location.files import Location
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.protocol.metadata import FILES, ONCE
from airflow_checkpoint_provider.protocol.preflight import (
    PREFLIGHT_VARIABLE,
    UNSET,
    PreflightRequest,
    PreflightResult,
    QueryFit,
)
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.spark import s3a
from airflow_checkpoint_provider.spark.attempt.settings import Launched
from airflow_checkpoint_provider.spark.job_run import JobRun
from airflow_checkpoint_provider.spark.loops.frame import Frame
from airflow_checkpoint_provider.spark.loops.keyed import KeyedChange, KeyedState, OpenedKeyed
from airflow_checkpoint_provider.spark.loops.pace import Every
from airflow_checkpoint_provider.spark.process.exits import leave
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.queries.preflight import Preflight
from airflow_checkpoint_provider.spark.queries.query import Query
from airflow_checkpoint_provider.spark.read_only import refuse_writes
from airflow_checkpoint_provider.spark.sinks.base import Sink
from airflow_checkpoint_provider.spark.sinks.writer import SinkWriter
from airflow_checkpoint_provider.spark.stages.kept_files import Folder
from airflow_checkpoint_provider.spark.stages.part_arguments import Parts
from airflow_checkpoint_provider.spark.state.registered import Registered
from airflow_checkpoint_provider.spark.state.states import States
from airflow_checkpoint_provider.spark.state.value import Value
from airflow_checkpoint_provider.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

    from airflow_checkpoint_provider.spark.state.registered import CheckpointedObject

FOLDER = "preflight"  # below the root; a driver that is killed leaves its copies there


class PreflightRun(JobRun):
    """A script's run that compares its queries with a checkpoint.

    A stage is computed and not stored, a value is that of the checkpoint, a registered object gets its state and is not called again,
    and no query runs. The process ends as soon as each query of the checkpoint is compared.
    """

    def __init__(self, spark: SparkSession, order: PreflightRequest, task: Launched | None) -> None:
        super().__init__(spark)
        self._order = order
        _refuse_launched(task)
        refuse_writes()
        home = open_store(order.root)
        s3a.prepare(spark, home)
        self._folder = Location(home, f"{FOLDER}/{secrets.token_hex(8)}")
        self._checkpoint, self._seal = copy_queries(open_history(home, order.history), order.source, self._folder)
        self._saved = self._seal.states
        self._fits: dict[str, QueryFit] = {}
        self._preflight = Preflight(spark, self._folder)
        say(
            f"PREFLIGHT: this script runs until its queries are compared with {self._checkpoint}. No query runs, no checkpoint is taken,"
            " and writes through Spark are refused"
        )

    def finish(self) -> NoReturn:
        """Answer for the queries that the script has started."""
        self._end()

    def fail(self, error: BaseException | None) -> None:
        """Answer if the script has ended the process. Any other error is the answer."""
        if isinstance(error, SystemExit):
            self._end()
        self._delete_copies()

    def _end(self) -> NoReturn:
        """Answer, and end the process from any thread: no other line of the script runs."""
        fits = (*self._fits.values(), *self._left_out())
        for fit in fits:
            say(f"query '{fit.query}': {fit.summary or 'ok'}")
        Path(self._order.answer).write_text(PreflightResult(self._checkpoint, fits).to_json())
        self._delete_copies()
        leave(int(_exit_code(fits)), "PREFLIGHT: done. The script ends here")

    def _delete_copies(self) -> None:
        with suppress(StoreError):  # the answer, or the script's own error, counts; copies may stay, as after a kill
            self._folder.store.delete_under(self._folder.key)

    def _left_out(self) -> list[QueryFit]:
        why = "the script does not start it"
        return [QueryFit(uid, (why,)) for uid, state in self._saved.items() if state.query and uid not in self._fits]

    # -- in the script -----------------------------------------------------------------------------------------------

    def start_query(
        self, uid: str, writer: DataStreamWriter, after: Sequence[str], adopt: str | None, *, rescale: bool
    ) -> Query:
        """Compare the query with the checkpoint, and return a query that has ended.

        The process ends here if each query of the checkpoint is compared now.
        """
        saved = self._saved.get(uid)
        if saved and saved.query is None:
            self._fits[uid] = QueryFit(uid, (f"the checkpoint holds a {saved.kind} of that name",))
        else:
            query = saved.query if saved else None
            self._fits[uid] = self._preflight.compare(uid, writer, query, after=after, rescale=rescale)
        if not self._left_out():
            self._end()
        return ComparedQuery()

    def await_queries(self) -> None:
        """Do nothing: no query runs."""

    def stage(self, uid: str, df: DataFrame | Callable[[], DataFrame], version: str | None, inputs: str) -> DataFrame:
        """Return the rows of the script; they are not stored."""
        return df() if callable(df) else df

    def stage_in_parts(self, uid: str, source: Any, parts: Parts, version: str | None, inputs: str) -> DataFrame:
        """Return the rows of all parts; they are not stored."""
        frames: list[DataFrame] = [source] if parts.by else [source(value) for value in parts.given]
        return functools.reduce(lambda one, other: one.unionByName(other), frames)

    def files(self, uid: str, write: Callable[[str], object], version: str | None, *, local: bool) -> str:
        """Return a copy of the folder in the checkpoint. If that holds none, the script writes one on the driver's disk."""
        on_disk, saved = Folder.on_disk(), self._saved.get(uid)
        if saved is None:
            if local:
                Path(on_disk.path).mkdir()
            write(on_disk.path)
            return on_disk.path
        check_kind(saved, FILES)
        location = copy_at(self._folder, uid)
        copy = Folder(location.store, location.key)
        return copy.download(on_disk, saved.file_sets[0].files) if local else copy.uri

    def value(self, uid: str, default: Any) -> Value:
        """Return a value of the checkpoint. A change is not kept."""
        saved = self._saved.get(uid)
        values = {uid: saved.value} if saved else {}
        return Value(values, uid, default, values.__setitem__)

    def register(self, uid: str, obj: CheckpointedObject) -> None:
        """Give the object its state in the checkpoint, as a start would. It is not called later."""
        Registered(States("", dict(self._saved)), self._seal.id).add(uid, obj)

    def sink(self, uid: str, sink: Sink, *, gated: bool) -> SinkWriter:
        """Return a sink that takes no rows."""
        return SinkWriter()

    def txn(self, uid: str) -> dict[str, str]:
        """Return a number of no run: nothing is written."""
        return {"txnAppId": "preflight", "txnVersion": "1"}

    def iterate(self, uid: str, items: Iterable[Any], every: Every) -> Iterator[Any]:
        """Return all items: no turn of another run counts."""
        return iter(items)

    def once(self, uid: str, items: Iterable[Any]) -> Iterator[Any]:
        """Return the items that the checkpoint does not hold as done."""
        saved = self._saved.get(uid)
        done = {canonical(item) for item in saved.value} if saved and saved.kind == ONCE else set()
        return (item for item in items if canonical(item) not in done)

    def frame(self, uid: str, initial: DataFrame | Callable[[], DataFrame]) -> Frame:
        """Return a frame with its first rows, also if the checkpoint holds others. A change is not kept."""
        rows = {uid: initial() if callable(initial) else initial}
        return Frame(lambda: rows[uid], lambda df: rows.update({uid: df}))

    def keyed_state(
        self, uid: str, key: Sequence[str] | str, schema: StructType | str | None, max_parallelism: int
    ) -> KeyedState:
        """Return a table by key without rows, also if the checkpoint holds some. A change is not kept."""
        opened = OpenedKeyed.of(uid, key, schema, max_parallelism, self.spark)

        def rows() -> DataFrame:
            if opened.df is None:
                opened.df = opened.first()
            return opened.df

        def change(how: KeyedChange, df: DataFrame) -> None:
            how(rows() if opened.has_columns else None, df)

        return KeyedState(opened, rows, change)

    def checkpoint(self, *, wait: bool) -> bool:
        """Take none. Return True: the script goes on."""
        return True

    @property
    def epoch(self) -> int:
        """Return 0: this is no attempt."""
        return 0

    @property
    def started_at(self) -> datetime:
        """Return the time."""
        return datetime.now(UTC)

    @property
    def restored(self) -> None:
        """Return None: nothing was restored."""


def refuse_ended(order: PreflightRequest) -> None:
    """Raise ``InvalidConfig`` if no command waits for the answer: the answer's folder is deleted when the command ends."""
    if not Path(order.answer).parent.is_dir():
        raise InvalidConfig(
            f"{PREFLIGHT_VARIABLE} is in the environment of this script, and the preflight that has set it is over. {UNSET}"
        )


def _refuse_launched(task: Launched | None) -> None:
    """Raise ``InvalidConfig`` in the driver of a task: its run would seem to be done, and nothing would have been computed."""
    if task:
        raise InvalidConfig(
            f"{PREFLIGHT_VARIABLE} is in the environment of a driver that an Airflow task has launched. The job was not started. Remove"
            " it from the environment of the driver, e.g. from env_vars=, or of the machine or the pod in which the driver runs"
        )


def _exit_code(fits: Sequence[QueryFit]) -> ExitCode:
    if any(fit.differences for fit in fits):
        return ExitCode.REFUSED
    return ExitCode.FAILED if any(fit.unknown for fit in fits) else ExitCode.FINISHED


class ComparedQuery(Query):
    """A query that was compared. To the script it has ended."""

    def __init__(self) -> None:
        """Begin nothing."""

    @property
    def status(self) -> dict[str, Any]:
        """Return Spark's status of a query that has ended."""
        return {"message": "Stopped", "isDataAvailable": False, "isTriggerActive": False}

    @property
    def lastProgress(self) -> None:  # noqa: N802 - Spark's own name
        """Return None: no batch was run."""

    @property
    def recentProgress(self) -> list[Any]:  # noqa: N802 - Spark's own name
        """Return nothing: no batch was run."""
        return []

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's own name
        """Return False: it does not run."""
        return False

    def exception(self) -> None:
        """Return None: it did not run, so it did not fail."""

    def stop(self) -> None:
        """Do nothing: it does not run."""

    def handled(self) -> None:
        """Do nothing: it did not fail."""

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802 - Spark's own name
        """Return that it has ended."""
        return True


if os.environ.get(PREFLIGHT_VARIABLE):  # a script may write before its ``with`` block, too
    refuse_writes()
