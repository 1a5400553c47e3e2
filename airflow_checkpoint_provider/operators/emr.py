"""Operators of EMR whose retries continue from the latest completed checkpoint. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

import ast
import copy
import shlex
from dataclasses import replace
from typing import Any, ClassVar

from airflow.providers.amazon.aws.operators.emr import EmrAddStepsOperator, EmrServerlessStartJobOperator

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.operators.hand_over import HandOver
from airflow_checkpoint_provider.operators.mixin import CheckpointedJobMixin


class CheckpointedEmrAddStepsOperator(CheckpointedJobMixin, EmrAddStepsOperator):
    """Adds a step to an EMR cluster whose retries and clears continue from its latest completed checkpoint.

    Takes all parameters of ``EmrAddStepsOperator``, and those of ``CheckpointedJobMixin``. ``steps`` has one step, which calls spark-submit.
    """

    needs: ClassVar = {"deferrable": False, "wait_for_completion": True}
    steps: Any

    def hand_over(self, launch: HandOver) -> None:
        steps: list[dict[str, Any]] = ast.literal_eval(self.steps) if isinstance(self.steps, str) else self.steps
        if len(steps) != 1:
            raise InvalidConfig(
                f"steps= has {len(steps)} steps: a checkpointed task submits one job. Write a task for each step"
            )
        step = copy.deepcopy(steps[0])
        step["HadoopJarStep"]["Args"] = launch.with_options(step["HadoopJarStep"]["Args"])
        self.steps = [step]


class CheckpointedEmrServerlessStartJobOperator(CheckpointedJobMixin, EmrServerlessStartJobOperator):
    """Starts a job of EMR Serverless whose retries and clears continue from its latest completed checkpoint.

    Takes all parameters of ``EmrServerlessStartJobOperator``, and those of ``CheckpointedJobMixin``. Raise ``waiter_max_attempts``: when they
    are used up, the parent cancels the job.
    """

    # A token that stays the same would give each retry the job of the first try.
    needs: ClassVar = {"deferrable": False, "wait_for_completion": True, "client_request_token": ""}
    job_attribute = "job_id"
    configuration_overrides: Any
    job_driver: Any

    def hand_over(self, launch: HandOver) -> None:
        overrides = copy.deepcopy(self.configuration_overrides or {})
        applications = overrides.setdefault("applicationConfiguration", [])
        defaults = next((one for one in applications if one["classification"] == "spark-defaults"), None)
        if defaults is None:
            applications.append(defaults := {"classification": "spark-defaults"})
        defaults["properties"] = launch.with_confs(defaults.get("properties"))
        spark = dict(self.job_driver["sparkSubmit"])
        words = shlex.split(spark.get("sparkSubmitParameters") or "")
        options = replace(launch, confs={}).with_options(["spark-submit", *words])[1:]
        self.configuration_overrides = overrides
        self.job_driver = {"sparkSubmit": {**spark, "sparkSubmitParameters": shlex.join(options)}}
