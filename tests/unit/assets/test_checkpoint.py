"""``checkpoint_asset``, and the checkpoint that a run gets which its events started."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset

from airflow_checkpoint_provider.assets import checkpoint_asset, triggering_checkpoint
from airflow_checkpoint_provider.coordinator.savepoint import dispose
from airflow_checkpoint_provider.errors import CheckpointNotFound, InvalidConfig, InvalidName
from tests.support.acting import Job

# -- the asset ---------------------------------------------------------------------------------------------------------


def test_asset_is_the_same_in_each_dag() -> None:
    one, two = checkpoint_asset("orders"), checkpoint_asset("orders", ["savepoint"])
    assert (one.name, one.uri, one.extra) == (two.name, two.uri, two.extra)
    assert one.watchers[0].trigger.serialize() == two.watchers[0].trigger.serialize()
    assert one.name == "savepoints of orders"
    assert checkpoint_asset("orders", ["checkpoint", "savepoint"]).name == "checkpoints and savepoints of orders"


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
    events = {asset.name: [SimpleNamespace(asset=SimpleNamespace(extra=asset.extra))] * 2 for asset in assets}
    return {"triggering_asset_events": events}


def test_run_gets_the_newest_checkpoint_of_its_asset(job: Job) -> None:
    job.save()
    newest = job.save()
    job.take()
    found = triggering_checkpoint(context(checkpoint_asset("orders"), Asset("something else")))
    assert (found["id"], found["pointer"]) == (newest, job.checkpoint(newest).target)


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
