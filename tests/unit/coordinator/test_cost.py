"""The number of store requests per operation (docs/inside/properties.md). Runs anywhere."""

from __future__ import annotations

import math

import pytest

from airflow_checkpoint_provider.coordinator import savepoint
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import SEGMENT
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.acknowledgements import acknowledgement, bystander, driver, stage, take
from tests.support.faults import FaultyStore
from tests.support.garbage import retire
from tests.support.histories import launch
from tests.support.journals import open_journal, write, written


def test_entry_costs_one_put_and_one_get() -> None:
    store = FaultyStore(MemoryStore())
    journal = open_journal(store)
    write(journal)
    store.requests.clear()
    write(journal, 62)
    assert store.requests == {"create": 62, "read": 62}


def test_boundary_costs_one_put() -> None:
    """A boundary is never deleted, so its win cannot be void."""
    store = FaultyStore(MemoryStore())
    journal = open_journal(store)
    write(journal, 64)
    store.requests.clear()
    write(journal)
    assert (journal.state.n, store.requests) == (64, {"create": 1})


def test_idle_poll_costs_one_get() -> None:
    store = FaultyStore(written(70))
    journal = open_journal(store)
    journal.catch_up()
    store.requests.clear()
    for polls in range(1, 41):
        journal.poll()
        assert store.requests == {"read": polls}


def test_poll_with_a_new_entry_costs_four_gets() -> None:
    """The poll, the entry, the absent next entry, the boundary."""
    store = FaultyStore(MemoryStore())
    writer, reader = open_journal(store), open_journal(store)
    write(writer, 2)
    reader.catch_up()
    write(writer)
    store.requests.clear()
    assert reader.poll().n == 2
    assert store.requests == {"read": 4}


@pytest.mark.parametrize("states", [1, 20, 100])
def test_checkpoint_costs_seven_requests_however_many_states(states: int) -> None:
    """Trigger 2, acknowledgement 1, seal 2, completed 2."""
    store = FaultyStore(MemoryStore())
    coordinator = driver(store)
    store.requests.clear()
    assert coordinator.trigger(Request(token="stage 'clean'", timeout_s=600.0)) == 1
    assert store.requests == {"create": 1, "read": 1}
    coordinator.acknowledge(acknowledgement(1, *(stage(f"s{n}", 1) for n in range(states))))
    assert store.requests == {"create": 2, "read": 1}
    coordinator.complete(1)
    assert store.requests == {"create": 4, "read": 3}
    assert sum(store.requests.values()) == 7


def test_publishing_costs_three_requests_to_the_history() -> None:
    """Read the seal, write ``_metadata`` at the target, write and confirm the entry."""
    store = FaultyStore(MemoryStore())
    coordinator = driver(store)
    number = coordinator.trigger(
        Request(token="savepoint", origin="task", kind="savepoint", folder="memory://cost-of-a-savepoint")
    )
    coordinator.acknowledge(acknowledgement(number, *(stage(f"s{n}", number) for n in range(20))))
    coordinator.complete(number)
    store.requests.clear()
    savepoint.publish_due(coordinator)
    assert store.requests == {"read": 2, "create": 1}
    store.requests.clear()
    savepoint.publish_due(coordinator)
    assert not store.requests


def test_checkpoint_costs_the_same_after_many_checkpoints() -> None:
    store = FaultyStore(MemoryStore())
    coordinator = driver(store)
    costs = []
    for _ in range(25):
        store.requests.clear()
        number = coordinator.trigger(Request(token=f"barrier {coordinator.state.next_id}", timeout_s=600.0))
        coordinator.acknowledge(acknowledgement(number, stage("clean", number)))
        coordinator.complete(number)
        costs.append(store.requests.total())
    assert set(costs) == {7}


def test_completion_by_another_process_reads_the_acknowledgements() -> None:
    store = FaultyStore(MemoryStore())
    coordinator = driver(store)
    coordinator.trigger(Request(token="stage 'clean'", timeout_s=600.0))
    coordinator.acknowledge(acknowledgement(1, stage("clean", 1)))
    other = bystander(store)
    store.requests.clear()
    other.complete(1)
    assert store.requests == {"create": 2, "read": 3}


def test_deletion_costs_two_entries_and_its_deletions() -> None:
    """Condemn 2, seal 1, rest of the checkpoint 1, forget 2; file sets of a living attempt stay."""
    store = FaultyStore(MemoryStore())
    coordinator = driver(store)
    for _ in range(3):
        take(coordinator)
    store.requests.clear()
    assert retire(coordinator) == (1,)
    assert store.requests == {"create": 2, "read": 2, "delete": 2}
    store.requests.clear()
    assert retire(coordinator) == ()
    assert store.requests == {}


@pytest.mark.parametrize(
    ("entries", "segment"),
    [
        (1, SEGMENT),
        (2, SEGMENT),
        (63, SEGMENT),
        (64, SEGMENT),
        (65, SEGMENT),
        (300, SEGMENT),
        (5, 4),
        (511, 4),
        (513, 4),
    ],
)
def test_cold_start_reads_a_logarithm_of_the_segments(entries: int, segment: int) -> None:
    """2 * log2(segments), the entries of the last segment with their end, and a listing of what lies behind it."""
    store = FaultyStore(written(entries, segment=segment))
    open_journal(store, segment=segment).catch_up()
    segments = math.ceil(entries / segment)
    reads = store.requests["read"]
    assert reads <= 2 * math.log2(segments) + 2 + segment + 2
    assert store.requests == {"read": reads, "list": 1}


def test_repeated_command_costs_two_reads() -> None:
    store = FaultyStore(MemoryStore())
    journal = open_journal(store)
    journal.append(launch())
    store.requests.clear()
    assert journal.append(launch()).done
    assert store.requests == {"read": 2}


def test_requested_stop_is_seen_by_the_next_poll() -> None:
    store = FaultyStore(MemoryStore())
    coordinator = driver(store)
    bystander(store).journal.append(c.RequestStop(launch=1, try_number=1, by="task", reason="marked failed"))
    current = coordinator.journal.poll().current_launch()
    assert current
    assert current.stop == "task: marked failed"
