"""The histories that a user may see, by Airflow's own permissions. Runs in Airflow (API server).

Airflow is asked about the DAGs that the journal names as the owners of launches, never about a DAG from an address. The questions are
synchronous, as Airflow's own are: ask them in a thread.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails, DagAccessEntity, DagDetails
from airflow.models.connection import Connection
from airflow.models.dag import DagModel

from airflow_checkpoint_provider.protocol.state import State

MOST_DAGS = 50  # of one history that are asked for: a journal may name a thousand


class Viewer:
    """A user, and Airflow's answers about that user during one request. Several threads may ask."""

    def __init__(self, user: Any) -> None:
        self._user = user
        self._answers: dict[str, bool] = {}
        self._locks = defaultdict[str, threading.Lock](threading.Lock)  # so that each question is asked once

    def reads_any(self) -> bool:
        """Return whether the user may read any DAG. Airflow itself asks this before it lists DAGs."""
        return self._once(
            "any", lambda: get_auth_manager().is_authorized_dag(method="GET", details=DagDetails(), user=self._user)
        )

    def reads(self, dag: str) -> bool:
        """Return whether the user may read the task instances of a DAG."""
        return self._once(f"dag {dag}", lambda: self._may_read(dag))

    def administers(self, connection: str) -> bool:
        """Return whether the user may change the connection, and read DAGs without limits: an admin of its histories."""
        return self._once(f"connection {connection}", lambda: self._may_change(connection))

    def sees(self, state: State, connection: str) -> bool:
        """Return whether the user may read the DAGs of all launches that a history lists.

        A launch of a script without Airflow has no DAG. It is for admins, and so is a history that lists no launch.
        """
        dags = {launch.spec.token.dag for launch in state.launches}
        if len(dags) > MOST_DAGS or ((not dags or "" in dags) and not self.administers(connection)):
            return False
        return all(self.reads(dag) for dag in dags if dag)

    def _once(self, question: str, ask: Callable[[], bool]) -> bool:
        with self._locks[question]:
            if question not in self._answers:
                self._answers[question] = ask()
            return self._answers[question]

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
