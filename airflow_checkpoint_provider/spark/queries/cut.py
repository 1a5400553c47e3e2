"""A cut over linked queries: one batch of each, chosen so that they fit together. Runs in the Spark driver.

Queries are linked if one reads the rows that another one, its upstream, writes. A query must not have read rows that its upstream, in the
same checkpoint, has not written yet. After a restore the upstream would write these rows again into other files, and the query would read
them twice. A cut takes only batches without such rows. Rows that the upstream has written and the query has not read are *in flight*. A
checkpoint is aligned if no rows are in flight.

No query pauses for a cut. Each goes on, and the cut compares the batches that were committed since the trigger until some fit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from airflow_checkpoint_provider.errors import Declined
from airflow_checkpoint_provider.location.fence import reached
from airflow_checkpoint_provider.location.files import COMMITS, NOTHING, Position
from airflow_checkpoint_provider.protocol.config import EXACTLY_ONCE, CheckpointConfig
from airflow_checkpoint_provider.protocol.query_details import Edge
from airflow_checkpoint_provider.spark.checkpoints.copies import TooLate
from airflow_checkpoint_provider.spark.queries.flows.by_sink import flow_between
from airflow_checkpoint_provider.spark.queries.flows.flow import Flow
from airflow_checkpoint_provider.spark.queries.running import RunningQuery
from airflow_checkpoint_provider.spark.queries.sinks.base import StreamSink
from airflow_checkpoint_provider.spark.state.snapshot import Check

PAUSE = 0.1  # seconds between two polls of what was committed

Positions = Mapping[str, Position]
Fits = Callable[[Flow, Position, Position], bool]
"""Whether an upstream and its downstream may be cut at these positions."""


@dataclass(frozen=True)
class CutPosition:
    """The position at which a query is cut, its edges to its upstreams there, and the seconds until the cut was found."""

    position: Position
    edges: tuple[Edge, ...]
    alignment_s: float


def linked_queries(queries: Mapping[str, RunningQuery]) -> list[dict[str, RunningQuery]]:
    """Return the groups of linked queries, each in the order of their starts."""
    groups: list[set[str]] = []
    for uid, query in queries.items():
        mine = {uid, *query.upstreams}
        groups = [
            *(group for group in groups if not group & mine),
            mine.union(*(group for group in groups if group & mine)),
        ]
    return [{uid: queries[uid] for uid in queries if uid in group} for group in groups if len(group) > 1]


def await_committed(upstream: RunningQuery, queries: Iterable[RunningQuery], check: Check) -> None:
    """Wait until the upstream has committed everything that its paused readers have read. Raises what ``check`` raises."""
    for downstream in queries:
        if upstream.uid not in downstream.upstreams:
            continue
        flow, read = flow_between(upstream, downstream), reached(downstream.located.own)
        while upstream.runs():
            committed = reached(upstream.located.own)
            flow.measure([committed], [read])
            if flow.consistent(committed, read):
                break
            _check(check, f"query '{upstream.uid}' did not commit what '{downstream.uid}' had read")
            time.sleep(PAUSE)


def _check(check: Check, not_done: str) -> None:
    try:
        check()
    except TooLate:
        raise TooLate(not_done) from None


class Cut:
    """The cut of one checkpoint over ``queries``, which are in the order of their starts: an upstream comes first.

    ``hurry`` returns whether the cut shall stop waiting until nothing is in flight: the job is to stop, or a query has failed.
    """

    def __init__(
        self, queries: Mapping[str, RunningQuery], config: CheckpointConfig, hurry: Callable[[], bool] = lambda: False
    ) -> None:
        self._queries, self._config, self._hurry, self._began = queries, config, hurry, time.monotonic()
        self._flows = [
            flow_between(queries[upstream], query) for query in queries.values() for upstream in query.upstreams
        ]
        self._oldest: dict[str, int] = {}  # the committed batches at the trigger: a checkpoint holds no older ones
        self._lock = threading.Lock()
        self._places: Mapping[str, CutPosition] | None = None

    def of(self, uid: str, check: Check) -> CutPosition:
        """Return the position at which the query is cut. The first caller searches for the cut, the others wait. Raises what ``check``
        raises, and ``Declined`` if there is none.
        """
        with self._lock:
            if self._places is None:
                self._places = self._found(check)
            return self._places[uid]

    def _found(self, check: Check) -> Mapping[str, CutPosition]:
        self._oldest = self._oldest or {
            uid: reached(query.located.own).committed for uid, query in self._queries.items()
        }
        found = self._aligned(check) or self._consistent(check)
        took = time.monotonic() - self._began
        return {uid: self._position(uid, found, took) for uid in found}

    def _position(self, uid: str, found: Positions, took: float) -> CutPosition:
        flows = [flow for flow in self._flows if flow.downstream.uid == uid]
        return CutPosition(found[uid], tuple(flow.edge(found[flow.upstream.uid], found[uid]) for flow in flows), took)

    def sink_of(self, edge: Edge) -> StreamSink:
        """Return the sink of the upstream of an edge."""
        return self._queries[edge.upstream].sink

    # -- looking for it ----------------------------------------------------------------------------------------------

    def _aligned(self, check: Check) -> Positions | None:
        """Wait for a cut with nothing in flight. Return None if the wait is over, or if no such cut can come any more."""
        limit = self._config.aligned_timeout_s if self._config.mode == EXACTLY_ONCE else 0.0
        while True:
            ended = {flow.downstream.uid for flow in self._flows} & self._still()  # read first
            if found := self._fitting(lambda flow, *at: flow.aligned(*at)):
                return found
            late = limit is not None and time.monotonic() >= self._began + limit
            if ended or late or self._hurry():
                return None
            _check(
                check,
                f"the queries {', '.join(self._queries)} were not aligned: one had yet to read what another one writes",
            )
            time.sleep(PAUSE)

    def _consistent(self, check: Check) -> Positions:
        """Wait for a cut in which no query has read rows that are not committed. With ``at_least_once``, take the newest batches."""
        exactly = self._config.mode == EXACTLY_ONCE
        while True:
            if found := self._fitting(lambda flow, *at: not exactly or flow.consistent(*at)):
                return found
            _check(check, f"of the queries {', '.join(self._queries)}, one did not commit what another one had read")
            time.sleep(PAUSE)

    def _still(self) -> set[str]:
        """Return the queries that commit no further batch."""
        return {uid for uid, query in self._queries.items() if query.paused or not query.runs()}

    def _fitting(self, fits: Fits) -> Positions | None:
        """Return the newest committed batches that fit together; None if there are none. Raises ``Declined`` if none will ever be consistent."""
        still = self._still()  # read first: a query may commit and end meanwhile
        # Downstream first: the upstream has already written the rows that a query has read by then
        there = {uid: self._committed(uid) for uid in reversed(list(self._queries))}
        for flow in self._flows:
            flow.measure(there[flow.upstream.uid], there[flow.downstream.uid])
        found = chosen({uid: there[uid] for uid in self._queries}, self._flows, fits)
        if not found and self._config.mode == EXACTLY_ONCE:
            refuse_hopeless(there, self._flows, still)
        return found

    def _committed(self, uid: str) -> Sequence[Position]:
        """Return the positions at which the query may be cut, the newest first. If it is paused, or catches up, there is only one."""
        query = self._queries[uid]
        own = query.located.own
        if query.paused or not query.caught_up:
            return (reached(own),)
        batches = [batch for batch in own.batches(COMMITS) if batch >= self._oldest[uid]] or [NOTHING]
        return [Position(batch, batch) for batch in reversed(batches)]


def chosen(there: Mapping[str, Sequence[Position]], flows: Sequence[Flow], fits: Fits) -> Positions | None:
    """Return one position of each query, so that all fit together, the newest if possible; None if none fit. ``there`` names an upstream
    before its downstream.
    """
    left = _with_partners(there, flows, fits)

    def further(uids: Sequence[str], before: Positions) -> Positions | None:
        if not uids:
            return before
        uid, *rest = uids
        to_it = [flow for flow in flows if flow.downstream.uid == uid]
        for position in left[uid]:
            fitting = all(fits(flow, before[flow.upstream.uid], position) for flow in to_it)
            if fitting and (found := further(rest, {**before, uid: position})):
                return found
        return None

    return further(list(left), {})


def refuse_hopeless(there: Mapping[str, Sequence[Position]], flows: Sequence[Flow], still: Iterable[str]) -> None:
    """Raise ``Declined`` if no cut will ever be consistent: a ``still`` query commits no further batch, and others have read rows that it
    did not commit.

    A query reads more with each batch, and never less. So if its newest batch does not fit, later ones do not fit either. Then it counts as
    still, too. ``flows`` are in the order of the starts.
    """
    left, because = dict(there), {uid: uid for uid in still}
    for flow in flows:
        up, down = flow.upstream.uid, flow.downstream.uid
        if up in because:
            fitting = [after for after in left[down] if any(flow.consistent(before, after) for before in left[up])]
            if not fitting:
                raise Declined(
                    f"query '{because[up]}' has ended before it committed what '{down}' has read. Start it again"
                )
            if fitting[0] != left[down][0]:
                because.setdefault(down, because[up])
            left[down] = fitting


def _with_partners(
    there: Mapping[str, Sequence[Position]], flows: Sequence[Flow], fits: Fits
) -> dict[str, Sequence[Position]]:
    """Remove each position that fits no position of a neighbour, until there are none. If the queries form a tree, each position that is
    left is part of a cut.
    """
    left, before = dict(there), None
    while left != before:
        before = dict(left)
        for flow in flows:
            ups, downs = left[flow.upstream.uid], left[flow.downstream.uid]
            left[flow.upstream.uid] = ups = [up for up in ups if any(fits(flow, up, down) for down in downs)]
            left[flow.downstream.uid] = [down for down in downs if any(fits(flow, up, down) for up in ups)]
    return left
