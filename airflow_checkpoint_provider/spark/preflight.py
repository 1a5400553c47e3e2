"""Compare the queries of a script with a checkpoint without running them. Runs in the Spark driver.

``checkpoints preflight`` starts the script with an order in its environment. Then ``CheckpointedJob`` is the class here. It reads the
checkpoint, and writes neither a journal nor a checkpoint, so the job itself may run meanwhile.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pyspark.sql import SparkSession

from airflow_checkpoint_provider.coordinator.coordinator import open_history
from airflow_checkpoint_provider.coordinator.preflight import copy_queries
from airflow_checkpoint_provider.coordinator.query_location import Location
from airflow_checkpoint_provider.policies.arguments import checks_arguments
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.protocol.preflight import PreflightRequest, PreflightResult, QueryFit
from airflow_checkpoint_provider.spark import arguments, s3a
from airflow_checkpoint_provider.spark.log import say
from airflow_checkpoint_provider.spark.queries.preflight import Preflight
from airflow_checkpoint_provider.spark.queries.query import Query
from airflow_checkpoint_provider.spark.stages.application import check_versions, refuse_connect
from airflow_checkpoint_provider.spark.state.value import Value
from airflow_checkpoint_provider.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from airflow_checkpoint_provider.spark.state.registered import CheckpointedObject

FOLDER = "preflight"  # below the root; a driver that is killed leaves its copies there


class PreflightJob:
    """Stands in for ``CheckpointedJob`` during a preflight. ``session`` is what the script gives it.

    A stage is computed and not stored, a value is that of the checkpoint, a registered object is not called, and no query runs. The
    driver ends where the ``with`` block ends.
    """

    def __init__(self, order: PreflightRequest, session: SparkSession | None) -> None:
        self._order, self._session = order, session

    def __enter__(self) -> Self:
        self.spark = self._session or SparkSession.builder.getOrCreate()
        refuse_connect(self.spark)
        check_versions(self.spark)
        home = open_store(self._order.root)
        s3a.prepare(self.spark, home)
        self._folder = Location(home, f"{FOLDER}/{secrets.token_hex(8)}")
        history = open_history(home, self._order.history)
        self._checkpoint, seal = copy_queries(history, self._order.source, self._folder)
        self._saved = seal.states
        self._fits: dict[str, QueryFit] = {}
        self._preflight = Preflight(self.spark, self._folder)
        say(f"PREFLIGHT: this script is compared with {self._checkpoint}. No query runs, and no checkpoint is taken.")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.store.delete_under(self._folder.key)
        if kind is not None and not issubclass(kind, SystemExit):
            return
        fits = (*self._fits.values(), *self._left_out())
        for fit in fits:
            say(f"query '{fit.query}': {fit.summary or 'ok'}")
        Path(self._order.answer).write_text(PreflightResult(self._checkpoint, fits).to_json())
        raise SystemExit(int(_exit_code(fits)))

    def _left_out(self) -> list[QueryFit]:
        why = "the script does not start it"
        saved = (uid for uid, state in self._saved.items() if state.query)
        return [QueryFit(uid, (why,)) for uid in saved if uid not in self._fits]

    # -- in the script -----------------------------------------------------------------------------------------------

    @checks_arguments(**arguments.QUERY)
    def start_query(
        self,
        uid: str,
        writer: DataStreamWriter,
        *,
        after: Sequence[str] = (),
        adopt: str | PathLike[str] | None = None,
        rescale: bool = False,
    ) -> Query:
        """Compare the query with the checkpoint. What is returned has ended."""
        saved = self._saved.get(uid)
        if saved and saved.query is None:
            self._fits[uid] = QueryFit(uid, (f"the checkpoint holds a {saved.kind} of that name",))
        else:
            query = saved.query if saved else None
            self._fits[uid] = self._preflight.compare(uid, writer, query, after=after, rescale=rescale)
        return ComparedQuery()

    def await_queries(self) -> None:
        """Do nothing: no query runs."""

    @checks_arguments(**arguments.STAGE)
    def stage(
        self,
        uid: str,
        df: DataFrame | Callable[[], DataFrame],
        *,
        version: str | None = None,
        inputs: str = "auto",
    ) -> DataFrame:
        """Return the rows of the script; they are not stored."""
        return df() if callable(df) else df

    @checks_arguments(**arguments.UID)
    def value(self, uid: str, default: Any = None) -> Value:
        """Return a value of the checkpoint. A change is not kept."""
        saved = self._saved.get(uid)
        values = {uid: saved.value} if saved else {}
        return Value(values, uid, default, values.__setitem__)

    @checks_arguments(**arguments.REGISTER)
    def register(self, uid: str, obj: CheckpointedObject) -> None:
        """Do nothing: nobody asks the object."""

    @checks_arguments(**arguments.CHECKPOINT)
    def checkpoint(self, *, wait: bool = True) -> None:
        """Do nothing: no checkpoint is taken."""

    @property
    def attempt(self) -> int:
        """Return 0: this is no attempt."""
        return 0

    @property
    def started_at(self) -> datetime:
        """Return the time."""
        return datetime.now(UTC)

    @property
    def restored(self) -> None:
        """Return None: nothing was restored."""


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
        """Return what Spark says of a query that has ended."""
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
