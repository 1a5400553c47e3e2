"""The number that tells a clear of a task from a retry. Runs anywhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from airflow_checkpoint_provider.operators._base import generation_of
from tests.support.state_store import TaskStateStore


def task(store: TaskStateStore, max_tries: int) -> Any:
    return {"ti": SimpleNamespace(max_tries=max_tries), "task_state_store": store}


def test_retries_have_the_generation_of_the_first_try() -> None:
    store = TaskStateStore()
    assert generation_of(task(store, 2), 2) == generation_of(task(store, 2), 2)


def test_clear_begins_a_new_generation() -> None:
    store = TaskStateStore()
    first = generation_of(task(store, 2), 2)
    assert generation_of(task(store, 3), 2) != first


def test_clear_after_retries_was_lowered_begins_a_new_generation() -> None:
    """Airflow adds ``retries`` to the number of the try: 1 + 0 is what ``max_tries`` was before."""
    store = TaskStateStore()
    first = generation_of(task(store, 1), 1)
    assert generation_of(task(store, 1), 0) != first


def test_dag_run_that_was_made_again_begins_a_new_generation() -> None:
    assert generation_of(task(TaskStateStore(), 1), 1) != generation_of(task(TaskStateStore(), 1), 1)
