"""What ``CheckpointedLivyOperator`` sends to Livy, and what it refuses. The tests of services run it. Runs where Airflow is."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_checkpoint_provider.errors import InvalidConfig, NotSupportedYet
from airflow_checkpoint_provider.operators.hand_over import HandOver
from airflow_checkpoint_provider.operators.livy import CheckpointedLivyOperator

CONFS = {"spark.checkpointed.launch": "3"}


def operator(**options: Any) -> CheckpointedLivyOperator:
    with DAG("etl", schedule=None, max_active_runs=1):
        return CheckpointedLivyOperator(task_id="job", file="job.py", **options)


def test_launch_is_added_to_the_batch() -> None:
    task = operator(conf={"spark.executor.cores": "2"}, py_files=["lib.py"], args=["--day", "1"])
    task.hand_over(HandOver(CONFS, "s3a://code/runtime.zip"))
    sent = task.spark_params
    assert sent["conf"] == {"spark.executor.cores": "2", **CONFS}
    assert sent["py_files"] == ["lib.py", "s3a://code/runtime.zip"]
    assert (sent["file"], sent["args"]) == ("job.py", ["--day", "1"])


def test_launch_is_the_batch_of_an_operator_without_confs_and_files() -> None:
    task = operator()
    task.hand_over(HandOver(CONFS, None))
    assert (task.spark_params["conf"], task.spark_params["py_files"]) == (CONFS, [])


def test_operator_that_would_not_wait_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="polling_interval=0"):
        operator(polling_interval=0)
    with pytest.raises(NotSupportedYet, match="deferrable=True"):
        operator(deferrable=True)
