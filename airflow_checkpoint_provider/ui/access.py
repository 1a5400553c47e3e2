"""Which runs of a history a user may see, by Airflow's own permissions. Runs in Airflow (API server).

What is asked is the DAG that the journal names as the owner of a run, never a DAG from an address. The questions are
synchronous, as Airflow's own are: ask them in a thread.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails, DagAccessEntity, DagDetails
from airflow.models.connection import Connection
from airflow.models.dag import DagModel

from airflow_checkpoint_provider.protocol.keys import file_set_epoch
from airflow_checkpoint_provider.protocol.kinds import kind_named
from airflow_checkpoint_provider.protocol.state import ABORTED, PENDING, Branch, Checkpoint, State
from airflow_checkpoint_provider.ui.polling import Reading

T = TypeVar("T")


class Viewer:
    """A user, and what Airflow has answered about that user during one request. Several threads may ask."""

    def __init__(self, user: Any) -> None:
        self._user = user
        self._dags: dict[str, bool] = {}
        self._connections: dict[str, bool] = {}
        self._locks = defaultdict[str, threading.Lock](threading.Lock)  # so that each question is asked once

    def reads(self, dag: str) -> bool:
        """Return whether the user may read the task instances of a DAG."""
        with self._locks[f"dag {dag}"]:
            if dag not in self._dags:
                self._dags[dag] = self._may_read(dag)
            return self._dags[dag]

    def administers(self, connection: str) -> bool:
        """Return whether the user may change the connection, and read DAGs without limits: an admin of its histories."""
        with self._locks[f"connection {connection}"]:
            if connection not in self._connections:
                self._connections[connection] = self._may_change(connection)
            return self._connections[connection]

    def visible(self, reading: Reading, connection: str) -> Reading | None:
        """Return the part of a history that belongs to runs that the user may see; None if there is none.

        The owner of a run is not known if no launch of it is listed, or if a script ran without Airflow: then it is for admins.
        """
        state, owners = reading.found.state, defaultdict[str, set[str]](set)
        for launch in state.launches:
            owners[launch.spec.run].add(launch.spec.token.dag)
        admin = self.administers(connection)
        runs = {run for run, dags in owners.items() if all(self.reads(dag) if dag else admin for dag in dags)}
        return _part(reading, of_runs(state, runs, unknown=admin)) if runs or (admin and not owners) else None

    def _may_read(self, dag: str) -> bool:
        return self._asks_dag(DagDetails(id=dag, team_name=DagModel.get_team_name(dag)))

    def _may_change(self, connection: str) -> bool:
        details = ConnectionDetails(conn_id=connection, team_name=Connection.get_team_name(connection))
        return self._asks_dag(None) and get_auth_manager().is_authorized_connection(
            method="PUT", details=details, user=self._user
        )

    def _asks_dag(self, details: DagDetails | None) -> bool:
        return get_auth_manager().is_authorized_dag(
            method="GET", access_entity=DagAccessEntity.TASK_INSTANCE, details=details, user=self._user
        )


def _part(reading: Reading, seen: State) -> Reading:
    """Return the reading of the part ``seen`` of a history. A heartbeat belongs to the run whose driver it is."""
    whole = reading.found.state
    if seen is whole:
        return reading
    beats = whole.current_launch() in seen.launches
    beat = reading.beat if beats else None
    return Reading(
        replace(reading.found, state=seen),
        reading.root,
        beat,
        reading.alive if beats else None,
        {checkpoint.id: reading.missing.get(checkpoint.id, ()) for checkpoint in seen.pending},
        beat.earliest if beat else (),
        start_is_hidden=whole.restore_point() != seen.restore_point(),
    )


def of_runs(state: State, runs: set[str], *, unknown: bool) -> State:
    """Return the state without what belongs to other runs, and without its counts.

    ``unknown``: what belongs to a run whose launches are no longer listed stays.
    """

    def seen(name: T, shown: set[T], listed: set[T]) -> bool:
        return name in shown or (unknown and name not in listed)

    launches = tuple(launch for launch in state.launches if launch.spec.run in runs)
    numbers, all_numbers = {launch.number for launch in launches}, {launch.number for launch in state.launches}
    attempts = tuple(attempt for attempt in state.attempts if seen(attempt.launch, numbers, all_numbers))
    epochs, all_epochs = {attempt.epoch for attempt in attempts}, {attempt.epoch for attempt in state.attempts}
    checkpoints = tuple(c for c in state.checkpoints if all(seen(epoch, epochs, all_epochs) for epoch in c.epochs))
    known = {launch.spec.run for launch in state.launches}
    listed = tuple(run for run in state.runs if seen(run.key, runs, known))
    if (launches, attempts, checkpoints, listed) == (state.launches, state.attempts, state.checkpoints, state.runs):
        return state
    part = replace(state, launches=launches, attempts=attempts, runs=listed, checkpoints=checkpoints)
    return _without_others(replace(part, branch=_branch(part, runs)), state)


def _without_others(part: State, whole: State) -> State:
    """Return the part without what other runs have set, and without what names no run.

    A job is suspended by the savepoint of a stop, and closed after its newest run.
    """
    epochs = {attempt.epoch for attempt in part.attempts}
    stopped_here = _has_newest(_stops(part), _stops(whole))
    closed_here = _has_newest(part.runs, whole.runs)
    return replace(
        part,
        counts=_counts(part.checkpoints),
        last_epoch=max(epochs, default=0),
        queue=tuple(queued for queued in part.queue if queued.epoch in epochs),
        queries=tuple(query for query in part.queries if file_set_epoch(query.newest.path) in epochs),
        suspended=part.suspended if stopped_here else None,
        closing_reason=part.closing_reason if closed_here else None,
        closed=part.closed and closed_here,
        tokens={},
        requests={},
        dropped_requests=(),
        claims=(),
        released=(),
    )


def _stops(state: State) -> list[Checkpoint]:
    return [
        checkpoint
        for checkpoint in state.checkpoints
        if checkpoint.completed_at and kind_named(checkpoint.kind).suspends
    ]


def _has_newest(part: Sequence[object], whole: Sequence[object]) -> bool:
    return bool(part) and part[-1] == whole[-1]


def _branch(part: State, runs: set[str]) -> Branch:
    """Return the branch if one of ``runs`` has opened it, at a checkpoint of the part; else its number alone."""
    branch = part.branch
    opened_here = branch.token is not None and branch.token.run in runs
    begins_here = branch.base is None or branch.base.id is None or part.checkpoint(branch.base.id) is not None
    return branch if opened_here and begins_here else Branch(number=branch.number)


def _counts(checkpoints: Iterable[Checkpoint]) -> dict[str, int]:
    ended = (checkpoint.status for checkpoint in checkpoints if checkpoint.status != PENDING)
    return dict(Counter("aborted" if status == ABORTED else "completed" for status in ended))
