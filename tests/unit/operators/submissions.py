"""A task that submits: its context, and the command line that a recorder saw in the place of ``spark-submit``. Runs where Airflow is."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator
from tests.support.state_store import TaskStateStore

MASTERS: dict[str, dict[str, Any]] = {
    "local": {"host": "local[2]"},
    "yarn": {"host": "yarn", "extra": {"deploy-mode": "cluster"}},
    "kubernetes": {"host": "k8s://https://127.0.0.1", "port": 6443, "extra": {"deploy-mode": "cluster"}},
}


@dataclass
class TaskInstance:
    dag_id: str = "etl"
    task_id: str = "job"
    run_id: str = "manual__1"
    map_index: int = -1
    try_number: int = 1
    max_tries: int = 2
    stats_tags: dict[str, str] = field(default_factory=dict)
    xcoms: dict[str, Any] = field(default_factory=dict)

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value


@dataclass
class DagRun:
    run_after: datetime = datetime(2026, 11, 20, tzinfo=UTC)
    run_type: str = "manual"


def execute(
    folder: Path,
    run: DagRun | None = None,
    ti: TaskInstance | None = None,
    store: TaskStateStore | None = None,
    **options: Any,
) -> list[str]:
    with DAG("etl", schedule=None, max_active_runs=1):
        task = CheckpointedSparkSubmitOperator(
            **{"task_id": "job", "application": "job.py", "conn_id": "local", "name": "etl", **options}
        )
    task.execute(
        {"ti": ti or TaskInstance(), "dag_run": run or DagRun(), "task_state_store": store or TaskStateStore()}
    )
    return (folder / "argv").read_text().splitlines()


def values(argv: list[str], option: str) -> list[str]:
    return [value for name, value in itertools.pairwise(argv) if name == option]


def confs(argv: list[str]) -> dict[str, str]:
    return dict(value.split("=", 1) for value in values(argv, "--conf"))
