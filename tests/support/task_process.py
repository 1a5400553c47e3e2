"""Runs one task of any operator, as Airflow's worker does, without Airflow's server. Runs where Airflow is.

    python -m tests.support.task_process MODULE:CLASS '{"its": "arguments"}' TRY
    python -m tests.support.task_process DAG_FILE.py:NAME '{}' TRY

The second takes an operator from a variable of a DAG file, and renders its templates first.
Prints ``RETURNED`` and the result as JSON. SIGTERM calls ``on_kill``. Connections come from the environment. With ``TASK_STATE``, the
path of a file, the tries of a task share what Airflow stores for it.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.sdk import DAG, BaseOperator

from tests.support.state_store import TaskStateStore

RUN = "manual__1"
KILLED = 143


def operator_of(place: str, arguments: dict[str, Any]) -> BaseOperator:
    module, _, name = place.partition(":")
    if module.endswith(".py"):
        written: BaseOperator = runpy.run_path(module)[name]
        return written
    kind = getattr(importlib.import_module(module), name)
    with DAG("services", schedule=None):
        operator: BaseOperator = kind(**{"task_id": "submit", **arguments})
    return operator


def context_of(operator: BaseOperator, try_number: int) -> Any:
    """Return what Airflow gives to ``execute``, as far as the operators of the providers read it."""
    dag = SimpleNamespace(dag_id="services", parent_dag=None, is_subdag=False)
    instance = SimpleNamespace(
        dag_id="services", run_id=RUN, task_id=operator.task_id, map_index=-1, try_number=try_number, max_tries=operator.retries, stats_tags={},
        xcom_push=lambda key, value, **_: print("PUSHED", key, value, flush=True), xcom_pull=lambda **_: None,
    )  # fmt: skip
    now = datetime.now(UTC)
    run = SimpleNamespace(
        run_id=RUN, logical_date=now, run_after=now, run_type="manual", dag_id="services", conf={}, clear_number=0
    )
    file = os.environ.get("TASK_STATE")
    context = {
        "ti": instance, "task_instance": instance, "run_id": RUN, "dag": dag, "dag_run": run, "task": operator, "logical_date": now,
        "ts": now.isoformat(), "ds": f"{now:%Y-%m-%d}", "params": {}, "task_state_store": TaskStateStore(Path(file) if file else None),
    }  # fmt: skip
    instance.get_template_context = lambda: context  # OpenLineage's provider asks the instance
    return context


def main(place: str, arguments: str, try_number: str) -> None:
    operator = operator_of(place, json.loads(arguments))

    def on_term(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        operator.on_kill()
        os._exit(KILLED)

    signal.signal(signal.SIGTERM, on_term)
    context = context_of(operator, int(try_number))
    if ".py:" in place:
        operator.resolve_template_files()
        operator.render_template_fields(context)
    result = operator.execute(context)
    print("RETURNED", json.dumps(result, default=str), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
