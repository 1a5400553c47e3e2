"""``DatabricksSubmitRunOperator`` whose retries continue from the latest completed checkpoint. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

from typing import Any, ClassVar

from airflow.providers.databricks.operators.databricks import DatabricksSubmitRunOperator

from airflow_checkpoint_provider.errors import NotSupportedYet
from airflow_checkpoint_provider.operators.hand_over import HandOver
from airflow_checkpoint_provider.operators.mixin import CheckpointedJobMixin


class CheckpointedDatabricksSubmitRunOperator(CheckpointedJobMixin, DatabricksSubmitRunOperator):
    """Submits a run to a new cluster of Databricks whose retries and clears continue from its latest completed checkpoint.

    Takes all parameters of ``DatabricksSubmitRunOperator``, and those of ``CheckpointedJobMixin``. Install this package on the new cluster
    by ``libraries=``, since Databricks takes no Python files beside the script.
    """

    # A token that stays the same would give each retry the run of the first try.
    needs: ClassVar = {"deferrable": False, "wait_for_termination": True, "idempotency_token": None, "archive": None}
    job_attribute = "run_id"
    new_cluster: Any

    def hand_over(self, launch: HandOver) -> None:
        cluster = self.new_cluster or (self.json or {}).get("new_cluster")
        if not cluster:
            raise NotSupportedYet(
                "a run without new_cluster=, on an existing cluster or serverless: its driver would not get the confs of its launch. Write"
                " new_cluster=, and no tasks="
            )
        self.new_cluster = {**cluster, "spark_conf": launch.with_confs(cluster.get("spark_conf"))}
