"""An auth manager with permissions per DAG, which Airflow's simple one lacks. Runs in Airflow (API server of a test)."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

READERS = {"flights": "flights_etl"}  # users who read one DAG


class PerDagAuthManager(SimpleAuthManager):
    """The simple auth manager, but that some users read one DAG only."""

    def is_authorized_dag(self, *, user: Any, details: DagDetails | None = None, **asked: Any) -> bool:
        own = READERS.get(user.username)
        if own is not None and (details is None or details.id != own):
            return False
        allowed: bool = super().is_authorized_dag(user=user, details=details, **asked)
        return allowed
