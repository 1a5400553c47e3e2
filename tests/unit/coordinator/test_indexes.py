"""The registrations of map indexes: the greatest try counts, whatever the order in which tries write. Runs anywhere."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.coordinator import indexes
from airflow_checkpoint_provider.coordinator.indexes import Indexes, Registration
from airflow_checkpoint_provider.errors import OneItemTwice, StoreUnavailable, Superseded
from airflow_checkpoint_provider.protocol.events import Token
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.storage import MemoryStore, Store
from tests.support.faults import Fault, FaultyStore, Killed, always, nth

AT = "2026-11-20T03:02:10.000Z"


def registry(store: Store, run: str = "r1", scope: str | None = "r1", task: str = "load") -> Indexes:
    return Indexes(store, History("load", scope, "any"), Token(dag="load_tables", run=run, task=task))


def item(name: str, generation: int = 1) -> Registration:
    return Registration(item=name, generation=generation, at=AT)


def registered(registry: Indexes, index: int) -> str | None:
    found = registry.registered(index)
    return found.item if found else None


def test_index_has_the_item_of_its_greatest_try() -> None:
    store = MemoryStore()
    first = registry(store)
    first.register(3, 1, item("orders"))
    first.register(3, 2, item("payments"))
    first.register(3, 11, item("stock"))
    assert (registered(first, 3), registered(first, 4)) == ("stock", None)


def test_try_that_registers_twice_changes_nothing() -> None:
    store = MemoryStore()
    first = registry(store)
    first.register(3, 1, item("orders"))
    first.register(3, 1, Registration(item="orders", generation=1, at="2026-11-20T09:00:00.000Z"))
    assert registered(first, 3) == "orders"


def test_earlier_try_that_wakes_up_late_is_refused() -> None:
    first = registry(MemoryStore())
    first.register(3, 2, item("payments"))
    with pytest.raises(Superseded, match="try 2 of map index 3 has begun"):
        first.register(3, 1, item("orders"))
    assert registered(first, 3) == "payments"


def test_earlier_try_that_writes_after_the_later_one_changes_nothing() -> None:
    """It has looked before the later try wrote."""
    store = MemoryStore()
    late = registry(store)
    looked, _ = late._newest(3)
    assert looked == -1
    registry(store).register(3, 2, item("payments"))
    store.create(late._key(3, 1), item("orders").encoded.encode())
    assert registered(late, 3) == "payments"


def test_item_of_a_try_does_not_change() -> None:
    """The templates of a task that was deferred are rendered again when it is resumed."""
    first = registry(MemoryStore())
    first.register(3, 1, item("orders"))
    with pytest.raises(OneItemTwice, match="began try 1 with item 'orders', and has item 'stock' now"):
        first.register(3, 1, item("stock"))


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.TWICE])
def test_lost_answer_is_read_back(fault: Fault) -> None:
    first = registry(FaultyStore(MemoryStore(), nth({1: fault})))
    first.register(3, 1, item("orders"))
    assert registered(first, 3) == "orders"


@pytest.mark.parametrize("fault", [Fault.KILLED_BEFORE, Fault.KILLED_AFTER])
def test_process_that_dies_while_it_registers_is_followed_by_its_next_try(fault: Fault) -> None:
    store = MemoryStore()
    with pytest.raises(Killed):
        registry(FaultyStore(store, nth({1: fault}))).register(3, 1, item("orders"))
    registry(store).register(3, 2, item("payments"))
    assert registered(registry(store), 3) == "payments"


def test_store_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(StoreUnavailable):
        registry(FaultyStore(MemoryStore(), always(Fault.NOT_SENT, "list"))).registered(3)


def test_tasks_do_not_share_indexes() -> None:
    store = MemoryStore()
    registry(store).register(0, 1, item("orders"))
    assert registered(registry(store, task="unload"), 0) is None


def test_runs_that_share_a_history_keep_the_newest_registrations() -> None:
    store = MemoryStore()
    registry(store, "r1", None).register(0, 1, item("orders"))
    registry(store, "r2", None).register(0, 1, item("payments"))
    assert registered(registry(store, "r1", None), 0) is None
    assert registered(registry(store, "r2", None), 0) == "payments"


def test_forgotten_run_has_no_registrations() -> None:
    store = MemoryStore()
    registry(store).register(0, 1, item("orders"))
    registry(store, "r2", "r2").register(0, 1, item("orders"))
    indexes.forget(store, "jobs/load/runs/r1")
    assert [listed.key for listed in store.list("")] == ["jobs/load/runs/r2/indexes/r2/load_tables.load/0/000001"]
