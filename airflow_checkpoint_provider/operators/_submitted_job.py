"""The job of a launch as the service names it that runs it, in the task's state store. Later processes of the task find it there. Runs in
Airflow (worker).
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined]  # its stub lacks it

from airflow_checkpoint_provider.operators._launched import LaunchedDriver

JOB_KEY = "checkpoint_submitted_job"


def remember(context: Any, launch: LaunchedDriver, job: Any) -> None:
    """Remember the job of a launch. Each item of a mapped task counts its own launches."""
    context["task_state_store"].set(JOB_KEY, {**_named(launch), "job": job}, retention=NEVER_EXPIRE)


def known(context: Any, launch: LaunchedDriver) -> Any:
    """Return the job of a launch; None if it was not submitted, or not named."""
    kept = context["task_state_store"].get(JOB_KEY, None) or {}
    named = {name: value for name, value in kept.items() if name != "job"}
    return kept.get("job") if named == _named(launch) else None


def _named(launch: LaunchedDriver) -> dict[str, Any]:
    item = launch.parameters.history.item
    return {"launch": launch.number} | ({} if item is None else {"item": item})
