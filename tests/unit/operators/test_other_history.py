"""A checkpoint of a history that was deleted and begun anew: its id means another checkpoint now, so nothing takes that one for it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_checkpoint_provider.coordinator.savepoint import publish_due
from airflow_checkpoint_provider.errors import CheckpointError, CheckpointNotFound, InvalidConfig
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.history import HistoryReader
from airflow_checkpoint_provider.operators import (
    AbortCheckpointOperator,
    FinalizeCheckpointOperator,
    NotifyCheckpointCompleteOperator,
    RestoreOperator,
)
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.sensors import CheckpointAcknowledgedSensor, CheckpointCompletedSensor
from airflow_checkpoint_provider.storage import Store, open_store
from airflow_checkpoint_provider.triggers.checkpoint import CheckpointTrigger
from tests.support import tasks
from tests.support.acting import Job
from tests.support.tasks import OTHER, run, trigger, waits
from tests.unit.operators.submissions import execute

GONE = "its history was deleted since, and another one has begun in its place"
Act = Callable[[Any], Any]


def begun_anew(store: Store) -> Job:
    """Delete all state of the job, as a person does, and let it begin anew."""
    shutil.rmtree(store.uri.removeprefix("file://") + "/jobs/orders")
    tasks.STORES.clear()
    return named(store, "another")


def named(store: Store, incarnation: str) -> Job:
    job = Job(store)
    job.incarnation = incarnation
    job.start()
    return job


def of_dag(operator: type, **options: Any) -> Any:
    with DAG(OTHER, schedule=None):
        return operator(task_id="task", **options)


ACTS: list[tuple[str, Act]] = [
    ("finalize", lambda old: run(of_dag(FinalizeCheckpointOperator, checkpoint=old))),
    ("acknowledged", lambda old: run(waits(CheckpointAcknowledgedSensor, old))),
    ("completed", lambda old: run(waits(CheckpointCompletedSensor, old))),
    ("notify", lambda old: run(waits(NotifyCheckpointCompleteOperator, old))),
    ("restore", lambda old: run(of_dag(RestoreOperator, job="orders", restore=old))),
    ("describe", lambda old: CheckpointStorageHook().describe(old)),
    ("after", lambda old: run(of_dag(CheckpointCompletedSensor, job="orders", after=old, timeout=0))),
]


@pytest.mark.parametrize("act", [act for _, act in ACTS], ids=[name for name, _ in ACTS])
@pytest.mark.parametrize("completed", [False, True])
def test_checkpoint_of_the_new_history_is_not_taken_for_the_old_one(store: Store, act: Act, completed: bool) -> None:
    named(store, "first")
    old = run(trigger(gated=True))
    new = begun_anew(store)
    assert run(trigger(gated=True))["pointer"] == old["pointer"]
    new.acknowledge(1)
    if completed:
        new.coordinator.complete(1, finalize=True)
    before = new.state
    with pytest.raises((AirflowFailException, CheckpointNotFound), match=GONE):
        act(old)
    assert new.state == before


def test_abort_has_nothing_to_abort(store: Store) -> None:
    named(store, "first")
    old = run(trigger())
    new = begun_anew(store)
    run(trigger())
    with pytest.raises(AirflowSkipException, match=GONE):
        run(of_dag(AbortCheckpointOperator, checkpoint=old))
    assert new.checkpoint(1).status == "pending"


def test_dict_of_a_person_and_a_pointer_name_what_is_there_now(store: Store) -> None:
    named(store, "first")
    old = run(trigger(gated=True))
    new = begun_anew(store)
    run(trigger(gated=True))
    new.acknowledge(1)
    by_hand = {name: value for name, value in old.items() if name != "incarnation"}
    assert CheckpointStorageHook().describe(by_hand) == CheckpointStorageHook().describe(old["pointer"])
    run(of_dag(FinalizeCheckpointOperator, checkpoint=by_hand))
    assert new.checkpoint(1).status == "retained"


@pytest.mark.parametrize("wrong", [7, ["first"], True])
def test_incarnation_that_is_no_text_is_refused(wrong: Any) -> None:
    checkpoint = {"pointer": "s3://lake/jobs/orders/job/chk-1", "incarnation": wrong}
    with pytest.raises(InvalidConfig, match="its incarnation is no text"):
        CheckpointStorageHook().get_checkpoint(checkpoint, "audit")


def test_description_serves_as_the_output_of_its_trigger(store: Store) -> None:
    job = named(store, "first")
    run(trigger(gated=True))
    job.acknowledge(1)
    assert run(of_dag(FinalizeCheckpointOperator, checkpoint=CheckpointStorageHook().describe(made(job))))["id"] == 1


def made(job: Job) -> dict[str, Any]:
    """Return the output of the task that took the newest checkpoint."""
    reader = HistoryReader(History("orders"), lambda: job.coordinator)
    return reader.reference(job.state.checkpoints[-1])


def test_task_that_waits_in_the_triggerer_finds_out(store: Store) -> None:
    named(store, "first")
    old = run(trigger())
    begun_anew(store)
    run(trigger())
    over = CheckpointTrigger(
        checkpoint=old, awaited="completed", checkpoint_conn_id="checkpoint_default", deadline="", poll_interval=1.0
    ).condition()
    with pytest.raises(CheckpointError, match=GONE) as error:
        asyncio.run(asyncio.to_thread(over))
    assert error.value.about["over"], "the task is resumed at once"


def test_trigger_that_was_deferred_asks_for_its_own_checkpoint(store: Store) -> None:
    named(store, "first")
    task = trigger(wait_for_completion=True)
    deadline = "2100-01-01T00:00:00+00:00"
    event = {"checkpoint": {"pointer": run(trigger())["pointer"], "incarnation": "first"}, "deadline": deadline}
    new = begun_anew(store)
    run(trigger())
    new.complete(1)
    with pytest.raises(AirflowFailException, match=GONE):
        task.execute_complete(tasks.context(task), event)


def test_savepoint_outlives_its_history(store: Store) -> None:
    """It has a directory of its own, whose name is used once."""
    job = named(store, "first")
    number = job.coordinator.trigger(Request(token="s", kind="savepoint", origin="user", folder=f"{store.uri}/saved"))
    job.complete(number)
    publish_due(job.coordinator)
    saved = made(job)
    begun_anew(store)
    assert CheckpointStorageHook().describe(saved)["pointer"] == saved["pointer"]
    assert run(of_dag(RestoreOperator, job="orders", restore=saved))["next_start"] == saved["pointer"]


def test_job_does_not_start_from_another_checkpoint(folder: Path) -> None:
    store = open_store(str(folder / "checkpoints"))
    named(store, "first").take()
    old = {**made(Job(store)), "incarnation": "first"}
    named_now = begun_anew(store)
    named_now.take()
    with pytest.raises(AirflowFailException, match=GONE):
        execute(folder, restore=old)
    assert not (folder / "argv").exists()
    assert execute(folder, restore=made(named_now))
