"""The XComs of a task that submits: one while its driver runs, one at the end. Runs in Airflow (worker)."""

from __future__ import annotations

from typing import Any

from airflow_checkpoint_provider.operators._launch import DriverLaunch
from airflow_checkpoint_provider.protocol.events import Point


def push_launch(ti: Any, launch: DriverLaunch, attempt: int | None) -> None:
    """Push the XCom while the driver runs. Log a failure: the XCom is for readers, and the driver goes on."""
    try:
        ti.xcom_push("launch", _of_launch(launch, attempt))
    except Exception as error:  # noqa: BLE001 - Airflow raises any error of its client
        launch.log([f"The XCom `launch` could not be written: {error}"])


def _of_launch(launch: DriverLaunch, attempt: int | None) -> dict[str, Any]:
    """Return the XCom. ``attempt`` is None until the driver has attached; ``restored`` is the checkpoint from which it starts."""
    assert launch.record is not None
    point = launch.record.restore_point
    return {
        "job": launch.state.job,
        "run": launch.parameters.token.run,
        "attempt": attempt,
        "history": f"{launch.store.uri}/{launch.keys.prefix}",
        "restored": str(point) if point else None,
    }


def of_end(launch: DriverLaunch, checkpoint: Point | None = None) -> dict[str, Any]:
    """Return the task's result; ``checkpoint`` is its newest restore point, None if the script opened no ``CheckpointedJob``."""
    state = launch.state
    run_id = launch.parameters.token.run
    run = state.run(run_id)
    launches = {record.number for record in state.launches if record.spec.run == run_id}
    return {
        "job": state.job,
        "run": run_id,
        "attempts": sum(attempt.launch in launches for attempt in state.attempts),
        "checkpoint": str(checkpoint) if checkpoint else None,
        "ended": run.outcome if run else None,
    }
