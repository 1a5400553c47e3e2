"""What a task knows of the end of a driver that a cluster runs: the exit code of ``spark-submit`` is not the driver's. Runs in Airflow (worker)."""

from __future__ import annotations

import contextlib

from airflow_checkpoint_provider.coordinator.liveness import RefusedStart, read_beat
from airflow_checkpoint_provider.errors import Fenced, JobAlreadyRunning, JobSuspended, StoreError
from airflow_checkpoint_provider.hooks.spark_submit import CheckpointedSparkSubmitHook
from airflow_checkpoint_provider.operators._launch import DriverLaunch
from airflow_checkpoint_provider.protocol.handover import ExitCode
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord

OVER = {error.code for error in (Fenced, JobAlreadyRunning, JobSuspended)}
"""The codes of refusals with which a driver ends with exit code 79."""


def goes_on_alone(hook: CheckpointedSparkSubmitHook, launch: DriverLaunch) -> bool:
    """Return whether a driver on YARN may go on, though its ``spark-submit`` failed."""
    attempt = launch.attempt()
    return attempt is not None and not attempt.outcome and hook.may_run_on()


def known_to_have_ended(hook: CheckpointedSparkSubmitHook) -> bool:
    """Return whether YARN says that the application has ended. The parent's tracking raises one error for that and for its own failure."""
    return hook.yarn_application is not None and not hook.may_run_on()


def refused_start(launch: DriverLaunch) -> RefusedStart | None:
    """Return why the driver refused to run, if it could write that."""
    assert launch.record is not None
    beat = read_beat(launch.store, launch.keys.driver_beat(launch.record.number))
    return beat.refusal if beat else None


def announced_code(launch: DriverLaunch, attempt: AttemptRecord | None, code: int | None) -> int | None:
    """Return the exit code that the driver has announced, None if it could not; ``code`` of ``spark-submit`` if no driver began."""
    if attempt is not None:
        return attempt.exit_code
    refused = refused_start(launch)
    if refused is None:
        return code
    return ExitCode.OVER if refused.code in OVER else ExitCode.REFUSED


def remember_application(hook: CheckpointedSparkSubmitHook, launch: DriverLaunch, epoch: int | None) -> None:
    """Let ``on_kill`` reach the application of a driver that another process has submitted."""
    with contextlib.suppress(StoreError):
        beat = read_beat(launch.store, launch.keys.attempt_beat(epoch)) if epoch else None
        if beat:
            hook.adopt_yarn_application(beat.spark_application)
