"""The progress of a job's running streaming queries, from a heartbeat of its driver. Runs anywhere; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_checkpoint_provider.coordinator.liveness import Beat, QueryProgress
from airflow_checkpoint_provider.errors import printable
from airflow_checkpoint_provider.text.units import NONE, ago, batch, between, clock, size, table

OF_QUERIES = ("interval_s", "min_pause_s", "mode", "aligned_timeout_s")
"""The options that are in force only while a query runs, as a configuration stores them."""
NO_QUERY = "not in force (no query runs)"

NAMED = 5
"""Queries whose batches a short text names."""
HEADER = ("query", "newest batch", "ended", "rows/s in", "rows/s done", "rows behind", "state rows", "state")


def report(beat: Beat, age: float) -> list[str]:
    """Return a table of the queries that run; nothing if there are none. ``age``: of the heartbeat, in seconds.

    The table says when each batch ended, because its rates are as old as that.
    """
    if not beat.queries:
        return []
    lines = table(HEADER, rows(beat))
    return [f" queries at {clock(beat.at)}, the newest heartbeat, {ago(age)} ago:", *(f" {line}" for line in lines)]


def rows(beat: Beat) -> list[tuple[str, ...]]:
    """Return the cells of the queries that run, below ``HEADER``."""
    return [_cells(query, beat.at) for query in beat.queries]


def _cells(query: QueryProgress, at: str) -> tuple[str, ...]:
    rates = (NONE if rate is None else f"{rate:.1f}" for rate in (query.input_rate, query.processed_rate))
    counts = (NONE if count is None else str(count) for count in (query.rows_behind, query.state_rows))
    total = NONE if query.state_bytes is None else size(query.state_bytes)
    return (query.uid, batch(query.batch), _ended(query, at) or NONE, *rates, *counts, total)


def _ended(query: QueryProgress, at: str) -> str:
    return f"{ago(between(query.ended_at, at))} ago" if query.ended_at else ""


def running(queries: Sequence[QueryProgress]) -> str:
    """Return which queries run, and the newest batch of each; empty if there are none."""
    if not queries:
        return ""
    if len(queries) == 1:
        return f"query '{printable(queries[0].uid)}', {batch(queries[0].batch)}"
    numbers = [NONE if query.batch < 0 else str(query.batch) for query in queries[:NAMED]]
    more = ", …" if len(queries) > NAMED else ""
    return f"{len(queries)} queries, batches {', '.join(numbers)}{more}"


def brief(beat: Beat) -> str:
    """Return the newest batch of the query that runs, and its rows per second; for several queries, only their number and rate."""
    rates = [query.input_rate for query in beat.queries if query.input_rate is not None]
    parts = [f"{len(beat.queries)} queries"]
    if len(beat.queries) == 1:
        (query,) = beat.queries
        parts = [f"query '{query.uid}'", batch(query.batch)]
        parts += [f"ended {_ended(query, beat.at)}"] if query.ended_at else []
    parts += [f"{sum(rates):.1f} rows/s"] if rates else []
    return ", ".join(parts)
