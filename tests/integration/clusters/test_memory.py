"""Executors that run out of heap: their driver sees why Spark has lost them. Runs on Linux."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_checkpoint_provider.policies.memory import EXECUTOR_HEAP
from airflow_checkpoint_provider.text.out_of_memory import cause_in_loss
from tests.support.clusters import Cluster, local_cluster
from tests.support.runs import Home


@pytest.mark.slow  # a driver and its executors; tests/unit/text/test_out_of_memory.py has Spark's texts
@pytest.mark.timeout(600)
@pytest.mark.parametrize("cluster", [local_cluster], indirect=True)
def test_driver_records_that_its_executors_ran_out_of_heap(cluster: Cluster, tmp_path: Path) -> None:
    home = Home(tmp_path / "home", "heap.py")
    home.confs = {
        **cluster.confs,
        "spark.executor.memory": "300m",
        "spark.testing.reservedMemory": str(32 * 2**20),
        "spark.task.maxFailures": "2",
    }
    home.env |= {"HEAP_BYTES": "600000000", **cluster.environment}
    ended = home.run()
    assert ended.code == 1, ended.log
    (losses,) = [
        json.loads(line.removeprefix("LOSSES ")) for line in ended.log.splitlines() if line.startswith("LOSSES ")
    ]
    assert EXECUTOR_HEAP in {cause_in_loss(reason) for reason in losses}, ended.log
    (attempt,) = home.coordinator().state.attempts
    assert (attempt.outcome, attempt.cause) == ("failed", EXECUTOR_HEAP), ended.log
