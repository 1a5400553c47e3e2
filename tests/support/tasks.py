"""Run tasks that drive checkpoints in this process, as Airflow would. Runs where Airflow is."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator

from airflow_checkpoint_provider.operators import TriggerCheckpointOperator
from airflow_checkpoint_provider.operators._base import KillGuard, generation_of, request_of
from airflow_checkpoint_provider.operators._waiting import JournalSensor
from tests.support.acting import RUN, Job
from tests.support.state_store import TaskStateStore

OTHER = "orders_audited"  # the DAG of the tasks that drive checkpoints


def ti(task: str = "trigger", **other: Any) -> SimpleNamespace:
    """Return a task instance with the fields that the tasks read."""
    known: dict[str, Any] = {
        "dag_id": OTHER,
        "run_id": RUN,
        "task_id": task,
        "map_index": -1,
        "try_number": 1,
        "max_tries": 0,
    }
    return SimpleNamespace(**known | other)


STORES = defaultdict[tuple[object, ...], TaskStateStore](TaskStateStore)
"""By the DAG run, the task and its map index."""


def context(operator: BaseOperator, **instance: Any) -> Any:
    """Return what Airflow gives to ``execute``, as far as the tasks read it."""
    task = ti(operator.task_id, **instance)
    return {"ti": task, "task_state_store": STORES[task.dag_id, task.run_id, task.task_id, task.map_index]}


def token_of(operator: BaseOperator) -> str:
    """Return the token of the request that a task makes."""
    about = context(operator)
    return request_of(about["ti"], generation_of(about, operator.retries).number)


def run(operator: BaseOperator, **instance: Any) -> Any:
    """Return the result of ``execute``. Pass a new operator each time: Airflow builds one for each try."""
    return operator.execute(context(operator, **instance))


def trigger(job: Any = "orders", **options: Any) -> TriggerCheckpointOperator:
    with DAG(OTHER, schedule=None):
        return TriggerCheckpointOperator(**{"task_id": "trigger", "job": job, "poke_interval": 0.01, **options})


def waits(kind: type[JournalSensor], checkpoint: Any, **options: Any) -> JournalSensor:
    with DAG(OTHER, schedule=None):
        return kind(task_id="waits", checkpoint=checkpoint, **{"poke_interval": 0.01, "timeout": 0, **options})


def kill_in(monkeypatch: pytest.MonkeyPatch, task: KillGuard, owner: object, name: str) -> None:
    """Kill ``task`` when ``owner.name`` is called; the call itself goes on."""
    does = getattr(owner, name)

    def killed(*arguments: Any, **named: Any) -> Any:
        task.on_kill()
        return does(*arguments, **named)

    monkeypatch.setattr(owner, name, killed)


def soon(does: Callable[[], object]) -> threading.Timer:
    """Call ``does`` in 0.1 s, when the task under test waits."""
    timer = threading.Timer(0.1, does)
    timer.start()
    return timer


def obeys(job: Job, number: int = 1, how: str = "suspended") -> Callable[[], None]:
    """Return a driver's reaction: it takes the savepoint and ends."""

    def does() -> None:
        job.serve(number)
        job.end(how)

    return does
