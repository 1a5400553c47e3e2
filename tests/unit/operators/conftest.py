"""Tasks that submit: a recorder stands in for ``spark-submit``; there is no cluster here."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks import spark_submit as spark_submit_hook
from airflow.sdk import DAG

from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator
from tests.support.recorded import Recorded, three_stages
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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the arguments of ``spark-submit``, one a line, in ``argv``, and its environment in ``environ``."""
    script = tmp_path / "bin" / "spark-submit"
    script.parent.mkdir()
    script.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/argv\nenv > {tmp_path}/environ\necho "Exit code: 0"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    for name, connection in MASTERS.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps({"conn_type": "spark", **connection}))
    storage = {"conn_type": "checkpoint_storage", "extra": {"root": str(tmp_path / "checkpoints")}}
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", json.dumps(storage))
    monkeypatch.setattr(
        spark_submit_hook, "kube_client", object(), raising=False
    )  # as with the provider for Kubernetes
    return tmp_path


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


@pytest.fixture
def recorded() -> Recorded:
    recorded = Recorded()
    three_stages(recorded)
    return recorded
