"""The number that tells a clear of a task from a retry. Runs anywhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import airflow
import pytest

from airflow_checkpoint_provider.errors import NotSupportedYet
from airflow_checkpoint_provider.operators._base import GENERATION_KEY, Generation, generation_of
from tests.support.state_store import TaskStateStore


def generation(store: TaskStateStore, max_tries: int, retries: int, try_number: int = 1, **asked: Any) -> Generation:
    ti = SimpleNamespace(max_tries=max_tries, try_number=try_number)
    return generation_of({"ti": ti, "task_state_store": store}, retries, **asked)


def never_asked() -> bool:
    raise AssertionError("the journal was read")


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


@pytest.mark.parametrize(
    ("release", "discarded"), [("3.3.2", False), ("3.4.0", True), ("3.4.0b1", True), ("4.0.0", True)]
)
def test_missing_key_after_a_clear_was_discarded_where_a_clear_discards(
    release: str, discarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(airflow, "__version__", release)
    store = TaskStateStore()
    cleared = generation(store, 3, 2, try_number=2, launched=lambda: True)
    assert (cleared.cleared, cleared.discarded) == (True, discarded)
    assert generation(store, 3, 2, try_number=3, launched=never_asked) == cleared, "later tries decide alike"


@pytest.mark.parametrize("max_tries", [2, 3])
def test_missing_key_without_a_clear_or_a_launch_was_not_discarded(
    max_tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(airflow, "__version__", "3.4.0")
    asked = never_asked if max_tries == 2 else bool
    assert not generation(TaskStateStore(), max_tries, 2, launched=asked).discarded


def test_clear_that_keeps_what_is_stored_discards_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow, "__version__", "3.4.0")
    store = TaskStateStore()
    discarded = generation(store, 3, 2, try_number=2, launched=lambda: True)
    kept = generation(store, 4, 2, try_number=3, launched=never_asked)
    assert (discarded.discarded, kept.discarded) == (True, False)
    assert kept.number != discarded.number


def test_key_of_an_earlier_version_says_nothing_of_a_discard() -> None:
    store = TaskStateStore()
    store.set(GENERATION_KEY, {"max_tries": 2, "retries": 2, "number": 7, "cleared": True})
    assert generation(store, 2, 2) == Generation(7, cleared=True, discarded=False)


@pytest.mark.parametrize(("loop", "refused"), [(SimpleNamespace(index=0), True), (["a list has an index, too"], False)])
def test_task_in_a_loop_is_refused(loop: object, refused: bool) -> None:
    ti = SimpleNamespace(max_tries=0, try_number=1)
    context = {"ti": ti, "task_state_store": TaskStateStore(), "loop": loop}
    if not refused:
        assert generation_of(context, 0)
        return
    with pytest.raises(NotSupportedYet, match="in a loop of tasks"):
        generation_of(context, 0)
