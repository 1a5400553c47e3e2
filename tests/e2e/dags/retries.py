"""Tasks that fail, with a policy for their retries and a notifier; sensors of health; a job in the process of a task. Runs in Airflow.

``folder`` in a run's conf is where the notifications arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseNotifier, task

import tests.e2e
from airflow_checkpoint_provider.notifications import CheckpointNotifier
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator
from airflow_checkpoint_provider.retry_policies import CheckpointRetryPolicy
from airflow_checkpoint_provider.sensors import CheckpointHealthSensor
from tests.support.drivers import fast_confs

JOBS = Path(tests.e2e.__file__).parent / "jobs"
FOLDER = Path("{{ params.folder }}")
CONFS = fast_confs(FOLDER)


class ToFile(BaseNotifier):
    """Stands in for a notifier of another provider, whose parameters are templates."""

    template_fields: Sequence[str] = ("path", "subject", "message")

    def __init__(self, path: str, subject: str, message: str) -> None:
        super().__init__()
        self.path, self.subject, self.message = path, subject, message

    def notify(self, context: Any) -> None:
        with Path(self.path).open("a") as file:
            file.write(f"Subject: {self.subject}\n{self.message}\n\n")


TOLD = CheckpointNotifier(
    ToFile("{{ params.folder }}/told", subject="{{ checkpoint_subject }}", message="{{ checkpoint_text }}")
)
NOTIFIED: dict[str, Any] = {"on_failure_callback": TOLD, "on_retry_callback": TOLD}

with DAG("gets_stuck", schedule=None, params={"folder": ""}):
    CheckpointedSparkSubmitOperator(
        task_id="job",
        application=str(JOBS / "dies.py"),
        application_args=["2"],
        conf=CONFS,
        retries=10,
        retry_delay=timedelta(hours=1),
        retry_policy=CheckpointRetryPolicy(delay=timedelta(seconds=1)),
        **NOTIFIED,
    )

with DAG("lost_s3", schedule=None, params={"folder": ""}):
    CheckpointedSparkSubmitOperator(
        task_id="job",
        scope="{{ run_id }}",
        application=str(JOBS / "stages.py"),
        application_args=[str(FOLDER)],
        conf=CONFS,
        checkpoint_conn_id="in_s3",
        **NOTIFIED,
    )

with DAG("health", schedule=None, params={"folder": "", "run": ""}):
    LIMITS: dict[str, dict[str, Any]] = {
        "green": {"max_age": timedelta(days=1), "unprotected": "1 d"},
        "stale": {"max_age": "1 ms"},
        "unprotected": {"max_age": "1 d", "unprotected": "1 ms"},
    }
    for name, limits in LIMITS.items():
        CheckpointHealthSensor(task_id=name, job="stages.job", run="{{ params.run }}", retries=3, **limits, **NOTIFIED)

with DAG("inside_of_a_task", schedule=None):

    @task.pyspark(conn_id="spark_default", config_kwargs={"spark.ui.enabled": "false"})
    def job(spark: Any = None) -> None:
        from airflow_checkpoint_provider.spark import CheckpointedJob

        with CheckpointedJob(spark, job_id="inside"):
            raise AssertionError("the job has begun")

    job()
