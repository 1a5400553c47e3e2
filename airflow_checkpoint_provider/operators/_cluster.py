"""The driver of a deferred task, as Spark's cluster manager knows it. Runs in Airflow (worker)."""

from __future__ import annotations

import contextlib
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_checkpoint_provider import _airflow
from airflow_checkpoint_provider.coordinator.liveness import read_beat
from airflow_checkpoint_provider.errors import StoreError
from airflow_checkpoint_provider.hooks import yarn
from airflow_checkpoint_provider.hooks.spark_output import SparkOutput
from airflow_checkpoint_provider.hooks.spark_submit import CheckpointedSparkSubmitHook
from airflow_checkpoint_provider.operators import _submitted_job
from airflow_checkpoint_provider.operators._launched import LaunchedDriver
from airflow_checkpoint_provider.text import launch_messages

WITHOUT_WAITING = {
    "spark.yarn.submit.waitAppCompletion": "false",
    "spark.kubernetes.submission.waitAppCompletion": "false",
}
"""With these ``spark-submit`` ends when the application is submitted. In a standalone cluster it always does."""


def check(hook: CheckpointedSparkSubmitHook) -> None:
    """Raise ``PartMissing`` if the provider has changed, so that a driver could be submitted and not be named afterwards."""
    names = ("_driver_id", "_yarn_application_id", "_kubernetes_driver_pod", "_run_post_submit_commands")
    _airflow.check_attributes(SparkSubmitHook, hook, *names)


def submitted(hook: CheckpointedSparkSubmitHook, context: Any, launch: LaunchedDriver) -> None:
    """Remember the driver that was submitted, and run the commands that end what runs beside this worker."""
    _airflow.run_post_submit_commands(hook)
    _submitted_job.remember(context, launch, _airflow.spark_driver_id(hook))


def ask(operator: SparkSubmitOperator, context: Any, launch: LaunchedDriver) -> tuple[bool | None, str]:
    """Return whether the driver of a launch has ended well (None: it has not ended), and the cluster manager's word for it.

    The provider asks as it does to reconnect to a driver. Raise its errors, and ``LookupError`` if the driver's name is not known.
    """
    driver = _submitted_job.known(context, launch)
    if not driver:
        raise LookupError("spark-submit has not printed by which name it knows the driver")
    try:
        status = operator.get_job_status(driver, context)
    except RuntimeError as error:
        if not yarn.not_known(str(error)):
            raise
        return False, f"{yarn.NOT_KNOWN} of {driver}"  # as after a restart of the resource manager without its state
    ended = None if operator.is_job_active(status) else operator.is_job_succeeded(status)
    return ended, f"{status} of {driver}"


def outlives_submit(hook: CheckpointedSparkSubmitHook, launch: LaunchedDriver, output: SparkOutput) -> str | None:
    """Return a line for the log if a driver on YARN goes on, though its ``spark-submit`` failed. End an application whose driver has not
    attached: nobody would follow it, and the next try submits another.
    """
    attempt = launch.attempt()
    lives = (attempt is None or not attempt.outcome) and hook.may_run_on()
    if hook.forgotten:
        output.log([launch_messages.forgotten(hook.yarn_application)])
    elif lives and attempt is None and hook.yarn_application is not None:
        output.log([launch_messages.not_awaited(hook.yarn_application)])
        hook.kill_application()
    return launch_messages.goes_on_alone_on_yarn(hook.yarn_application) if lives and attempt is not None else None


def remember_application(hook: CheckpointedSparkSubmitHook, launch: LaunchedDriver, epoch: int | None) -> None:
    """Let ``on_kill`` reach the application of a driver that another process has submitted."""
    with contextlib.suppress(StoreError):
        beat = read_beat(launch.store, launch.keys.attempt_beat(epoch)) if epoch else None
        if beat:
            hook.adopt_yarn_application(beat.spark_application)
