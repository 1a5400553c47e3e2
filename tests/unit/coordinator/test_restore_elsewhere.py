"""Restore points outside of the root: a journal that names one does not make anybody read there. Runs anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.restore import examine
from airflow_checkpoint_provider.coordinator.savepoint import target_of
from airflow_checkpoint_provider.errors import NotNamed, StoreMisconfigured
from airflow_checkpoint_provider.protocol.events import Point, Request
from airflow_checkpoint_provider.storage import LocalStore, Store
from tests.support.acting import Job
from tests.unit.cli.driver import savepoint, take


@pytest.fixture
def home(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "ckp")


@pytest.fixture
def orders(home: LocalStore) -> Coordinator:
    job = Job(home)
    job.start()
    return job.coordinator


def payroll(root: Path, store: Store | None = None) -> dict[str, str]:
    """Return the pointers of a checkpoint and of a savepoint of another team's job."""
    job = Job(store or LocalStore(root / "teams"), job="payroll")
    job.start()
    target = target_of(savepoint(job))
    number = job.coordinator.trigger(Request(token="request", origin="cli"))
    take(job, number)
    return {"checkpoint": f"{job.store.uri}/jobs/payroll/job/chk-{number}", "savepoint": str(target)}


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
def test_restore_point_that_only_the_journal_names_is_not_read(tmp_path: Path, orders: Coordinator, kind: str) -> None:
    pointer = payroll(tmp_path)[kind]
    for told in (None, "latest", "none", "chk-2", f"{pointer}0", pointer.replace("payroll", "other")):
        with pytest.raises(NotNamed, match=rf"is {pointer}, outside of .*start once with restore='{pointer}'"):
            examine(orders, orders.state, Point(pointer=pointer), told=told)


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
def test_restore_point_that_this_process_was_told_is_read(tmp_path: Path, orders: Coordinator, kind: str) -> None:
    pointer = payroll(tmp_path)[kind]
    for told in (pointer, pointer.removeprefix("file://"), pointer.replace("file://", "file:")):
        assert examine(orders, orders.state, Point(pointer=pointer), told=told).outside


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
def test_restore_point_below_the_root_needs_no_name(
    tmp_path: Path, home: LocalStore, orders: Coordinator, kind: str
) -> None:
    pointer = payroll(tmp_path, home)[kind]
    found = examine(orders, orders.state, Point(pointer=pointer))
    assert found.seal
    assert not found.outside


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
def test_savepoint_roots_say_where_a_restore_point_may_lie(
    tmp_path: Path, home: LocalStore, orders: Coordinator, kind: str
) -> None:
    pointer = payroll(tmp_path)[kind]
    home.savepoint_roots = (home.uri, f"file://{tmp_path}/teams")
    assert examine(orders, orders.state, Point(pointer=pointer)).seal
    home.savepoint_roots = (home.uri, f"file://{tmp_path}/others")
    with pytest.raises(StoreMisconfigured):
        examine(orders, orders.state, Point(pointer=pointer), told=pointer)
