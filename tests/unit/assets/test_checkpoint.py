"""``checkpoint_asset``, and the checkpoint that a run gets which its events started."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset

from airflow_checkpoint_provider.assets import checkpoint_asset, triggering_checkpoint
from airflow_checkpoint_provider.coordinator.savepoint import dispose
from airflow_checkpoint_provider.errors import CheckpointNotFound, InvalidConfig, InvalidName
from airflow_checkpoint_provider.storage import Store, open_store
from tests.support.acting import Job

# -- the asset ---------------------------------------------------------------------------------------------------------


def test_asset_is_the_same_in_each_dag() -> None:
    one, two = checkpoint_asset("orders"), checkpoint_asset("orders", ["savepoint"])
    assert (one.name, one.uri, one.extra) == (two.name, two.uri, two.extra)
    assert one.watchers[0].trigger.serialize() == two.watchers[0].trigger.serialize()
    assert one.name == "savepoints of orders"
    assert checkpoint_asset("orders", ["checkpoint", "savepoint"]).name == "checkpoints and savepoints of orders"


def test_assets_of_two_connections_are_two() -> None:
    """Airflow knows an asset by its name. Two teams may have a job of the same name, each in its own store."""
    names = {
        checkpoint_asset("orders", checkpoint_conn_id=connection, item=item).name
        for connection in ("checkpoint_default", "team_a", "team_b")
        for item in (None, "north", "north, connection team_a")
    }
    assert len(names) == 9
    assert "savepoints of orders, connection team_a, item north" in names


@pytest.mark.parametrize("kinds", ["savepoint", (), ("savepoints",)])
def test_kinds_that_do_not_exist_are_refused(kinds: Collection[str]) -> None:
    with pytest.raises(InvalidConfig, match="kinds="):
        checkpoint_asset("orders", kinds)


def test_name_that_is_no_job_is_refused() -> None:
    with pytest.raises(InvalidName):
        checkpoint_asset("a/b")


# -- the run -----------------------------------------------------------------------------------------------------------


def context(*assets: Asset) -> dict[str, Any]:
    """Return the context of a run that events of these assets started."""
    return {"triggering_asset_events": {asset.name: [event(asset)] * 2 for asset in assets}}


def event(asset: Asset, payload: dict[str, Any] | None = None) -> SimpleNamespace:
    """Return an event as a run's context has it. Without ``payload`` a person has made it."""
    extra = {} if payload is None else {"from_trigger": True, "payload": payload}
    return SimpleNamespace(asset=SimpleNamespace(extra=asset.extra), extra=extra)


def payload_of(job: Job, number: int) -> dict[str, Any]:
    """Return what the trigger sends of a checkpoint."""
    return {
        "job": job.job,
        "scope": "",
        "id": number,
        "pointer": job.checkpoint(number).target or str(job.coordinator.pointer(number)),
    }


def run_of(job: Job, number: int) -> dict[str, Any]:
    """Return the context of a run of asset ``orders`` that the event of a checkpoint of ``job`` has started."""
    asset = checkpoint_asset("orders", ("checkpoint", "savepoint"))
    return {"triggering_asset_events": {asset.name: [event(asset, payload_of(job, number))]}}


def test_run_gets_the_newest_checkpoint_of_its_asset(job: Job) -> None:
    job.save()
    newest = job.save()
    job.take()
    found = triggering_checkpoint(context(checkpoint_asset("orders"), Asset("something else")))
    assert (found["id"], found["pointer"]) == (newest, job.checkpoint(newest).target)


def test_run_gets_the_checkpoint_of_its_event_or_a_newer_one(job: Job) -> None:
    first, second = job.save(), job.take()
    assert triggering_checkpoint(run_of(job, first))["id"] == second
    assert triggering_checkpoint(run_of(job, second))["id"] == second


@pytest.mark.parametrize("savepoint", [True, False])
def test_run_of_an_event_of_another_store_is_refused(job: Job, tmp_path: Path, savepoint: bool) -> None:
    """The connection leads elsewhere by now, where a job of the same name runs."""
    other = Job(open_store(str(tmp_path / "elsewhere")))
    other.start()
    number = other.save() if savepoint else other.take()
    assert number == (job.save() if savepoint else job.take())
    with pytest.raises(InvalidConfig, match=rf"is of .*elsewhere.*leads to: {job.store.uri}/jobs/orders"):
        triggering_checkpoint(run_of(other, number))


def test_run_of_an_event_of_another_job_is_refused(job: Job, store: Store) -> None:
    other = Job(store, "payments")
    other.start()
    with pytest.raises(InvalidConfig, match="does not belong to the history"):
        triggering_checkpoint(run_of(other, other.save()))


def test_run_of_an_event_that_a_person_made_gets_the_newest(job: Job) -> None:
    number = job.save()
    asset = checkpoint_asset("orders")
    made = event(asset)
    made.extra.update(from_rest_api=True, payload="by hand")
    assert triggering_checkpoint({"triggering_asset_events": {asset.name: [made]}})["id"] == number


def test_run_whose_checkpoints_were_deleted_is_told(job: Job) -> None:
    number = job.save()
    target = job.checkpoint(number).target
    job.take()  # the job need not start from the savepoint any more
    assert target
    dispose(job.store, target, "ann", "2026-11-22T10:00:00Z")
    with pytest.raises(CheckpointNotFound, match=r"job 'orders' has no savepoint any more.*retention="):
        triggering_checkpoint(context(checkpoint_asset("orders")))


@pytest.mark.parametrize("jobs", [(), ("orders", "payments")])
def test_run_without_one_job_is_refused(jobs: tuple[str, ...]) -> None:
    with pytest.raises(InvalidConfig, match=f"events of {len(jobs)} assets"):
        triggering_checkpoint(context(*map(checkpoint_asset, jobs)))
