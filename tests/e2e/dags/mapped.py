"""Mapped tasks whose drivers need no Spark: ``tests/e2e/jobs/acted.py`` acts each of them. Runs in Airflow.

``folder`` in a run's conf is where the test, the list and the drivers meet: ``tables.json`` is the list.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

import tests.e2e
from airflow_checkpoint_provider.checkpoint import CheckpointConfig, KeepAll
from airflow_checkpoint_provider.hooks.spark_submit import CheckpointedSparkSubmitHook
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator

DRIVER = Path(tests.e2e.__file__).parent / "jobs" / "acted.py"


class ActingHook(CheckpointedSparkSubmitHook):
    """Starts the script itself, with the arguments of ``spark-submit``."""

    def _build_spark_submit_command(self, application: str) -> list[str]:
        _, *arguments = super()._build_spark_submit_command(application)
        return [sys.executable, str(DRIVER), *arguments]


class SubmitsActor(CheckpointedSparkSubmitOperator):
    """Submits a driver that is acted: real but for Spark."""

    def _get_hook(self) -> CheckpointedSparkSubmitHook:
        hook = super()._get_hook()
        hook.__class__ = ActingHook
        return hook


@task
def list_tables(folder: str) -> list[str]:
    tables: list[str] = json.loads(Path(folder, "tables.json").read_text())
    return tables


def mapped(dag_id: str, **options: Any) -> None:
    with DAG(dag_id, schedule=None, params={"folder": ""}):
        SubmitsActor.partial(
            task_id="load",
            application=str(DRIVER),
            application_args=["{{ params.folder }}", "--table", "{{ task.item }}"],
            retry_delay=timedelta(seconds=1),
            map_index_template="{{ task.item }}",
            **options,
        ).expand(item=list_tables("{{ params.folder }}"))


mapped("mapped", retries=1, max_active_tis_per_dagrun=2)
mapped(
    "mapped_many",
    retries=3,  # each driver kills itself at most twice
    max_active_tis_per_dagrun=6,
    on_clear="continue",
    checkpointing=CheckpointConfig(retention=KeepAll()),
)
