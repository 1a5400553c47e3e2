"""The XComs of a task that submits: one while its driver runs, one at the end. Runs in Airflow (worker)."""

from __future__ import annotations

from typing import Any

from airflow_checkpoint_provider.hooks.references import item_in, launch_reference
from airflow_checkpoint_provider.operators._launched import LaunchedDriver
from airflow_checkpoint_provider.protocol.events import Point


def push_launch(ti: Any, launch: LaunchedDriver, attempt: int | None) -> None:
    """Push the XCom while the driver runs. Log a failure: the XCom is for readers, and the driver goes on."""
    assert launch.record is not None
    try:
        uri = f"{launch.store.uri}/{launch.keys.prefix}"
        ti.xcom_push("launch", launch_reference(launch.state, launch.record, uri, attempt))
    except Exception as error:  # noqa: BLE001 - Airflow raises any error of its client
        launch.log([f"The XCom `launch` could not be written: {error}"])


def of_end(launch: LaunchedDriver, checkpoint: Point | None = None) -> dict[str, Any]:
    """Return the task's result; ``checkpoint`` is its newest restore point, None if the script opened no ``CheckpointedJob``."""
    state = launch.state
    run_id = launch.parameters.token.run
    run = state.run(run_id)
    launches = {record.number for record in state.launches if record.spec.run == run_id}
    return {
        "job": state.job,
        "run": run_id,
        **item_in(state),
        "attempts": sum(attempt.launch in launches for attempt in state.attempts),
        "checkpoint": str(checkpoint) if checkpoint else None,
        "ended": run.outcome if run else None,
    }
