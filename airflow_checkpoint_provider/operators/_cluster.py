"""The driver of a deferred task, as Spark's cluster manager knows it. Runs in Airflow (worker)."""

from __future__ import annotations

from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined]  # its stub lacks it

from airflow_checkpoint_provider import _airflow
from airflow_checkpoint_provider.hooks.spark_submit import CheckpointedSparkSubmitHook

DRIVER_KEY = (
    "checkpoint_driver"  # in the task's state store: the launch, and its driver as the cluster manager names it
)
WITHOUT_WAITING = {
    "spark.yarn.submit.waitAppCompletion": "false",
    "spark.kubernetes.submission.waitAppCompletion": "false",
}
"""With these ``spark-submit`` ends when the application is submitted. In a standalone cluster it always does."""


def check(hook: CheckpointedSparkSubmitHook) -> None:
    """Raise ``PartMissing`` if the provider has changed, so that a driver could be submitted and not be named afterwards."""
    names = ("_driver_id", "_yarn_application_id", "_kubernetes_driver_pod", "_run_post_submit_commands")
    _airflow.check_attributes(SparkSubmitHook, hook, *names)


def submitted(hook: CheckpointedSparkSubmitHook, context: Any, launch: int | None, item: str | None = None) -> None:
    """Remember the driver that was submitted, and run the commands that end what runs beside this worker."""
    _airflow.run_post_submit_commands(hook)
    driver = {"launch": launch, "id": _airflow.spark_driver_id(hook)} | ({} if item is None else {"item": item})
    context["task_state_store"].set(DRIVER_KEY, driver, retention=NEVER_EXPIRE)


def ask(
    operator: SparkSubmitOperator, context: Any, launch: int | None, item: str | None = None
) -> tuple[bool | None, str]:
    """Return whether the driver of a launch has ended well (None: it has not ended), and the cluster manager's word for it.

    The provider asks as it does to reconnect to a driver. Raise its errors, and ``LookupError`` if the driver's name is not known.
    """
    driver = context["task_state_store"].get(DRIVER_KEY, None) or {}
    if (driver.get("launch"), driver.get("item")) != (launch, item) or not driver.get("id"):
        raise LookupError("spark-submit has not printed by which name it knows the driver")
    status = operator.get_job_status(driver["id"], context)
    ended = None if operator.is_job_active(status) else operator.is_job_succeeded(status)
    return ended, f"{status} of {driver['id']}"
