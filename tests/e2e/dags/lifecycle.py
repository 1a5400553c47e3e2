"""A job of ``tests/e2e/jobs``, and a checkpoint of it that is audited. Runs in Airflow."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

import tests.e2e
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator
from airflow_checkpoint_provider.task_groups import CheckpointTaskGroup
from tests.support.drivers import fast_confs

JOBS = Path(tests.e2e.__file__).parent / "jobs"
FOLDER = Path("{{ params.folder }}")

with DAG("audited", schedule=None, params={"folder": ""}, default_args={"retries": 2, "poke_interval": 1}):

    @task
    def audit(asked: Any) -> dict[str, Any]:
        told = CheckpointStorageHook().describe(asked)
        assert told["sealed"] is False
        return {uid: state["value"] or state["rows"] for uid, state in told["states"].items()}

    job = CheckpointedSparkSubmitOperator(
        task_id="job", application=str(JOBS / "stages.py"), application_args=[str(FOLDER)], conf=fast_confs(FOLDER),
        retry_delay=timedelta(seconds=1),
    )  # fmt: skip
    CheckpointTaskGroup(job=job, gate=audit, start_timeout=300, deferrable=True)
