"""An auth manager with permissions per DAG, which Airflow's simple one lacks. Runs in Airflow (API server of a test)."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

READERS = {"flights": "flights_etl", "stranger": ""}  # users who read one DAG, or none


class PerDagAuthManager(SimpleAuthManager):
    """The simple auth manager, but that some users read one DAG only, or none."""

    def is_authorized_dag(self, *, user: Any, details: DagDetails | None = None, **asked: Any) -> bool:
        own = READERS.get(user.username)
        if own is not None and not self._may(own, details, "access_entity" in asked):
            return False
        allowed: bool = super().is_authorized_dag(user=user, details=details, **asked)
        return allowed

    def _may(self, own: str, details: DagDetails | None, entity: bool) -> bool:
        """Answer as Airflow's own managers do: without a DAG and an entity, the question is whether the user reads any DAG."""
        if details is not None and details.id is not None:
            return details.id == own
        return bool(own) and not entity
