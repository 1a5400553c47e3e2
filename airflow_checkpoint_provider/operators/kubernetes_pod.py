"""``KubernetesPodOperator`` whose retries continue from the latest completed checkpoint. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

from typing import Any, ClassVar

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from kubernetes.client import V1EnvVar, V1ObjectMeta, V1Pod

from airflow_checkpoint_provider.operators.hand_over import HandOver
from airflow_checkpoint_provider.operators.mixin import CheckpointedJobMixin


class CheckpointedKubernetesPodOperator(CheckpointedJobMixin, KubernetesPodOperator):
    """Runs a pod whose command is a Spark driver. Its retries and clears continue from the latest completed checkpoint.

    Takes all parameters of ``KubernetesPodOperator``, and those of ``CheckpointedJobMixin``. The driver finds its launch in an environment
    variable. The command says ``--py-files "$CHECKPOINT_ARCHIVE"``, or the image has this package, with ``archive=None``.
    """

    needs: ClassVar = {"deferrable": False}
    job_attribute = "pod_name"
    env_vars: Any
    pod: Any

    @property
    def pod_name(self) -> str | None:
        """The name of the pod that ``on_kill`` deletes."""
        return self.pod.metadata.name if self.pod else None

    @pod_name.setter
    def pod_name(self, name: str) -> None:
        self.pod = V1Pod(metadata=V1ObjectMeta(name=name, namespace=self.namespace))

    def hand_over(self, launch: HandOver) -> None:
        self.reattach_on_restart = False  # as an argument it would also say durable=False
        added = [V1EnvVar(name=name, value=value) for name, value in launch.variables.items()]
        self.env_vars = [*(self.env_vars or ()), *added]
