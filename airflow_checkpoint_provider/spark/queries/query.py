"""A query as the script sees it. Runs in the Spark driver."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from airflow_checkpoint_provider.policies.arguments import checks_arguments
from airflow_checkpoint_provider.spark.queries.batch_function import refuse_inside
from airflow_checkpoint_provider.spark.queries.running import RunningQuery
from airflow_checkpoint_provider.spark.stages import arguments

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

PAUSE = 0.5  # seconds between two polls whether the query has ended


class Query:
    """A streaming query, with the names of Spark's ``StreamingQuery``. It refers to the Spark query that runs now."""

    def __init__(self, running: RunningQuery, waiting: Callable[[], AbstractContextManager[None]]) -> None:
        self._running, self._waiting = running, waiting

    @property
    def spark_query(self) -> StreamingQuery:
        """Return the query that Spark runs now. After a stop that failed, Spark runs another one."""
        return self._running.spark_query

    @property
    def status(self) -> dict[str, Any]:
        """Return what Spark's query is doing."""
        return self.spark_query.status

    @property
    def lastProgress(self) -> Any:  # noqa: N802 - Spark's own name
        """Return Spark's report of the newest batch; None before the first one."""
        return self.spark_query.lastProgress

    @property
    def recentProgress(self) -> Any:  # noqa: N802 - Spark's own name
        """Return Spark's reports of the newest batches."""
        return self.spark_query.recentProgress

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's own name
        """Return whether the query runs, or is paused for the savepoint of a stop."""
        return self._running.runs()

    def exception(self) -> Exception | None:
        """Return the error with which the query failed; None if it did not."""
        return self._running.failed()

    def stop(self) -> None:
        """Stop the query. That is an end, not a failure."""
        refuse_inside()
        self._running.stop()

    def handled(self) -> None:
        """Say that the script has dealt with the failure of the query: the attempt goes on without it."""
        self._running.handled.set()

    @checks_arguments(**arguments.WAIT)
    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802 - Spark's own name
        """Wait until the query ends, at most ``timeout`` seconds. Return whether it has ended. Raises its error."""
        refuse_inside()
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._waiting():
            while self._running.runs():
                left = PAUSE if deadline is None else min(PAUSE, deadline - time.monotonic())
                if left <= 0:
                    return False
                time.sleep(left)
        if error := self._running.failed():
            raise error
        return True
