"""The number that tells a clear of a task from a retry. Runs anywhere."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_checkpoint_provider.operators._base import Generation, generation_of
from tests.support.state_store import TaskStateStore


def generation(store: TaskStateStore, max_tries: int, retries: int, try_number: int = 1) -> Generation:
    ti = SimpleNamespace(max_tries=max_tries, try_number=try_number)
    return generation_of({"ti": ti, "task_state_store": store}, retries)


def test_retries_have_the_generation_of_the_first_try() -> None:
    store = TaskStateStore()
    first = generation(store, 2, 2)
    assert generation(store, 2, 2, try_number=2) == first
    assert not first.cleared


@pytest.mark.parametrize("retries", [0, 1, 5])
def test_retry_after_an_edit_of_retries_is_no_clear(retries: int) -> None:
    """The edit changes the DAG file only; Airflow keeps ``max_tries`` of the run."""
    store = TaskStateStore()
    assert generation(store, 3, 3) == generation(store, 3, retries, try_number=2)


def test_clear_begins_a_new_generation() -> None:
    store = TaskStateStore()
    first = generation(store, 2, 2)
    cleared = generation(store, 3, 2, try_number=2)
    assert cleared.number != first.number
    assert cleared.cleared


def test_clear_after_retries_was_lowered_begins_a_new_generation() -> None:
    """Airflow adds ``retries`` to the number of the try: 1 + 0 is what ``max_tries`` was before."""
    store = TaskStateStore()
    first = generation(store, 1, 1)
    cleared = generation(store, 1, 0, try_number=2)
    assert cleared.number != first.number
    assert cleared.cleared
    assert generation(store, 1, 0, try_number=2) == cleared, "it was deferred"


def test_retry_after_such_a_clear_keeps_the_generation() -> None:
    store = TaskStateStore()
    generation(store, 3, 3)
    cleared = generation(store, 3, 2, try_number=2)  # 1 + 2
    assert generation(store, 3, 2, try_number=3) == cleared


def test_dag_run_that_was_made_again_begins_a_new_generation() -> None:
    assert generation(TaskStateStore(), 1, 1).number != generation(TaskStateStore(), 1, 1).number
