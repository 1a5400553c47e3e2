"""A job in the process of an Airflow task is refused; a process that only knows of Airflow is not. Runs where Airflow is."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG
from airflow.sdk.bases.operator import ExecutorSafeguard
from airflow.sdk.execution_time.context import set_current_context

from airflow_checkpoint_provider.errors import WrongUse
from airflow_checkpoint_provider.spark import CheckpointedJob
from airflow_checkpoint_provider.spark.attempt import in_task
from tests.support.tasks import ti


def opens() -> None:
    with CheckpointedJob(job_id="inside"):
        raise AssertionError("the job has begun")


def test_job_in_the_process_of_a_task_is_refused_and_no_session_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExecutorSafeguard, "test_mode", True)
    with DAG("etl", schedule=None):
        task = PythonOperator(task_id="inside", python_callable=opens)
    context: Any = {"ti": ti("inside"), "task": task, "outlet_events": {}, "params": {}}
    message = r"in the process of the Airflow task 'inside'.*CheckpointedSparkSubmitOperator\(application=\.\.\.\)"
    with set_current_context(context), pytest.raises(WrongUse, match=message):
        task.execute(context)


def test_process_with_airflow_and_without_a_task_is_not_refused() -> None:
    """A test, a DAG file, ``airflow tasks test`` of a task that submits."""
    assert in_task.SDK in sys.modules
    in_task.refuse_in_task()


def test_script_that_a_task_starts_is_not_refused() -> None:
    """It inherits Airflow's variables, and does not load Airflow."""
    script = (
        "import sys; from airflow_checkpoint_provider.spark.attempt.in_task import refuse_in_task; refuse_in_task();"
        " assert not any(name.split('.')[0] == 'airflow' for name in sys.modules)"
    )
    env = {**os.environ, "AIRFLOW_CTX_DAG_ID": "etl", "AIRFLOW_CTX_TASK_ID": "inside", "AIRFLOW_CTX_TRY_NUMBER": "1"}
    subprocess.run([sys.executable, "-c", script], env=env, check=True, timeout=120)


def test_part_of_airflow_that_has_changed_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, in_task.SDK, object())
    in_task.refuse_in_task()
