"""Tasks that work on one item of a mapped job: they name it in what they ask, and in what they return."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_checkpoint_provider.assets import checkpoint_asset
from airflow_checkpoint_provider.errors import InvalidName
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.references import CheckpointReference
from airflow_checkpoint_provider.operators import (
    FinalizeCheckpointOperator,
    RestoreOperator,
    StopWithSavepointOperator,
    TriggerCheckpointOperator,
    TriggerSavepointOperator,
)
from airflow_checkpoint_provider.sensors import CheckpointCompletedSensor
from airflow_checkpoint_provider.storage import Store
from tests.support import tasks
from tests.support.acting import Job

OPTIONS: dict[str, Any] = {"job": "orders", "item": "north", "poke_interval": 0.01}


@pytest.fixture
def north(store: Store) -> Job:
    """Return the running job of an item; another item runs beside it."""
    for item in ("south", "north"):
        job = Job(store, item=item)
        job.start()
        job.beat()
    return job


def made(kind: Any, **options: Any) -> Any:
    with DAG(tasks.OTHER, schedule=None):
        return kind(task_id="one", **{**OPTIONS, **options})


def test_checkpoint_of_an_item_is_triggered_and_finalized(north: Job) -> None:
    asked = tasks.run(made(TriggerCheckpointOperator, gated=True))
    assert (asked["item"], asked["id"]) == ("north", 1)
    assert "/items/north/chk-1" in asked["pointer"]
    north.acknowledge(1)
    with DAG(tasks.OTHER, schedule=None):
        tasks.run(FinalizeCheckpointOperator(task_id="two", checkpoint=asked))
    assert north.checkpoint(1).completed_at


def test_savepoint_of_an_item_leads_back_to_it(north: Job) -> None:
    tasks.soon(lambda: north.serve(1))
    asked = tasks.run(made(TriggerSavepointOperator))
    reference = CheckpointReference.of(asked)
    assert (asked["item"], reference.prefix) == ("north", north.keys.prefix)
    with pytest.raises(InvalidName):
        CheckpointReference.of({**asked, "item": " "})


def test_stopped_item_is_restored_alone(north: Job) -> None:
    tasks.soon(tasks.obeys(north))
    stopped = tasks.run(made(StopWithSavepointOperator))
    assert CheckpointStorageHook().suspended("orders", "north")
    assert not CheckpointStorageHook().suspended("orders", "south")
    with DAG(tasks.OTHER, schedule=None):
        restore = RestoreOperator(task_id="restore", job="orders", item="north", restore=stopped)
    assert tasks.run(restore)["item"] == "north"
    assert not CheckpointStorageHook().suspended("orders", "north")


def test_completed_checkpoints_of_an_item_are_counted(north: Job) -> None:
    north.take()
    sensor = made(CheckpointCompletedSensor, timeout=0)
    found = sensor.execute(tasks.context(sensor))
    assert (found["item"], found["id"]) == ("north", 1)


def test_job_with_items_is_not_taken_for_one_without(north: Job) -> None:
    with pytest.raises(AirflowFailException, match=r"has a history for each item .* write which one is meant as item="):
        tasks.run(_restore(None))
    with pytest.raises(AirflowFailException, match=r"item 'west', .* check the item"):
        tasks.run(_restore("west"))


def _restore(item: str | None) -> RestoreOperator:
    with DAG(tasks.OTHER, schedule=None):
        return RestoreOperator(task_id="restore", job="orders", item=item, restore="latest")


def test_asset_of_an_item_is_another_one(north: Job) -> None:
    shared, own = checkpoint_asset("orders"), checkpoint_asset("orders", item="north")
    assert (shared.name, own.name) == ("savepoints of orders", "savepoints of orders, item north")
    triggers = [asset.watchers[0].trigger.serialize()[1] for asset in (shared, own)]
    assert [arguments.get("item") for arguments in triggers] == [None, "north"]
    assert "item" not in triggers[0], "the trigger of an older version stays the same"
    north.save()
    reader = CheckpointStorageHook().get_history("orders", "triggerer", "north")
    assert [checkpoint.id for checkpoint in reader.poll().savepoints] == [1]
    assert reader.event(reader.poll().savepoints[0], "savepoint")["item"] == "north"
