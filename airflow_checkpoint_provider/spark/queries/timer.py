"""The timer of checkpoints: it runs while a query of the job runs. Runs in the Spark driver.

A thread takes checkpoints at the pace of ``interval``, and at once if somebody asks. A query has a consistent point whenever a batch is
committed, so it needs no barrier of the script. Values are then those of the script's last barrier. Registered objects are asked only while
the script waits for its queries: at other times it may be changing them.
"""

from __future__ import annotations

import random
import threading
import time
import traceback

from airflow_checkpoint_provider.errors import CheckpointError, CommitStateUnknown
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.spark.attempt.attempt import Attempt
from airflow_checkpoint_provider.spark.checkpoints.checkpointer import Checkpointer, Turn
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.queries.queries import Queries
from airflow_checkpoint_provider.spark.queries.query import PAUSE

HANDLING = 30.0  # seconds in which the script may deal with a query that failed
AFTER_FAILURE = 10.0  # seconds until a checkpoint is tried again that somebody waits for
LAST_CHECKPOINT = 10.0  # seconds that a checkpoint of the thread may take when the job ends
BARRIER = "queries"


class CheckpointTimer:
    """Takes the checkpoints of an attempt while its queries run, in a thread."""

    def __init__(
        self, attempt: Attempt, queries: Queries, checkpointer: Checkpointer, config: CheckpointConfig
    ) -> None:
        self._attempt, self._queries, self._checkpointer, self._config = attempt, queries, checkpointer, config
        self._failed_since: dict[str, float] = {}  # uid -> when the thread first saw that the query had failed
        self._due = 0.0  # when the timer takes its next checkpoint
        self._served = 0.0  # from when on requests are served
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="checkpoint-timer", daemon=True)

    def start(self) -> None:
        """Begin with the first query that runs. A second call does nothing."""
        with self._attempt.barriers:  # two threads of the script may start queries at once
            if not self._thread.is_alive():
                self._thread.start()

    def end(self) -> None:
        """Take no further checkpoint."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(LAST_CHECKPOINT)

    def settle(self) -> None:
        """Give up older locations of the queries, and let them be deleted."""
        for delete in self._queries.settle():
            self._checkpointer.delete_later(delete)

    def _serve(self) -> None:
        """Take checkpoints until the attempt ends: on request, and when one is due. If that fails, end the attempt."""
        try:
            while not (self._queries.started or self._ending.wait(PAUSE)):
                pass
            self._due = time.monotonic() + random.uniform(self._config.min_pause_s, self._config.interval_s)
            while not self._ending.wait(PAUSE):
                self._end_if_failed()
                self.settle()
                self._take_due()
        except Exception as error:  # noqa: BLE001 - without this thread, nobody would serve a stop
            if not self._ending.is_set():
                traceback.print_exc()
                why = f"its queries can take no more checkpoints: {error}"
                self._attempt.end.now("failed", ExitCode.FAILED, why)

    def _take_due(self) -> None:
        """Take the checkpoint that is due, or asked for. No checkpoint is due while no query runs: nothing new could be saved."""
        now = time.monotonic()
        self._checkpointer.pause.update()
        due = now >= self._due and self._queries.any_runs()
        asked = now >= self._served and self._checkpointer.requested()
        if not (due or asked) or self._queries.others_wait():
            return
        turn = self._checkpoint(periodic=due)
        if turn is Turn.PAUSED:
            self._due = now + self._checkpointer.pause.left_s()
        elif turn is not Turn.WAITS:
            self._served = time.monotonic() + (AFTER_FAILURE if turn is Turn.FAILED else 0.0)
            self._due = now + self._config.interval_s

    def _checkpoint(self, *, periodic: bool) -> Turn:
        """Take a checkpoint of the queries. Return what became of it. The thread goes on whatever that is."""
        script = self._queries.script_held
        try:
            if periodic:
                return self._checkpointer.periodic_checkpoint(BARRIER, script=script)
            taken = self._checkpointer.checkpoint(BARRIER, wait=True, script=script)
            return Turn.TAKEN if taken else Turn.FAILED
        except CommitStateUnknown:
            raise  # the job may be suspended by now
        except CheckpointError as error:
            say(f"A checkpoint of the queries failed. The next one tries again: {error}")
            return Turn.FAILED

    def _end_if_failed(self) -> None:
        """End the attempt if a query has failed and the script takes no notice of it."""
        for uid, error in self._queries.failed():
            since = self._failed_since.setdefault(uid, time.monotonic())
            if time.monotonic() > since + HANDLING:
                traceback.print_exception(error)
                why = f"query '{uid}' failed, and the script continued for {HANDLING:g} s. Call its handled() to continue without it"
                self._attempt.end.now("failed", ExitCode.FAILED, why)
