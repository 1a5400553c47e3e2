"""One task that submits ``tests/e2e/jobs/stages.py`` to YARN, under different options. Runs in Airflow.

``folder`` in a run's conf is where the test and the job meet. The confs of the cluster are in the environment.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

import tests.e2e
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator
from tests.support.drivers import fast_confs

JOBS = Path(tests.e2e.__file__).parent / "jobs"
FOLDER = Path("{{ params.folder }}")
CONFS = {
    **fast_confs(FOLDER),
    "spark.driver.memory": "512m",
    "spark.eventLog.enabled": "true",  # the witness of what was computed
    "spark.eventLog.dir": f"file://{FOLDER}/events/{{{{ ti.try_number }}}}",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
    "spark.yarn.maxAppAttempts": "1",
    **json.loads(os.environ.get("CONFS_OF_YARN", "{}")),
}
LARGE = {"spark.driver.memory": "6g"}  # its container waits until the node runs no other job


def submits(dag_id: str, job: str = "stages", spark: dict[str, str] | None = None, **options: Any) -> None:
    with DAG(dag_id, schedule=None, params={"folder": ""}):
        CheckpointedSparkSubmitOperator(
            task_id="job",
            application=str(JOBS / f"{job}.py"),
            application_args=[str(FOLDER)],
            conf={**CONFS, **(spark or {})},
            env_vars={"CHECKPOINT_HEARTBEAT_SECONDS": "2"},
            retries=2,
            retry_delay=timedelta(seconds=1),
            **options,
        )


submits("on_yarn")
submits("on_yarn_twice", spark={"spark.yarn.maxAppAttempts": "2"})
submits("on_yarn_refuses", job="twice")
submits("on_yarn_client", conn_id="yarn", deploy_mode="client")
submits("on_yarn_deferred", deferrable=True)
submits("on_yarn_queued", spark=LARGE, deferrable=True)
submits("on_yarn_queued_submit", spark=LARGE)
submits(
    "on_yarn_by_conf",
    conn_id="yarn",  # which names no deploy mode
    spark={"spark.submit.deployMode": "cluster", "spark.submit.pyFiles": str(JOBS / "plain.py")},
    yarn_track_via_rm_api=True,
)
