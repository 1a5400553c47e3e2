"""``DataprocSubmitJobOperator`` whose retries continue from the latest completed checkpoint. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

from airflow.providers.google.cloud.hooks.dataproc import DataprocHook
from airflow.providers.google.cloud.operators.dataproc import DataprocSubmitJobOperator

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.operators.hand_over import HandOver
from airflow_checkpoint_provider.operators.mixin import CheckpointedJobMixin


class CheckpointedDataprocSubmitJobOperator(CheckpointedJobMixin, DataprocSubmitJobOperator):
    """Submits a PySpark job to Dataproc whose retries and clears continue from its latest completed checkpoint.

    Takes all parameters of ``DataprocSubmitJobOperator``, and those of ``CheckpointedJobMixin``.
    """

    # An id that stays the same would give each retry the job of the first try.
    needs: ClassVar = {"deferrable": False, "asynchronous": False, "request_id": None}
    job_attribute = "job_id"
    job: Any
    hook: Any

    def hand_over(self, launch: HandOver) -> None:
        if "pyspark_job" not in self.job or (self.job.get("reference") or {}).get("job_id"):
            raise InvalidConfig(
                'job= needs the field "pyspark_job", and no fixed reference.job_id, since each try submits a job of its own'
            )
        job = copy.deepcopy(self.job)
        spark = job["pyspark_job"]
        spark["properties"] = launch.with_confs(spark.get("properties"))
        spark["python_file_uris"] = launch.with_archive(spark.get("python_file_uris"))
        self.job = job

    def kill_job(self) -> None:
        if self.hook is None and self.job_id:  # adopted: the parent's execute, which makes the hook, has not run
            self.hook = DataprocHook(gcp_conn_id=self.gcp_conn_id, impersonation_chain=self.impersonation_chain)
        super().kill_job()
