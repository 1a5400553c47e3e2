"""Which runs of a history a user may see, by Airflow's own permissions. Runs in Airflow (API server).

What is asked is the DAG that the journal names as the owner of a run, never a DAG from an address. The questions are
synchronous, as Airflow's own are: ask them in a thread.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails, DagAccessEntity, DagDetails
from airflow.models.connection import Connection
from airflow.models.dag import DagModel

from airflow_checkpoint_provider.protocol.state import ABORTED, PENDING, Checkpoint, State

T = TypeVar("T")


class Viewer:
    """A user, and what Airflow has answered about that user during one request."""

    def __init__(self, user: Any) -> None:
        self._user = user
        self._dags: dict[str, bool] = {}
        self._connections: dict[str, bool] = {}

    def reads(self, dag: str) -> bool:
        """Return whether the user may read the task instances of a DAG."""
        if dag not in self._dags:
            self._dags[dag] = self._asks_dag(DagDetails(id=dag, team_name=DagModel.get_team_name(dag)))
        return self._dags[dag]

    def administers(self, connection: str) -> bool:
        """Return whether the user may change the connection, and read DAGs without limits: an admin of its histories."""
        if connection not in self._connections:
            details = ConnectionDetails(conn_id=connection, team_name=Connection.get_team_name(connection))
            self._connections[connection] = self._asks_dag(None) and get_auth_manager().is_authorized_connection(
                method="PUT", details=details, user=self._user
            )
        return self._connections[connection]

    def visible(self, state: State, connection: str) -> State | None:
        """Return the part of a history that belongs to runs that the user may see; None if there is none.

        The owner of a run is not known if no launch of it is listed, or if a script ran without Airflow: then it is for admins.
        """
        owners = defaultdict[str, set[str]](set)
        for launch in state.launches:
            owners[launch.spec.run].add(launch.spec.token.dag)
        admin = self.administers(connection)
        runs = {run for run, dags in owners.items() if all(self.reads(dag) if dag else admin for dag in dags)}
        return of_runs(state, runs, unknown=admin) if runs or (admin and not owners) else None

    def _asks_dag(self, details: DagDetails | None) -> bool:
        return get_auth_manager().is_authorized_dag(
            method="GET", access_entity=DagAccessEntity.TASK_INSTANCE, details=details, user=self._user
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
    return replace(
        state,
        launches=launches,
        attempts=attempts,
        runs=listed,
        checkpoints=checkpoints,
        counts=_counts(checkpoints),
        queue=tuple(queued for queued in state.queue if queued.epoch in epochs),
        dropped_requests=(),
        claims=(),
        released=(),
    )


def _counts(checkpoints: Iterable[Checkpoint]) -> dict[str, int]:
    ended = (checkpoint.status for checkpoint in checkpoints if checkpoint.status != PENDING)
    return dict(Counter("aborted" if status == ABORTED else "completed" for status in ended))
