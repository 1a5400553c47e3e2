"""A task that cannot open the history of its earlier try, or names another one: what it says of the driver that it leaves."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred

from airflow_checkpoint_provider.coordinator.liveness import VARIABLE
from airflow_checkpoint_provider.storage import LocalStore
from tests.support.acting import Job
from tests.support.beats import beating
from tests.support.state_store import TaskStateStore
from tests.unit.operators.deferring import Task

CHANGES: dict[str, dict[str, Any]] = {
    "job_id": {"job_id": "orders"},
    "scope": {"scope": "job"},
    "connection": {"checkpoint_conn_id": "elsewhere"},
}
CHANGED = pytest.mark.parametrize("changed", CHANGES.values(), ids=CHANGES)


@pytest.fixture
def task(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """A deferred task with a driver that has attached."""
    monkeypatch.setenv(VARIABLE, "0.2")
    (folder / "elsewhere").mkdir()
    extra = {"conn_type": "checkpoint_storage", "extra": {"root": str(folder / "elsewhere")}}
    monkeypatch.setenv("AIRFLOW_CONN_ELSEWHERE", json.dumps(extra))
    task = Task(folder)
    task.defers()
    task.job.attach()
    return task


def living(task: Task, monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager[None]:
    monkeypatch.setenv(VARIABLE, "3")  # time enough for two beats on a busy machine
    return beating(task.job.store, task.job.keys.attempt_beat(1))


def refusal(task: Task) -> str:
    """Return why the process ends that wakes up, and the next one that begins."""
    with pytest.raises(AirflowFailException) as woken:
        task.resumes({"why": "ended"})
    with pytest.raises(AirflowFailException) as begun:
        task.operator().execute(task.context(try_number=2))
    assert str(begun.value) == str(woken.value)
    return str(woken.value)


@CHANGED
def test_task_that_names_another_history_names_the_driver_that_lives(
    task: Task, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    old = f"{task.job.store.uri}/{task.job.keys.prefix}"
    with living(task, monkeypatch):
        task.options |= changed
        said = refusal(task)
    assert f"wrote to job etl.job, run manual__1, at {old}." in said
    assert "Its driver still runs." in said
    assert "`airflow checkpoints stop etl.job manual__1`" in said
    assert "delete the key" not in said, "two jobs would run side by side"
    assert task.job.state.launches[0].stop is None


@CHANGED
def test_task_that_names_another_history_may_forget_one_whose_driver_has_ended(
    task: Task, changed: dict[str, Any]
) -> None:
    task.job.end("failed")
    task.options |= changed
    said = refusal(task)
    assert "No driver of it runs. To begin anew, delete the key 'checkpoint_history'" in said
    task.state_store = TaskStateStore()
    task.defers()


def test_driver_is_not_called_dead_whose_history_cannot_be_read(
    task: Task, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"conn_type": "checkpoint_storage", "extra": {"root": str(folder / "elsewhere")}}
    monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", json.dumps(extra))
    said = refusal(task)
    assert f"at {task.job.store.uri}/{task.job.keys.prefix}." in said
    assert "Its driver may still run" in said
    assert "stop it first: `airflow checkpoints stop etl.job manual__1`. Then delete the key" in said


def test_driver_is_not_called_dead_that_may_be_queued(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0.2")
    task = Task(folder)
    task.defers()
    task.options["job_id"] = "orders"
    said = refusal(task)
    assert "Its driver may still run, or wait to start" in said
    assert "stop it first: `airflow checkpoints stop etl.job manual__1`. Then delete the key" in said


def test_task_that_names_its_history_again_follows_its_driver(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    with living(task, monkeypatch):
        task.options["job_id"] = "orders"
        refusal(task)
        del task.options["job_id"]
        assert task.defers(try_number=2).launch == 1


def test_history_that_lies_at_another_root_now_is_the_same(
    task: Task, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "checkpoints").rename(folder / "moved")
    extra = {"conn_type": "checkpoint_storage", "extra": {"root": str(folder / "moved")}}
    monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", json.dumps(extra))
    task.job = Job(LocalStore(str(folder / "moved")), "etl.job", "manual__1")
    with living(task, monkeypatch), pytest.raises(TaskDeferred):
        task.resumes({"why": "silent"})


def test_history_that_an_earlier_version_has_kept_is_known(task: Task) -> None:
    kept = task.state_store.get("checkpoint_history")
    assert kept == {
        "incarnation": task.job.state.incarnation,
        "root": task.job.store.uri,
        "history": task.job.keys.prefix,
        "connection": "checkpoint_default",
    }
    task.state_store.set("checkpoint_history", kept["incarnation"])
    task.job.end()
    assert task.resumes({"why": "ended"})["ended"] == "finished"
    task.state_store.set("checkpoint_history", "another")
    assert "that is not there any more" in refusal(task)


# -- a history that cannot be opened -----------------------------------------------------------------------------------------

BROKEN: dict[str, str] = {
    "typing error": json.dumps({"conn_type": "checkpoint_storage", "extra": {"root": "/lake", "regoin": "x"}}),
    "no store": json.dumps({"conn_type": "checkpoint_storage", "extra": {"root": "ftp://lake"}}),
    "unreadable": "{not json",
}


@pytest.mark.parametrize("connection", BROKEN.values(), ids=BROKEN)
def test_task_whose_connection_is_broken_for_a_while_is_retried_and_names_its_driver(
    task: Task, monkeypatch: pytest.MonkeyPatch, connection: str
) -> None:
    with living(task, monkeypatch):
        with monkeypatch.context() as broken:
            broken.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", connection)
            with pytest.raises(AirflowException, match="was not asked to stop") as error:
                task.resumes({"why": ""})
        assert not isinstance(error.value, AirflowFailException)
        assert "end the driver by `airflow checkpoints stop etl.job manual__1`" in str(error.value)
        assert task.defers(try_number=2).launch == 1


def test_retry_that_cannot_open_the_history_either_names_the_driver(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", BROKEN["typing error"])
    with pytest.raises(AirflowFailException, match=r"regoin.*Remove the others\. The driver .*was not asked to stop"):
        task.operator().execute(task.context(try_number=2))
    task.state_store = TaskStateStore()
    with pytest.raises(AirflowFailException) as first:
        task.operator().execute(task.context())
    assert "was not asked to stop" not in str(first.value)
