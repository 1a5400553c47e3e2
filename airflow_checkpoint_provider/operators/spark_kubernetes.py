"""``SparkKubernetesOperator`` whose retries continue from the latest completed checkpoint. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

import copy
from typing import ClassVar

from airflow.providers.cncf.kubernetes.operators.spark_kubernetes import SparkKubernetesOperator

from airflow_checkpoint_provider.operators.hand_over import HandOver
from airflow_checkpoint_provider.operators.mixin import CheckpointedJobMixin


class CheckpointedSparkKubernetesOperator(CheckpointedJobMixin, SparkKubernetesOperator):
    """Makes a ``SparkApplication`` of Kubernetes whose retries and clears continue from its latest completed checkpoint.

    Takes all parameters of ``SparkKubernetesOperator``, and those of ``CheckpointedJobMixin``.
    """

    needs: ClassVar = {"deferrable": False, "reattach_on_restart": False, "random_name_suffix": True}
    job_attribute = "name"

    def hand_over(self, launch: HandOver) -> None:
        body = copy.deepcopy(self.template_body)
        spec = body["spark"].setdefault("spec", {})
        spec["sparkConf"] = launch.with_confs(spec.get("sparkConf"))
        dependencies = spec["deps"] = dict(spec.get("deps") or {})
        dependencies["pyFiles"] = launch.with_archive(dependencies.get("pyFiles"))
        self.application_file, self.template_spec = None, body
