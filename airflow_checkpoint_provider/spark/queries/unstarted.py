"""Queries of the checkpoint that the script has not started, though one runs whose rows they read. Runs in the Spark driver.

Most scripts start them next, so a checkpoint waits for them. Another version of the script may have dropped them.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Collection, Iterator, Mapping

from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.spark.log import say

PATIENCE = 60.0  # seconds from one start to the next


class Unstarted:
    """Says which queries are expected: the script may start them soon. They no longer are when it waits for those that run, or has
    started none for ``PATIENCE``. Its methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._since = math.inf  # when the newest start ended
        self._given_up = frozenset[str]()

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Note that the script starts a query inside this block. It may take hours, and the next one comes behind it."""
        self._since = math.inf
        try:
            yield
        finally:
            self._since = time.monotonic()

    def script_waits(self) -> None:
        """Note that the script waits for the queries that run, and does not start another one first."""
        self._since = -math.inf

    def expected(self, running: Collection[str], states: Mapping[str, StateSnapshot]) -> dict[str, str]:
        """Return the queries that the script may start soon, each with the running one whose rows it reads. ``states`` are those of the
        newest checkpoint. Log, once, which are expected no longer.
        """
        missing = _readers(running, states)
        if time.monotonic() >= self._since + PATIENCE:
            for uid in missing.keys() - self._given_up:
                say(
                    f"query '{uid}' of the checkpoint is not started, and '{missing[uid]}' runs, whose rows it reads. Checkpoints no longer"
                    f" wait for '{uid}', and hold it as it was"
                )
            self._given_up |= missing.keys()
        return {uid: upstream for uid, upstream in missing.items() if uid not in self._given_up}


def _readers(running: Collection[str], states: Mapping[str, StateSnapshot]) -> dict[str, str]:
    """Return the queries that do not run and have read what a running one writes, each with that one."""
    return {
        uid: edge.upstream
        for uid, state in states.items()
        for edge in (state.query.edges if state.query and uid not in running else ())
        if edge.upstream in running
    }
