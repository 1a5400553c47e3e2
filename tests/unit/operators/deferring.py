"""A task that releases its worker while its driver runs, without Airflow and Spark. Runs where Airflow is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred

from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator
from airflow_checkpoint_provider.storage import LocalStore
from airflow_checkpoint_provider.triggers.launch import LaunchTrigger
from tests.support.acting import Job
from tests.support.state_store import TaskStateStore
from tests.unit.operators.submissions import DagRun, TaskInstance


class Task:
    """A task in cluster mode, each of whose processes is a new operator. Its tries share the state store."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.state_store, self.xcoms = folder, TaskStateStore(), dict[str, Any]()
        self.options = {"application": "job.py", "conn_id": "yarn", "deferrable": True, "retries": 2, **options}
        spark_submit(folder, "echo submitted application_1_2")
        self.job = Job(LocalStore(str(folder / "checkpoints")), "etl.job", "manual__1")

    def operator(self) -> CheckpointedSparkSubmitOperator:
        with DAG("etl", schedule=None, max_active_runs=1):
            return CheckpointedSparkSubmitOperator(task_id="job", **self.options)

    def context(self, try_number: int = 1, max_tries: int = 2) -> dict[str, Any]:
        ti = TaskInstance(try_number=try_number, max_tries=max_tries, xcoms=self.xcoms)
        return {"ti": ti, "dag_run": DagRun(), "task_state_store": self.state_store}

    def defers(self, try_number: int = 1, max_tries: int = 2) -> LaunchTrigger:
        with pytest.raises(TaskDeferred) as released:
            self.operator().execute(self.context(try_number, max_tries))
        return trigger_of(released.value)

    def resumes(self, event: dict[str, Any], **kwargs: Any) -> Any:
        return self.operator().execute_complete(self.context(), event, **kwargs)

    def defers_again(self, event: dict[str, Any], **kwargs: Any) -> LaunchTrigger:
        with pytest.raises(TaskDeferred) as released:
            self.resumes(event, **kwargs)
        return trigger_of(released.value)


def trigger_of(deferral: TaskDeferred) -> LaunchTrigger:
    assert isinstance(deferral.trigger, LaunchTrigger)
    assert (deferral.method_name, deferral.timeout) == ("execute_complete", None)
    assert deferral.kwargs == {"ask_after": deferral.trigger.ask_after}
    return deferral.trigger


def spark_submit(folder: Path, script: str) -> None:
    (folder / "bin" / "spark-submit").write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {folder}/argv\ndate >> {folder}/submits\n{script}\n'
    )
