"""One task that submits a job of ``tests/e2e/jobs``, under different options. Runs in Airflow.

``folder`` in a run's conf is where the test and the job meet.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import airflow
import pyspark
from airflow.sdk import DAG

import tests.e2e
from airflow_checkpoint_provider.hooks.spark_submit import CheckpointedSparkSubmitHook
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator
from airflow_checkpoint_provider.operators.livy import CheckpointedLivyOperator
from tests.support.clusters import SMALL
from tests.support.drivers import fast_confs

JOBS = Path(tests.e2e.__file__).parent / "jobs"
FOLDER = Path("{{ params.folder }}")
CONFS = {
    **fast_confs(FOLDER),
    "spark.eventLog.enabled": "true",  # the witness of what was computed
    "spark.eventLog.dir": f"file://{FOLDER}/events/{{{{ ti.try_number }}}}",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}


SHOWING = {"spark.ui.enabled": "true", "spark.log.level": "INFO"}


class InClusterHook(CheckpointedSparkSubmitHook):
    """Has a script run on a standalone cluster in cluster mode. Spark refuses that, but takes the class with which it runs scripts itself."""

    def _build_spark_submit_command(self, application: str) -> list[str]:
        self._java_class = "org.apache.spark.deploy.PythonRunner"
        self._application_args = [application, self._py_files, *(self._application_args or [])]
        any_jar = next(Path(pyspark.__file__).parent.glob("jars/spark-core_*.jar"))
        return super()._build_spark_submit_command(str(any_jar))


class SubmitsToCluster(CheckpointedSparkSubmitOperator):
    """Stands in for a Python driver on YARN: it is no child of the task, and outside of all process groups of Airflow."""

    def _get_hook(self) -> CheckpointedSparkSubmitHook:
        hook = super()._get_hook()
        hook.__class__ = InClusterHook
        return hook


class InNewerAirflow(CheckpointedSparkSubmitOperator):
    """Takes this Airflow for one whose clears discard what it has stored for a task. The task has a process of its own."""

    def execute(self, context: Any) -> Any:
        airflow.__version__ = "3.4.0"
        return super().execute(context)


def submits(
    dag_id: str,
    job: str = "stages",
    max_active_runs: int = 16,
    spark: dict[str, str] | None = None,
    operator: type[CheckpointedSparkSubmitOperator] = CheckpointedSparkSubmitOperator,
    **options: Any,
) -> DAG:
    with DAG(dag_id, schedule=None, max_active_runs=max_active_runs, params={"folder": ""}) as dag:
        operator(
            task_id="job", application=str(JOBS / f"{job}.py"), application_args=[str(FOLDER)], conf={**CONFS, **(spark or {})},
            retries=2, retry_delay=timedelta(seconds=1), **options,
        )  # fmt: skip
    return dag


stages = submits("stages", spark={"spark.log.level": "INFO"})
stages_s3 = submits("stages_s3", checkpoint_conn_id="in_s3")
secrets_s3 = submits("secrets_s3", job="shows", checkpoint_conn_id="in_s3", spark=SHOWING, verbose=True)
fences = submits("fences", durable=False)
clears = submits("clears")  # with all runs that a command clears
discards = submits("discards", operator=InNewerAirflow)
continues = submits("continues", on_clear="continue")
suspends = submits("suspends", scope="job", max_active_runs=1)
refuses = submits("refuses", job="twice", spark={"spark.log.level": "INFO"})
plain = submits("plain", job="plain")
IN_CLUSTER: dict[str, Any] = {
    "operator": SubmitsToCluster,
    "conn_id": "standalone",
    "deferrable": True,
    "spark": {**SMALL, "spark.cores.max": "1", "spark.driver.memory": "512m", "spark.pyspark.python": sys.executable},
}
deferred = submits("deferred", **IN_CLUSTER)
deferred_plain_s3 = submits("deferred_plain_s3", job="plain", checkpoint_conn_id="in_s3", **IN_CLUSTER)
deferred_broken = submits("deferred_broken", job="missing", **IN_CLUSTER)
deferred_refuses = submits("deferred_refuses", job="twice", **IN_CLUSTER)

with DAG("livy", schedule=None, params={"folder": ""}):
    CheckpointedLivyOperator(
        task_id="job", file=str(JOBS / "stages.py"), args=[str(FOLDER)], conf=CONFS, polling_interval=1, checkpoint_conn_id="with_code",
        retries=2, retry_delay=timedelta(seconds=1),
    )  # fmt: skip

homeless = submits("homeless", conn_id="cluster", checkpoint_conn_id="missing")

with DAG("counts", schedule=None, max_active_runs=1, params={"folder": "", "script": ""}):
    CheckpointedSparkSubmitOperator(
        task_id="job",
        scope="job",
        application="{{ params.script }}",
        application_args=[str(FOLDER)],
        conf=CONFS,
        retries=2,
        retry_delay=timedelta(seconds=1),
    )

with DAG("reads_kafka", schedule=None, max_active_runs=1, params={"folder": "", "kafka": "", "classpath": ""}):
    CheckpointedSparkSubmitOperator(
        task_id="job",
        scope="job",
        application=str(JOBS.parents[1] / "jobs" / "stream.py"),
        application_args=[str(FOLDER / "out")],
        conf=fast_confs(FOLDER),
        env_vars={
            "SPARK_DIST_CLASSPATH": "{{ params.classpath }}",
            "STREAM_KAFKA": "{{ params.kafka }}",
            "STREAM_TOPIC": "orders",
            "STREAM_STATE": "1",
            "STREAM_FOREVER": "1",
        },
    )
