"""A job that was stopped with a savepoint, as its submit task sees it. Runs in Airflow (worker)."""

from __future__ import annotations

import contextlib

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.savepoint import publish_due
from airflow_checkpoint_provider.errors import CheckpointError
from airflow_checkpoint_provider.operators.launch import Launching
from airflow_checkpoint_provider.protocol.handover import ExitCode


def stopped(launching: Launching) -> bool:
    """Whether the driver of this launch ended with a stop-savepoint, also if somebody has resumed the job since.

    The savepoint's completion suspends the job. A driver that could not write its own end afterwards has left that to us:
    with it, this try may launch again once the job is resumed. If the resume was faster than that word, only the next try may.
    """
    attempt = launching.attempt()
    if attempt is None or not (attempt.how == "suspended" or (attempt.how is None and launching.state.suspended)):
        return False
    launching.end("suspended", ExitCode.OVER)
    attempt = launching.attempt()
    if attempt is None or attempt.how != "suspended":
        return False
    publish(launching.coordinator)
    return True


def publish(coordinator: Coordinator) -> None:
    """What its driver completed and could not publish. If it cannot be done now: a savepoint is found by its id, too."""
    with contextlib.suppress(CheckpointError):
        publish_due(coordinator)
