"""Which runs of a history a user may see, by Airflow's own permissions. Runs in Airflow (API server).

What is asked is the DAG that the journal names as the owner of a run, never a DAG from an address. The questions are
synchronous, as Airflow's own are: ask them in a thread.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails, DagAccessEntity, DagDetails
from airflow.models.dag import DagModel

from airflow_checkpoint_provider.protocol.state import ABORTED, PENDING, State


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
        """Return whether the user may change the connection and read every DAG: an admin, for whom nothing is hidden."""
        if connection not in self._connections:
            self._connections[connection] = self._asks_dag(None) and get_auth_manager().is_authorized_connection(
                method="PUT", details=ConnectionDetails(conn_id=connection), user=self._user
            )
        return self._connections[connection]

    def visible(self, state: State, connection: str) -> State | None:
        """Return the part of a history that belongs to runs that the user may see; None if there is none.

        The owner of a run is not known if no launch of it is listed, or if a script ran without Airflow.
        """
        if self.administers(connection):
            return state
        dags = defaultdict[str, set[str]](set)
        for launch in state.launches:
            dags[launch.spec.run].add(launch.spec.token.dag)
        runs = {run for run, owners in dags.items() if all(dag and self.reads(dag) for dag in owners)}
        return of_runs(state, runs) if runs else None

    def _asks_dag(self, details: DagDetails | None) -> bool:
        return get_auth_manager().is_authorized_dag(
            method="GET", access_entity=DagAccessEntity.TASK_INSTANCE, details=details, user=self._user
        )


def of_runs(state: State, runs: set[str]) -> State:
    """Return the state without the launches, attempts, checkpoints and requests of other runs, and without their counts."""
    launches = tuple(launch for launch in state.launches if launch.spec.run in runs)
    numbers = {launch.number for launch in launches}
    attempts = tuple(attempt for attempt in state.attempts if attempt.launch in numbers)
    epochs = {attempt.epoch for attempt in attempts}
    checkpoints = tuple(checkpoint for checkpoint in state.checkpoints if epochs.issuperset(checkpoint.epochs))
    listed = tuple(run for run in state.runs if run.key in runs)
    if (attempts, checkpoints, listed) == (state.attempts, state.checkpoints, state.runs):
        return state
    ended = ("aborted" if over.status == ABORTED else "completed" for over in checkpoints if over.status != PENDING)
    return replace(
        state,
        launches=launches,
        attempts=attempts,
        runs=listed,
        checkpoints=checkpoints,
        counts=dict(Counter(ended)),
        queue=tuple(queued for queued in state.queue if queued.epoch in epochs),
        dropped_requests=(),
        claims=(),
        released=(),
    )
