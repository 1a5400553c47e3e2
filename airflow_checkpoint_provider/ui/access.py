"""Which runs of a history a user may see, by Airflow's own permissions. Runs in Airflow (API server).

What is asked is the DAG that the journal names as the owner of a run, never a DAG from an address. The questions are
synchronous, as Airflow's own are: ask them in a thread.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails, DagAccessEntity, DagDetails
from airflow.models.connection import Connection
from airflow.models.dag import DagModel

from airflow_checkpoint_provider.protocol.events import Point, Request
from airflow_checkpoint_provider.protocol.keys import file_set_epoch
from airflow_checkpoint_provider.protocol.kinds import COUNTED, LOST
from airflow_checkpoint_provider.protocol.state import ABORTED, PENDING, Branch, Checkpoint, State
from airflow_checkpoint_provider.text.restore_story import HiddenPoint
from airflow_checkpoint_provider.ui.polling import Reading

T = TypeVar("T")
Reads = Callable[[str], bool]  # whether the user may read a DAG
OF_DRIVERS = COUNTED | {LOST}  # reasons of aborted checkpoints whose details name no person and no task


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
        if not (runs or (admin and not owners)):
            return None
        return _part(reading, of_runs(state, runs, unknown=admin, reads=self.reads))

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
    beats = seen.current_launch() is not None
    beat = reading.beat if beats else None
    return Reading(
        replace(reading.found, state=seen),
        reading.root,
        beat,
        reading.alive if beats else None,
        {checkpoint.id: reading.missing.get(checkpoint.id, ()) for checkpoint in seen.pending},
        beat.earliest if beat else (),
    )


def of_runs(state: State, runs: set[str], *, unknown: bool, reads: Reads) -> State:
    """Return the state without what belongs to other runs, and without its counts.

    ``unknown``: what belongs to a run whose launches are no longer listed stays. Such a run has still left its counts and queries.
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
    same = (launches, attempts, checkpoints, listed) == (state.launches, state.attempts, state.checkpoints, state.runs)
    if same and (unknown or all(launch.number == 1 for launch in launches[:1])):
        return state
    part = replace(state, launches=launches, attempts=attempts, runs=listed, checkpoints=checkpoints)
    part = _without_others(replace(part, branch=_branch(part, runs)), state)
    return _with_hidden_points(_without_texts(part, reads), state)


def _without_others(part: State, whole: State) -> State:
    """Return the part without what other runs have set, and without what names no run.

    A job is suspended by the savepoint of a stop, and closed after its newest run.
    """
    epochs = {attempt.epoch for attempt in part.attempts}
    stopped_here = _has_newest(part.stops, whole.stops)
    closed_here = _has_newest(part.runs, whole.runs)
    closing_here = closed_here and part.closing_reason is not None
    return replace(
        part,
        at=part.at if closing_here else _newest_moment(part),
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


def _newest_moment(part: State) -> str:
    """Return the newest moment that the records of a part name."""
    moments = [
        *(moment for launch in part.launches for moment in (launch.at, launch.ended_at)),
        *(moment for attempt in part.attempts for moment in (attempt.at, attempt.ended_at)),
        *(moment for checkpoint in part.checkpoints for moment in (checkpoint.triggered_at, checkpoint.ended_at)),
    ]
    return max(filter(None, moments), default="")


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


# -- what other runs have written into the records of a part -------------------------------------------------------------


class _StartsHidden(State):
    """A part of a history whose next attempt starts at a point of another run."""

    def restore_point(self, application: str = "") -> Point:
        return HiddenPoint()


def _without_texts(part: State, reads: Reads) -> State:
    """Return the part without the names of people and tasks of other DAGs: who has asked for a checkpoint, and who has aborted
    one. A restore aborts what is pending, and writes its own reason into it.
    """
    stops = part.stops
    if part.suspended and stops and (stop := stops[-1]).request != _without_owner(stop.request, reads):
        part = replace(part, suspended=f"{stop.completed_at} ({stop.request.origin}, {stop.target})")
    return replace(
        part,
        queue=tuple(replace(queued, request=_without_owner(queued.request, reads)) for queued in part.queue),
        checkpoints=tuple(
            replace(
                checkpoint,
                request=_without_owner(checkpoint.request, reads),
                details=checkpoint.details if checkpoint.reason in OF_DRIVERS else "",
            )
            for checkpoint in part.checkpoints
        ),
    )


def _without_owner(request: Request, reads: Reads) -> Request:
    """Return a request without its owner, unless that is a task of a DAG that the user may read."""
    dag = request.token.partition("|")[0]  # the owner alone does not tell: names of DAGs and of tasks have dots
    if not request.owner or (request.owner.startswith(f"{dag}.") and reads(dag)):
        return request
    return replace(request, owner="")


def _with_hidden_points(part: State, whole: State) -> State:
    """Return the part without the names of points at which its runs have started, and its next one will, if they are other runs'."""
    hidden = {checkpoint.id for checkpoint in whole.checkpoints} - {checkpoint.id for checkpoint in part.checkpoints}

    def shown(point: Point | None) -> Point | None:
        return HiddenPoint(id=point.id) if point and point.id in hidden else point

    part = replace(
        part,
        launches=tuple(replace(launch, restore_point=shown(launch.restore_point)) for launch in part.launches),
        attempts=tuple(replace(attempt, restore_point=shown(attempt.restore_point)) for attempt in part.attempts),
        runs=tuple(replace(run, started_from=shown(run.started_from)) for run in part.runs),
    )
    if part.restore_point() == whole.restore_point():
        return part
    return _StartsHidden(**{each.name: getattr(part, each.name) for each in fields(part)})
