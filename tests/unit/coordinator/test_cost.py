"""Requests to the store, counted (docs/protocol.md). Runs anywhere."""

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
from tests.support.garbage import expire
from tests.support.histories import launch
from tests.support.journals import open_journal, write, written


def test_one_entry_is_one_put_and_one_get() -> None:
    store = FaultyStore(MemoryStore())
    journal = open_journal(store)
    write(journal)
    store.requests.clear()
    write(journal, 62)
    assert store.requests == {"create": 62, "read": 62}


def test_a_boundary_is_one_put() -> None:
    """It is never pruned, so its win cannot be void."""
    store = FaultyStore(MemoryStore())
    journal = open_journal(store)
    write(journal, 64)
    store.requests.clear()
    write(journal)
    assert (journal.state.n, store.requests) == (64, {"create": 1})


def test_an_idle_poll_is_one_get() -> None:
    store = FaultyStore(written(70))
    journal = open_journal(store)
    journal.catch_up()
    store.requests.clear()
    for polls in range(1, 41):
        journal.poll()
        assert store.requests == {"read": polls}


def test_a_poll_that_finds_one_entry_reads_it_and_believes_it() -> None:
    """The look, the entry, the absent one behind it, the boundary."""
    store = FaultyStore(MemoryStore())
    writer, reader = open_journal(store), open_journal(store)
    write(writer, 2)
    reader.catch_up()
    write(writer)
    store.requests.clear()
    assert reader.poll().n == 2
    assert store.requests == {"read": 4}


@pytest.mark.parametrize("states", [1, 20, 100])
def test_a_drivers_checkpoint_is_seven_requests_however_many_states(states: int) -> None:
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


def test_publishing_a_savepoint_costs_four_requests_to_its_history_and_target() -> None:
    """Its own seal is read, ``_metadata`` put at the target (without a read: nobody else was first), and the entry."""
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


def test_nothing_depends_on_how_many_checkpoints_were_made() -> None:
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


def test_who_did_not_acknowledge_reads_each_applications_acknowledgement() -> None:
    store = FaultyStore(MemoryStore())
    coordinator = driver(store)
    coordinator.trigger(Request(token="stage 'clean'", timeout_s=600.0))
    coordinator.acknowledge(acknowledgement(1, stage("clean", 1)))
    other = bystander(store)
    store.requests.clear()
    other.complete(1)
    assert store.requests == {"create": 2, "read": 3}


def test_retiring_costs_two_entries_and_its_deletions() -> None:
    """Condemn 2, seal 1, rest of the checkpoint 1, forget 2; file sets of a living attempt stay."""
    store = FaultyStore(MemoryStore())
    coordinator = driver(store)
    for _ in range(3):
        take(coordinator)
    store.requests.clear()
    assert expire(coordinator) == (1,)
    assert store.requests == {"create": 2, "read": 2, "delete": 2}
    store.requests.clear()
    assert expire(coordinator) == ()
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
def test_a_cold_start_gallops(entries: int, segment: int) -> None:
    """2 * log2(segments), and the entries of the last segment with their end."""
    store = FaultyStore(written(entries, segment=segment))
    open_journal(store, segment=segment).catch_up()
    segments = math.ceil(entries / segment)
    assert store.requests["read"] <= 2 * math.log2(segments) + 2 + segment + 2
    assert store.requests.total() == store.requests["read"]


def test_what_is_done_already_costs_what_catching_up_costs() -> None:
    store = FaultyStore(MemoryStore())
    journal = open_journal(store)
    journal.append(launch())
    store.requests.clear()
    assert journal.append(launch()).done
    assert store.requests == {"read": 2}


def test_a_stop_that_was_asked_for_is_seen_by_the_next_poll() -> None:
    store = FaultyStore(MemoryStore())
    coordinator = driver(store)
    bystander(store).journal.append(c.RequestStop(launch=1, try_number=1, by="task", reason="marked failed"))
    current = coordinator.journal.poll().current_launch()
    assert current
    assert current.stop == "task: marked failed"
