"""Queries in the checkpoint that are not started yet, although their upstream runs. Runs in the Spark driver.

Most scripts start them next, so a checkpoint waits for them. But another version of the script may have dropped them. A checkpoint that
does not wait any more holds them as they were, although their upstreams have gone on. If the same job starts them later, they read on:
their rows are still there.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from airflow_checkpoint_provider.errors import Declined
from airflow_checkpoint_provider.protocol.metadata import StateSnapshot
from airflow_checkpoint_provider.spark.process.log import say
from airflow_checkpoint_provider.spark.queries.running import RunningQuery
from airflow_checkpoint_provider.spark.state.snapshot import Check, FileSetFolder, StoredSnapshot
from airflow_checkpoint_provider.text import query_messages

PATIENCE = 60.0  # seconds after a start, in which checkpoints wait for the next one


class Unstarted:
    """Says which queries are expected: the script may start them soon. They no longer are when it waits for those that run, or has
    started none for ``PATIENCE``. Its methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._since = math.inf  # when the newest start ended
        self._began = math.inf  # when it began
        self._given_up = frozenset[str]()

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Note that the script starts a query inside this block. The start may take hours, and the next one comes after it."""
        self._since, self._began = math.inf, time.monotonic()
        try:
            yield
        finally:
            self._since = time.monotonic()

    def script_waits(self) -> None:
        """Note that the script waits for the queries that run, and does not start another one first."""
        self._since = -math.inf

    def may_start_more(self) -> bool:
        """Return whether the script may soon start another query."""
        return time.monotonic() < self._since + PATIENCE

    def starts_soon(self) -> bool:
        """Return whether the script may start another query soon. A start that catches up for hours is not waited for: another version
        of the script may have dropped the others.
        """
        newest = self._began if self._since == math.inf else self._since
        return time.monotonic() < newest + PATIENCE

    def refuse_to_drain(self, not_started: Collection[str]) -> None:
        """Raise ``Declined`` if the script may soon start one of the queries that are not drained. Log which are not."""
        if not_started and self.may_start_more():
            names = ", ".join(f"'{uid}'" for uid in sorted(not_started))
            raise Declined(
                f"not started yet, so not drained: {names}. Ask again when they are started, or stop the job without a drain"
            )
        if not_started:
            say(query_messages.not_drained(sorted(not_started)))

    def expected(self, running: Collection[str], states: Mapping[str, StateSnapshot]) -> dict[str, str]:
        """Return the queries that the script may start soon, each with the running one whose rows it reads. ``states`` are those of the
        newest checkpoint. Log, once, which are expected no longer.
        """
        missing = _readers(running, states)
        if not self.may_start_more():
            for uid in missing.keys() - self._given_up:
                say(query_messages.not_awaited(uid, missing[uid]))
            self._given_up |= missing.keys()
        return {uid: upstream for uid, upstream in missing.items() if uid not in self._given_up}

    def snapshots(
        self, running: Mapping[str, RunningQuery], states: Mapping[str, StateSnapshot]
    ) -> dict[str, HandedOn]:
        """Return a snapshot of each query that is not started and reads of a running one."""
        expected = self.expected(running, states)
        return {uid: HandedOn(_apart(states[uid], running), expected.get(uid)) for uid in _readers(running, states)}


@dataclass(frozen=True)
class HandedOn:
    """A query that is held as it was. ``upstream`` is the query that has gone on, if the script may start this one soon."""

    record: StateSnapshot
    upstream: str | None

    def write(self, check: Check, folder: FileSetFolder | None = None) -> StateSnapshot:
        """Return the record. Raises ``Declined`` for a savepoint: another job would start from it, and soon a better one can be taken."""
        if folder is not None and self.upstream is not None:
            raise Declined(
                f"query '{self.record.uid}' is not started yet, and '{self.upstream}' has gone on, whose rows it reads. Ask again when"
                f" '{self.record.uid}' is started"
            )
        return StoredSnapshot(self.record).write(check, folder)

    def discard(self) -> None:
        """Do nothing: it holds nothing."""


def _apart(state: StateSnapshot, running: Mapping[str, RunningQuery]) -> StateSnapshot:
    """Return the record, marked with the upstreams that have gone on without the query.

    An upstream that has begun in another sink, as in a fork, is not marked: that sink has all rows that the query has yet to read.
    """
    sinks = {uid: query.sink.path for uid, query in running.items()}
    edges = state.query.edges if state.query else ()
    marked = tuple(replace(edge, apart=True) if sinks.get(edge.upstream) == edge.path else edge for edge in edges)
    return replace(state, query=replace(state.query, edges=marked)) if state.query else state


def _readers(running: Collection[str], states: Mapping[str, StateSnapshot]) -> dict[str, str]:
    """Return each query that does not run and has read the rows of a running one, with that upstream."""
    return {
        uid: edge.upstream
        for uid, state in states.items()
        for edge in (state.query.edges if state.query and uid not in running else ())
        if edge.upstream in running
    }
