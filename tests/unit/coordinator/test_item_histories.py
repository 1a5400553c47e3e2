"""The histories of items: they are listed with their run, and collected as those of any older run. Runs anywhere."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.coordinator import histories
from airflow_checkpoint_provider.coordinator.histories import all_prefixes, run_histories
from airflow_checkpoint_provider.coordinator.indexes import Indexes, Registration
from airflow_checkpoint_provider.coordinator.savepoint import dispose
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.storage import LocalStore, MemoryStore, Store
from tests.support.acting import Job
from tests.unit.coordinator.runs_to_collect import JOB, OWN, RUN, day, ran, sweep

pytestmark = pytest.mark.usefixtures("fast_beats")
NEWER = "scheduled__2026-11-25"


def found(store: Store, limit: int = 20, item: str | None = None) -> list[tuple[str, str | None]]:
    all_of = histories.histories(store, JOB, limit, item)
    return [(history.newest_run, history.state.item) for history in all_of.found]


def two_runs(store: Store) -> None:
    for run in (RUN, NEWER):
        for item in ("orders", "payments", "stock"):
            ran(store, run, item=item)


def test_items_are_found_with_their_runs() -> None:
    store = MemoryStore()
    two_runs(store)
    assert set(found(store)) == {(run, item) for run in (RUN, NEWER) for item in ("orders", "payments", "stock")}
    assert {history.state.item for history in run_histories(store, JOB, RUN).found} == {"orders", "payments", "stock"}


def test_runs_are_read_until_there_are_enough_histories() -> None:
    store = MemoryStore()
    two_runs(store)
    assert {run for run, _ in found(store, limit=3)} == {NEWER}
    assert histories.histories(store, JOB, 3).not_read == 1


def test_one_item_is_found_in_all_runs() -> None:
    store = MemoryStore()
    two_runs(store)
    assert set(found(store, item="orders")) == {(RUN, "orders"), (NEWER, "orders")}
    assert found(store, item="absent") == []


def test_items_of_a_history_that_runs_share_are_found_beside_it() -> None:
    """The job was not mapped before."""
    store = MemoryStore()
    ran(store, "")
    ran(store, "", item="orders")
    assert {item for _, item in found(store)} == {None, "orders"}
    assert [*all_prefixes(store, JOB)] == [f"jobs/{JOB}/job", f"jobs/{JOB}/job/items/orders"]


def test_run_without_items_costs_no_listing_of_items() -> None:
    store = MemoryStore()
    ran(store)
    asked: list[str] = []
    folders = store.folders
    store.folders = lambda prefix: asked.append(prefix) or folders(prefix)  # type: ignore[method-assign,func-returns-value]
    found(store)
    assert sorted(asked) == [f"jobs/{JOB}/job/items", f"jobs/{JOB}/runs"]


def test_items_of_older_runs_are_deleted_and_closed_when_due() -> None:
    store = MemoryStore()
    for item in ("orders", "payments"):
        ran(store, item=item)
    swept = sweep(store, day(32))
    assert sorted((older.run, older.closed) for older in swept) == [
        (f"{RUN}, item orders", True),
        (f"{RUN}, item payments", True),
    ]


def register(store: Store, run: str, item: str) -> None:
    indexes = Indexes(store, History(JOB, run), Token(dag="flights_etl", run=run, task="delays"))
    indexes.register(0, 1, Registration(item=item, generation=1, at="2026-11-20T22:00:00.000Z"))


def registered(store: Store) -> list[str]:
    return sorted({listed.key.split("/")[3] for listed in store.list("") if "/indexes/" in listed.key})


def test_registrations_of_a_run_go_when_its_last_item_is_closed() -> None:
    store = MemoryStore()
    ran(store, item="orders")
    ran(store, NEWER, item="orders")
    register(store, RUN, "orders")
    register(store, NEWER, "orders")
    sweep(store, day(32))
    assert registered(store) == [RUN, NEWER], "the listing was made before"
    ran(store, "scheduled__2026-12-20", item="orders")
    sweep(store, day(32))
    assert registered(store) == []


def test_registrations_stay_while_an_item_of_the_run_is_open() -> None:
    store = MemoryStore()
    ran(store, item="orders")
    sweep(store, day(32))
    ran(store, item="payments")
    ran(store, "scheduled__2026-12-20", item="orders")
    register(store, RUN, "orders")
    sweep(store, day(3))
    assert registered(store) == [RUN]


def test_registrations_of_the_own_run_and_of_one_that_just_begins_stay() -> None:
    store = MemoryStore()
    own = OWN.rsplit("/", 1)[1]
    ran(store, own, item="orders")
    sweep(store, day(32), own=f"{OWN}/items/other")
    register(store, own, "payments")
    register(store, "scheduled__2026-10-01", "orders")
    ran(store, "scheduled__2027-02-20", item="orders")
    sweep(store, day(32), own=f"{OWN}/items/payments")
    assert registered(store) == ["scheduled__2026-10-01", own]


def test_savepoint_of_an_item_is_disposed_of_by_its_own_history(tmp_path: object) -> None:
    store = LocalStore(str(tmp_path))
    job = Job(store, item="orders")
    job.start()
    number = job.save()
    job.take()
    target = job.checkpoint(number).target
    assert target
    assert dispose(store, target, "ann", day(1)).own
    assert number not in {checkpoint.id for checkpoint in job.state.savepoints}
