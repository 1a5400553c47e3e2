"""A history is closed in two entries, cleared away, and opened again (docs/protocol.md, P2, P7). Runs anywhere."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from airflow_checkpoint_provider.coordinator.closing import close, delete_leftovers, finish
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.garbage import compact
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.errors import (
    CommitStateUnknown,
    Fenced,
    HistoryClosed,
    NotRunning,
    OtherIncarnation,
    Refused,
    StateRequired,
    StillNeeded,
    StoreUnavailable,
)
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import SEGMENT
from airflow_checkpoint_provider.protocol.state import Branch, State
from airflow_checkpoint_provider.storage import LocalStore, MemoryStore
from airflow_checkpoint_provider.storage.base import Store
from tests.support.acknowledgements import driver, take
from tests.support.faults import Fault, FaultyStore, Killed
from tests.support.garbage import expire
from tests.support.histories import JOB, at, clear, launch, start
from tests.support.journals import KEYS, SHORT, numbers, open_journal, raw

WHY = "the run finished"
MONTHS_LATER = at(60 * 24 * 100)
CLOSE = c.CloseHistory(reason=WHY, now=MONTHS_LATER)


def coordinator(store: Store, segment: int = SEGMENT) -> Coordinator:
    found = Coordinator(open_journal(store, segment=segment))
    found.journal.catch_up()
    return found


def over(store: Store, tries: int = 1, segment: int = SEGMENT, replaced: int = 0) -> Journal:
    """Of a run that finished, after so many tries; three entries for each, and nothing is retained. Before them, launches that
    were replaced, an entry each."""
    journal = open_journal(store, segment=segment)
    for number in range(1, replaced + 1):
        journal.append(launch(try_number=number, scope="day-1"))
    for epoch in range(1, tries + 1):
        number = replaced + epoch
        journal.append(launch(try_number=number, scope="day-1"))
        journal.append(start(try_number=number))
        journal.append(c.EndAttempt(epoch=epoch, outcome="finished" if epoch == tries else "failed"))
    return journal


def closed(tries: int = 1, segment: int = SEGMENT) -> MemoryStore:
    store = MemoryStore()
    over(store, tries, segment)
    close(coordinator(store, segment), CLOSE)
    return store


# -- what stays ----------------------------------------------------------------------------------------------------------


def test_a_small_journal() -> None:
    """Ten entries, *closing*, and *closed* at the next boundary; then two stubs."""
    store = MemoryStore()
    assert over(store, tries=3).state.n == 8
    assert numbers(store) == [*range(9)]
    one = coordinator(store)
    one.journal.append(CLOSE)
    assert [event["kind"] for event in raw(store, 9)["events"]] == ["history_closing"]
    one.journal.append(c.FinishClosing())
    assert numbers(store) == [*range(10), 64]
    assert [event["kind"] for event in raw(store, 64)["events"]] == ["history_closed"]
    finish(one)
    assert sorted(store.objects) == [KEYS.entry(0), KEYS.entry(64)]
    assert raw(store, 0) == {
        "v": 1, "inc": "1ncarnation", "n": 0, "stub": True, "job": JOB, "scope": "day-1", "item": None,
    }  # fmt: skip
    assert raw(store, 64) == {
        "v": 1, "inc": "1ncarnation", "n": 64, "stub": True,
        "closed": {
            "n": 64, "at": at(1), "incarnation": "1ncarnation", "job": JOB, "scope": "day-1", "next_launch": 4, "last_epoch": 3,
            "closing_reason": WHY, "closed": True,
        },
    }  # fmt: skip


def test_its_state_is_names_and_counters() -> None:
    store = closed(tries=3)
    assert open_journal(store).catch_up() == State(
        n=64,
        at=at(1),
        incarnation="1ncarnation",
        job=JOB,
        scope="day-1",
        next_launch=4,
        last_epoch=3,
        closing_reason=WHY,
        closed=True,
    )


def test_checkpoints_and_their_files_go_and_their_ids_are_not_used_again() -> None:
    store = MemoryStore()
    one = driver(store, scope="day-1")
    take(one), take(one)
    one.journal.append(c.EndAttempt(epoch=1, outcome="finished"))
    store.create(KEYS.attempt_beat(1), b"{}")
    store.create(KEYS.launch_beat(1), b"{}")
    store.create(KEYS.driver_beat(1), b"{}")
    task = coordinator(store)
    expire(task, MONTHS_LATER)
    store.create(f"{KEYS.file_set('state/s9/1-lost')}/part-0", b"rows that nobody acknowledged")
    close(task, CLOSE)
    assert sorted(store.objects) == [KEYS.entry(0), KEYS.entry(64)]
    assert (task.state.next_id, task.state.next_file_set) == (3, 3)


@pytest.mark.parametrize("tries", [1, 2, 3, 5, 12])
def test_where_it_ends_a_boundary_follows(tries: int) -> None:
    """Short segments; *closing* falls on every place of one."""
    for replaced in range(SHORT):
        store = MemoryStore()
        closing = over(store, tries, SHORT, replaced).state.n + 1
        close(coordinator(store, SHORT), CLOSE)
        boundary = (closing // SHORT + 1) * SHORT
        assert numbers(store) == [*range(0, boundary + 1, SHORT)]
        assert all(raw(store, n)["stub"] for n in numbers(store))


def test_nothing_is_left_of_killed_writers_in_a_directory(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    over(store, 2)
    heartbeats = tmp_path / KEYS.heartbeats
    store.create(KEYS.attempt_beat(1), b"{}")
    left = [folder / ".tmp-host-1-a" for folder in (tmp_path / KEYS.journal, heartbeats)]
    for path in left:
        path.write_bytes(b"")
        os.utime(path, (0, 0))
    close(coordinator(store), CLOSE)
    assert not [path for path in left if path.exists()]


# -- when it is refused --------------------------------------------------------------------------------------------------


def needed(store: Store, now: str = MONTHS_LATER) -> str:
    before = numbers(store)  # type: ignore[arg-type]
    with pytest.raises(StillNeeded) as caught:
        close(coordinator(store), c.CloseHistory(reason=WHY, now=now))
    assert numbers(store) == before  # type: ignore[arg-type]
    return caught.value.message


def test_where_there_is_none() -> None:
    assert "no history" in needed(MemoryStore())


def test_while_an_attempt_is_not_over() -> None:
    store = MemoryStore()
    driver(store)
    assert "attempt 1 is not over" in needed(store)


def test_while_a_launch_waits_for_its_driver_but_not_for_ever() -> None:
    store = MemoryStore()
    open_journal(store).append(launch())
    assert "launch 1 waits" in needed(store, at(60 * 23))
    close(coordinator(store), CLOSE)


def test_while_something_is_pending_retained_or_condemned() -> None:
    store = MemoryStore()
    one = driver(store, scope="day-1")
    take(one)
    one.trigger(Request(token="pending"))
    one.journal.append(launch(try_number=2, scope="day-1"))
    one.journal.append(start(try_number=2))
    one.journal.append(c.EndAttempt(epoch=2, outcome="finished"))
    assert "chk-1 is retained" in needed(store)
    coordinator(store).journal.append(c.Condemn(ids=(1,), now=MONTHS_LATER))
    assert "chk-1 is condemned" in needed(store)
    coordinator(store).journal.append(c.Forget(ids=(1,)))
    close(coordinator(store), CLOSE)


# -- afterwards ----------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[c.Command, type[Refused]]] = {
    "a driver's start": (start(), Fenced),
    "a driver's end": (c.EndAttempt(epoch=1, outcome="failed"), Fenced),
    "a driver's trigger": (c.Trigger(request=Request(token="r"), epoch=1), Fenced),
    "a task's trigger": (c.Trigger(request=Request(token="r")), NotRunning),
    "an abort": (c.Abort(id=1, reason="expired"), HistoryClosed),
    "a restore": (
        c.Restore(token=launch().spec.token, base=None, by="me", reason="restore"), HistoryClosed,
    ),
    "a stop": (c.RequestStop(launch=1, try_number=9, by="me", reason="killed"), HistoryClosed),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("finishes", [False, True], ids=["closing", "closed"])
def test_a_command_is_refused(name: str, finishes: bool) -> None:
    command, error = REFUSED[name]
    store = MemoryStore()
    over(store)
    one = coordinator(store)
    one.journal.append(CLOSE)
    if finishes:
        finish(one)
    before = dict(store.objects)
    with pytest.raises(error):
        open_journal(store).append(command)
    assert store.objects == before


def test_closed_twice_is_closed_once() -> None:
    store = closed()
    before = dict(store.objects)
    close(coordinator(store), c.CloseHistory(reason="again", now=MONTHS_LATER))
    assert store.objects == before


def test_two_who_close_it() -> None:
    """The second believed *closing* before the first finished; and slept until all was away."""
    store = MemoryStore()
    over(store)
    first, second = coordinator(store), coordinator(store)
    first.journal.append(CLOSE)
    second.journal.append(c.CloseHistory(reason="another's", now=MONTHS_LATER))
    finish(first)
    before = dict(store.objects)
    finish(second)
    assert store.objects == before
    assert second.state == first.state


@pytest.mark.parametrize("replaced", range(2 * SHORT))
def test_the_win_of_who_slept_through_it_is_void(replaced: int) -> None:
    """It wins a number that was cleared away, sees the boundary, and decides again: a launch opens the history."""
    store = MemoryStore()
    before = over(store, 1, SHORT, replaced).state.n
    sleeper = open_journal(store, segment=SHORT)
    sleeper.catch_up()
    close(coordinator(store, SHORT), CLOSE)
    boundary = max(numbers(store))
    sleeper.append(clear(try_number=replaced + 2, scope="day-1"))
    assert before + 1 in numbers(store), "its put was answered with success, or a boundary stood there"
    assert sleeper.state.n == boundary + 1
    assert open_journal(store, segment=SHORT).catch_up() == sleeper.state


# -- who dies half-way ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.KILLED_BEFORE, Fault.KILLED_AFTER, Fault.LOST, Fault.DROPPED])
@pytest.mark.parametrize("call", range(1, 40))
def test_it_is_finished_by_another(fault: Fault, call: int) -> None:
    """At any request, anyone goes on, or opens it again and finds nothing wrong."""
    inner = MemoryStore()
    over(inner, 5, SHORT)
    store = FaultyStore(inner)
    one = coordinator(store, SHORT)
    one.journal.patience = 0.0
    begun = store.requests.total()
    store.plan = lambda asked: fault if asked.number == begun + call else Fault.NONE
    with contextlib.suppress(Killed, StoreUnavailable, CommitStateUnknown):
        close(one, CLOSE)
    opened = MemoryStore()
    opened.objects = dict(inner.objects)
    close(coordinator(inner, SHORT), CLOSE)
    assert sorted(inner.objects) == [KEYS.entry(n) for n in (0, 4, 8, 12, 16, 20) if KEYS.entry(n) in inner.objects]
    assert open_journal(inner, segment=SHORT).catch_up().closed
    again = open_journal(opened, segment=SHORT)
    again.append(clear(try_number=6, scope="day-1"))
    assert (again.state.current_launch(), again.state.closing_reason) == (again.state.launch(6), None)


# -- opened again --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finished", [True, False])
def test_a_clear_opens_it_and_counts_on(finished: bool) -> None:
    """Forty days later: a new run to it. One that finds it closing finishes that first."""
    store = MemoryStore()
    one = driver(store, scope="day-1")
    take(one), take(one)
    one.journal.append(c.EndAttempt(epoch=1, outcome="finished"))
    task = coordinator(store)
    expire(task, MONTHS_LATER)
    task.journal.append(CLOSE)
    if finished:
        finish(task)
    journal = open_journal(store)
    answer = journal.append(clear(scope="day-1", incarnation="another"))
    assert answer.n == 65
    kinds = [event["kind"] for event in raw(store, 65)["events"]]
    assert kinds == ["history_opened", "launch_planned"]
    state = journal.state
    assert (state.incarnation, state.closing_reason, state.closed) == ("1ncarnation", None, False)
    assert [(one.key, one.outcome) for one in state.runs] == [("day-1", None)]
    assert state.launches[-1].number == 2
    assert state.restore_point() is None
    journal.append(start(try_number=2, generation=1, driver="another"))
    assert journal.state.last_epoch == 2
    assert Coordinator(journal, 2).trigger(Request(token="its first")) == 3
    assert open_journal(store).catch_up() == journal.state


def _begin(task: Coordinator, why: str, now: str) -> None:
    task.journal.append(c.CloseHistory(reason=why, now=now))


def test_branches_count_on() -> None:
    store = MemoryStore()
    journal = over(store)
    journal.append(clear(scope="day-1", on_clear="restart"))
    journal.append(start(try_number=2, generation=1, driver="another"))
    journal.append(c.EndAttempt(epoch=2, outcome="finished"))
    close(coordinator(store), CLOSE)
    assert open_journal(store).catch_up().branch == Branch(number=1)


def test_a_script_opens_it_too() -> None:
    store = MemoryStore()
    over(store)
    coordinator(store).journal.append(CLOSE)
    plan = clear(scope="day-1", alone=True)
    journal = open_journal(store)
    journal.append(c.StartAlone(plan=plan, start=start(try_number=2, generation=1, driver="alone")))
    assert journal.state.last_epoch == 2


def test_state_that_is_required_is_not_there() -> None:
    store = closed()
    with pytest.raises(StateRequired):
        open_journal(store).append(clear(scope="day-1", require_state=True))
    assert numbers(store) == [0, 64]


def test_who_slept_while_it_was_opened_again_deletes_nothing_of_the_new() -> None:
    """It believes *closed*, and goes on clearing away when the next attempt has written rows and taken a checkpoint."""
    store = MemoryStore()
    over(store)
    sleeper = coordinator(store)
    sleeper.journal.append(CLOSE)
    sleeper.journal.append(c.FinishClosing())
    late = Coordinator(open_journal(store))
    late.journal.append(clear(scope="day-1"))
    late.journal.append(start(try_number=2, generation=1, driver="another"))
    late.epoch = 2
    take(late)
    store.create(KEYS.attempt_beat(2), b"{}")
    store.create(KEYS.launch_beat(2), b"{}")
    kept = {key for key in store.objects if "/journal/" not in key}
    delete_leftovers(sleeper)
    assert {key for key in store.objects if "/journal/" not in key} == kept
    assert open_journal(store).catch_up() == late.state
    finish(sleeper)
    assert open_journal(store).catch_up() == late.state, "and what it asks again is answered"


def test_closed_and_opened_over_and_over() -> None:
    """Numbers rise through all of it; a new reader finds its way in a logarithm of the segments."""
    store = MemoryStore()
    for round_ in range(40):
        journal = open_journal(store)
        journal.append(clear(try_number=round_ + 1, scope="day-1"))
        journal.append(start(try_number=round_ + 1, generation=1, driver=f"driver {round_}"))
        journal.append(c.EndAttempt(epoch=round_ + 1, outcome="finished"))
        close(coordinator(store), CLOSE)
    assert numbers(store) == [n * 64 for n in range(41)]
    counting = FaultyStore(store)
    assert open_journal(counting).catch_up().last_epoch == 40
    assert counting.requests["read"] <= 16


def test_it_is_pruned_behind_as_any_other() -> None:
    store = closed(5, SHORT)
    journal = open_journal(store, segment=SHORT)
    journal.append(clear(try_number=6, scope="day-1"))
    for _ in range(7 * SHORT):
        journal.append(lambda state: clear(try_number=state.next_launch, scope="day-1"))
    compact(journal)
    assert open_journal(store, segment=SHORT).catch_up() == journal.state
    assert [n for n in numbers(store) if n % SHORT and n < journal.state.n - 3 * SHORT] == []


def test_one_that_was_deleted_by_hand_is_another() -> None:
    store = closed()
    reader = open_journal(store)
    reader.catch_up()
    store.objects.clear()
    open_journal(store).append(launch(incarnation="another"))
    with pytest.raises(OtherIncarnation):
        reader.entry(0)


def test_what_it_costs() -> None:
    """Two entries; four listings: of the journal, the heartbeats, and what is left of checkpoints and of file sets; two stubs."""
    inner = MemoryStore()
    over(inner, 3)
    store = FaultyStore(inner)
    one = coordinator(store)
    store.requests.clear()
    close(one, CLOSE)
    assert dict(store.requests) == {"create": 2, "read": 5, "list": 4, "delete": 2, "overwrite": 2}


def test_heartbeats_of_all_its_launches_go() -> None:
    """Launches are counted apart from attempts: more of them may have been than ever began."""
    store = MemoryStore()
    over(store, tries=2, replaced=3)
    beats = [KEYS.launch_beat(5), KEYS.driver_beat(5), KEYS.attempt_beat(2)]
    not_its_own = [KEYS.launch_beat(6), KEYS.attempt_beat(3)]
    for key in (*beats, *not_its_own):
        store.create(key, b"{}")
    close(coordinator(store), CLOSE)
    assert sorted(key for key in store.objects if "/heartbeat/" in key) == sorted(not_its_own)
