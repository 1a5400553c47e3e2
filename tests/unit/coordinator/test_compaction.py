"""Compaction keeps the journal short and changes nothing for its readers (docs/inside/properties.md, P7). Runs anywhere."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from airflow_checkpoint_provider.coordinator.closing import close
from airflow_checkpoint_provider.coordinator.compaction import compact
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.errors import OtherIncarnation, StoreUnavailable
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import updates
from airflow_checkpoint_provider.protocol.keys import SEGMENT
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import MemoryStore
from airflow_checkpoint_provider.storage.base import Listed
from tests.support.acknowledgements import bystander, driver, take
from tests.support.faults import Call, Fault, FaultyStore, Killed, served
from tests.support.garbage import retire
from tests.support.histories import at, clear, start
from tests.support.journals import KEYS, SHORT, numbers, open_journal, raw, write, written


def compacted(entries: int) -> tuple[MemoryStore, Journal]:
    """Return a journal of short segments that was compacted once, after its last entry."""
    store = written(entries, segment=SHORT)
    journal = open_journal(store, segment=SHORT)
    journal.catch_up()
    compact(journal)
    return store, journal


def stubs(store: MemoryStore) -> list[int]:
    return [n for n in numbers(store) if raw(store, n).get("stub")]


def test_compaction_keeps_two_segments_and_all_boundaries() -> None:
    """The last two segments and every boundary stay; the last four boundaries are whole, older ones are stubs."""
    store, _ = compacted(7 * SHORT + 2)
    assert numbers(store) == [0, 4, 8, 12, 16, 20, *range(24, 30)]
    assert stubs(store) == [0, 4, 8, 12]


@pytest.mark.parametrize("entries", range(1, 2 * SHORT + 1))
def test_short_journal_is_not_compacted(entries: int) -> None:
    store, _ = compacted(entries)
    assert numbers(store) == [*range(entries)]
    assert stubs(store) == []


@pytest.mark.parametrize("entries", range(2 * SHORT, 8 * SHORT, 3))
def test_new_reader_of_a_compacted_journal_reads_the_same_state(entries: int) -> None:
    before = open_journal(written(entries, segment=SHORT), segment=SHORT).catch_up()
    store, _ = compacted(entries)
    late = open_journal(store, segment=SHORT)
    assert late.catch_up() == before
    write(late, 2)
    assert late.state.n == entries + 1


@pytest.mark.parametrize("believed", range(1, 3 * SHORT))
def test_sleeping_reader_goes_on_from_the_boundary(believed: int) -> None:
    store = written(believed, segment=SHORT)
    sleeper, writer = open_journal(store, segment=SHORT), open_journal(store, segment=SHORT)
    sleeper.catch_up()
    write(writer, 7 * SHORT)
    compact(writer)
    assert sleeper.catch_up() == writer.state
    write(sleeper)
    assert sleeper.state.n == writer.state.n + 1


def test_sleeping_writer_decides_again_after_a_void_win() -> None:
    store = written(3, segment=SHORT)
    sleeper, writer = open_journal(store, segment=SHORT), open_journal(store, segment=SHORT)
    sleeper.catch_up()
    write(writer, 5 * SHORT)
    compact(writer)
    assert 3 not in numbers(store)
    write(sleeper)
    assert 3 in numbers(store), "the store accepted the put"
    assert sleeper.state.n == 3 + 5 * SHORT, "no reader believes it"


def test_first_stub_keeps_the_names() -> None:
    """The name of a folder may be cut; a list of jobs reads the full names in the first stub."""
    store, journal = compacted(6 * SHORT)
    assert (raw(store, 0)["job"], raw(store, 0)["scope"]) == (journal.state.job, journal.state.scope)
    assert raw(store, 4) == {"v": 1, "inc": journal.state.incarnation, "n": 4, "stub": True}


def test_second_compaction_changes_nothing() -> None:
    store, journal = compacted(7 * SHORT)
    before = dict(store.objects)
    compact(journal)
    assert store.objects == before


def test_history_that_was_begun_anew_is_not_compacted_for_the_old_one() -> None:
    """A person deleted the history while this process slept."""
    store, journal = compacted(7 * SHORT)
    anew = open_journal(another := MemoryStore(), segment=SHORT)
    write(anew, 8 * SHORT, incarnation="an0ther")
    before = store.objects = dict(another.objects)
    with pytest.raises(OtherIncarnation):
        compact(journal)
    assert store.objects == before


@pytest.mark.parametrize("fault", [Fault.KILLED_BEFORE, Fault.KILLED_AFTER, Fault.LOST, Fault.DROPPED])
@pytest.mark.parametrize("call", range(1, 40))
def test_killed_compaction_is_finished_by_the_next(fault: Fault, call: int) -> None:
    """Killed at any request: a reader sees the same state, and the next compaction leaves the same objects."""
    expected, _ = compacted(7 * SHORT + 1)
    inner = written(7 * SHORT + 1, segment=SHORT)
    store = FaultyStore(inner)
    journal = open_journal(store, segment=SHORT)
    state = journal.catch_up()
    begun = store.requests.total()
    store.plan = lambda request: fault if request.number == begun + call else Fault.NONE
    try:
        compact(journal)
    except (Killed, StoreUnavailable):
        assert open_journal(inner, segment=SHORT).catch_up() == state
        compact(journal)
    assert (numbers(inner), stubs(inner)) == (numbers(expected), stubs(expected))


def test_compaction_leaves_no_entry_if_the_store_lists_in_another_order() -> None:
    """A stub says that nothing is left before it, so nobody would ever look for what this compaction leaves."""

    class Backwards(MemoryStore):
        def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
            return iter([*super().list(prefix)][::-1])

    expected, _ = compacted(7 * SHORT)
    store = Backwards()
    store.objects = written(7 * SHORT, segment=SHORT).objects
    journal = open_journal(store, segment=SHORT)
    journal.catch_up()
    compact(journal)
    assert numbers(store) == numbers(expected)


def test_compaction_costs_the_same_for_long_histories() -> None:
    """A compaction looks at the newest stub, lists three segments, and deletes the entries of one. Once launches are no longer
    listed, it also lists the heartbeats."""
    costs = []
    for segments in (10, 100, 200):
        store = FaultyStore(written(segments * SHORT, segment=SHORT))
        journal = open_journal(store, segment=SHORT)
        journal.catch_up()
        compact(journal)
        write(journal, SHORT)
        store.requests.clear()
        compact(journal)
        costs.append(dict(store.requests))
    assert costs[0] == {"read": 1, "list": 3, "delete": 3, "overwrite": 1}
    assert costs[1] == costs[2] == {"read": 1, "list": 4, "delete": 4, "overwrite": 1}


# -- who compacts --------------------------------------------------------------------------------------------------------


def test_writer_of_a_boundary_compacts_when_it_deletes_checkpoints() -> None:
    store = MemoryStore()
    coordinator = driver(store)
    while coordinator.state.n < 5 * 64 + 10:
        take(coordinator)
        retire(coordinator)
    assert [n for n in numbers(store) if n < 3 * 64] == [0, 64, 128]
    assert stubs(store) == [0, 64]
    assert open_journal(store).catch_up() == coordinator.state


def test_process_without_a_boundary_does_not_compact() -> None:
    store = FaultyStore(written(3 * 64))
    coordinator = bystander(store)
    store.requests.clear()
    retire(coordinator)
    assert store.requests == {}


def test_only_boundaries_are_marked_as_written() -> None:
    journal = open_journal(MemoryStore(), segment=SHORT)
    wrote = []
    for _ in range(2 * SHORT):
        journal.wrote_boundary = False
        write(journal)
        wrote.append(journal.wrote_boundary)
    assert wrote == [True, False, False, False] * 2


def test_failed_compaction_is_repeated_at_the_next_checkpoint() -> None:
    store = FaultyStore(MemoryStore())
    coordinator = driver(store)
    while coordinator.state.n < 3 * 64:
        take(coordinator)
    store.plan = lambda call: Fault.DROPPED if call.kind == "list" else Fault.NONE
    with pytest.raises(StoreUnavailable):
        retire(coordinator)
    store.plan = served
    retire(coordinator)
    assert 63 not in numbers(store.inner)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_cost_does_not_depend_on_the_number_of_checkpoints() -> None:
    """Compare requests and bytes after 10,000 and 100,000 entries: of a checkpoint, a cold start and the newest boundary; then
    bound the cost of closing the history, opening it again, and reading it."""
    inner = MemoryStore()
    store = FaultyStore(inner)
    coordinator = driver(store, scope="day-1")
    costs, remembered = [], []
    for entries in (10_000, 100_000):
        while coordinator.state.n < entries:
            take(coordinator)
            retire(coordinator)
        costs.append(_cost(inner, store, coordinator))
        remembered.append(_remembered(coordinator.state))
    (requests, cold, size), (later_requests, later_cold, later_size) = costs
    assert later_requests == requests
    assert later_cold <= cold + 2 * math.ceil(math.log2(10))
    assert later_size <= size * 1.1, "numbers are longer, not more"
    assert remembered[0] == remembered[1]
    _close_and_open(inner, store, coordinator)


def _remembered(state: State) -> dict[str, int]:
    names = ("launches", "attempts", "runs", "checkpoints", "file_sets", "tokens", "requests", "counts")
    return {name: len(getattr(state, name)) for name in names}


def _close_and_open(inner: MemoryStore, store: FaultyStore, coordinator: Coordinator) -> None:
    coordinator.journal.append(c.EndAttempt(epoch=1, outcome="finished"))
    task = bystander(store)
    retire(task)
    # Delete file sets at once: this store looks at all its keys for each folder that is listed.
    inner.objects = {key: body for key, body in inner.objects.items() if not key.startswith(f"{KEYS.prefix}/state")}
    store.requests.clear()
    close(task, c.CloseHistory(reason="the run finished", now=at(1)))
    assert store.requests.total() <= 40
    assert all(len(body) <= 400 for body in inner.objects.values()), "only stubs are left"
    assert all("/journal/" in key for key in inner.objects)
    for attempt in (2, 3):
        journal = open_journal(store)
        store.requests.clear()
        journal.append(clear(try_number=attempt, scope="day-1"))
        assert store.requests.total() <= 4 * math.ceil(math.log2(journal.state.n / SEGMENT))
        journal.append(start(try_number=attempt, generation=1, driver=f"driver {attempt}"))
        assert (journal.state.last_epoch, journal.state.next_id) == (attempt, coordinator.state.next_id)
        journal.append(c.EndAttempt(epoch=attempt, outcome="finished"))
        close(Coordinator(journal), c.CloseHistory(reason="the run finished", now=at(1)))


def _cost(inner: MemoryStore, store: FaultyStore, coordinator: Coordinator) -> tuple[dict[str, int], int, int]:
    """Return the requests of a segment of checkpoints, the requests of a reader's start, and the bytes of the newest boundary."""
    begun = coordinator.state.n // SEGMENT
    while coordinator.state.n // SEGMENT == begun:
        take(coordinator)
        retire(coordinator)
    store.requests.clear()
    for _ in range(SEGMENT):
        take(coordinator)
        retire(coordinator)
    requests = dict(store.requests)
    store.requests.clear()
    open_journal(store).catch_up()
    newest = max(n for n in numbers(inner) if n % SEGMENT == 0)
    return requests, store.requests.total() - (coordinator.state.n - newest), len(inner.objects[KEYS.entry(newest)])


def test_heartbeats_of_attempts_and_launches_that_are_not_listed_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A history that is never closed would keep two objects of each launch."""
    monkeypatch.setattr(updates, "KEPT_RECORDS", 2)
    store = MemoryStore()
    for number in range(1, 7):
        driver(store, number)
        for key in (KEYS.attempt_beat(number), KEYS.launch_beat(number), KEYS.driver_beat(number)):
            store.create(key, b"{}")
    journal = open_journal(store)
    journal.catch_up()
    compact(journal)
    left = {KEYS.attempt_beat(n) for n in (5, 6)} | {
        beat(n) for n in (5, 6) for beat in (KEYS.launch_beat, KEYS.driver_beat)
    }
    assert {key for key in store.objects if "/heartbeat/" in key} == left
    write(journal, 1)


def test_short_history_costs_no_listing_of_heartbeats() -> None:
    store = FaultyStore(MemoryStore())
    listed: list[str] = []

    def plan(call: Call) -> Fault:
        if call.kind == "list":
            listed.append(call.key)
        return Fault.NONE

    driver(store, 1)
    store.plan = plan
    journal = open_journal(store)
    journal.catch_up()
    compact(journal)
    assert KEYS.heartbeats not in listed
