"""``LivyOperator`` whose retries continue from the latest completed checkpoint. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

from typing import Any, ClassVar

from airflow.providers.apache.livy.operators.livy import LivyOperator

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.operators.hand_over import HandOver
from airflow_checkpoint_provider.operators.mixin import CheckpointedJobMixin


class CheckpointedLivyOperator(CheckpointedJobMixin, LivyOperator):
    """Submits a batch to Apache Livy whose retries and clears continue from its latest completed checkpoint.

    Takes all parameters of ``LivyOperator``, and those of ``CheckpointedJobMixin``. It waits for the end of the batch.
    """

    needs: ClassVar = {"deferrable": False}
    job_attribute = "_batch_id"

    def __init__(self, *, polling_interval: int = 10, **kwargs: Any) -> None:
        if polling_interval <= 0:
            raise InvalidConfig(
                f"polling_interval={polling_interval!r}: the task waits for its driver. Write a number of seconds"
            )
        super().__init__(polling_interval=polling_interval, **kwargs)

    def hand_over(self, launch: HandOver) -> None:
        parameters: dict[str, Any] = self.spark_params
        self.spark_params = {
            **parameters,
            "conf": launch.with_confs(parameters["conf"]),
            "py_files": launch.with_archive(parameters["py_files"]),
        }
