"""A history is closed in two entries, its objects are deleted, and it is opened again (docs/inside/properties.md, P2, P7). Runs anywhere."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from airflow_checkpoint_provider.coordinator.closing import close, delete_leftovers, finish
from airflow_checkpoint_provider.coordinator.compaction import compact
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.errors import (
    CommitStateUnknown,
    Damaged,
    Fenced,
    HistoryIsClosed,
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
from airflow_checkpoint_provider.protocol.launch_records import Branch
from airflow_checkpoint_provider.protocol.state import Closing, State
from airflow_checkpoint_provider.storage import LocalStore, MemoryStore
from airflow_checkpoint_provider.storage.base import Store
from tests.support.acknowledgements import driver, take
from tests.support.faults import Fault, FaultyStore, Killed
from tests.support.garbage import retire
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
    """Write a run that finishes after ``tries`` tries, three entries each, with nothing retained, after ``replaced`` launches
    that were replaced, one entry each."""
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


# -- what is left --------------------------------------------------------------------------------------------------------


def test_closing_leaves_two_stubs() -> None:
    """Ten entries, *closing*, and *closed* at the next boundary; then two stubs."""
    store = MemoryStore()
    assert over(store, tries=3).state.n == 8
    assert numbers(store) == [*range(9)]
    closer = coordinator(store)
    closer.journal.append(CLOSE)
    assert [event["kind"] for event in raw(store, 9)["events"]] == ["history_closing"]
    closer.journal.append(c.FinishClosing())
    assert numbers(store) == [*range(10), 64]
    assert [event["kind"] for event in raw(store, 64)["events"]] == ["history_closed"]
    finish(closer)
    assert sorted(store.objects) == [KEYS.entry(0), KEYS.entry(64)]
    assert raw(store, 0) == {
        "v": 1, "inc": "1ncarnation", "n": 0, "stub": True, "job": JOB, "scope": "day-1", "item": None,
    }  # fmt: skip
    assert raw(store, 64) == {
        "v": 1, "inc": "1ncarnation", "n": 64, "stub": True,
        "closed": {
            "n": 64, "at": at(1), "incarnation": "1ncarnation", "job": JOB, "scope": "day-1", "next_launch": 4, "last_epoch": 3,
            "closing": {"reason": WHY, "done": True},
        },
    }  # fmt: skip


def test_state_of_a_closed_history_is_names_and_counters() -> None:
    store = closed(tries=3)
    assert open_journal(store).catch_up() == State(
        n=64,
        at=at(1),
        incarnation="1ncarnation",
        job=JOB,
        scope="day-1",
        next_launch=4,
        last_epoch=3,
        closing=Closing(reason=WHY, done=True),
    )


def test_closing_deletes_all_files_and_keeps_the_id_counters() -> None:
    store = MemoryStore()
    closer = driver(store, scope="day-1")
    take(closer), take(closer)
    closer.journal.append(c.EndAttempt(epoch=1, outcome="finished"))
    store.create(KEYS.attempt_beat(1), b"{}")
    store.create(KEYS.launch_beat(1), b"{}")
    store.create(KEYS.driver_beat(1), b"{}")
    task = coordinator(store)
    retire(task, MONTHS_LATER)
    store.create(f"{KEYS.file_set('state/s9/1-lost')}/part-0", b"rows that nobody acknowledged")
    close(task, CLOSE)
    assert sorted(store.objects) == [KEYS.entry(0), KEYS.entry(64)]
    assert (task.state.next_id, task.state.next_file_set) == (3, 3)


@pytest.mark.parametrize("tries", [1, 2, 3, 5, 12])
def test_closed_entry_is_the_next_boundary(tries: int) -> None:
    """Short segments; *closing* falls on every place of one."""
    for replaced in range(SHORT):
        store = MemoryStore()
        closing = over(store, tries, SHORT, replaced).state.n + 1
        close(coordinator(store, SHORT), CLOSE)
        boundary = (closing // SHORT + 1) * SHORT
        assert numbers(store) == [*range(0, boundary + 1, SHORT)]
        assert all(raw(store, n)["stub"] for n in numbers(store))


def test_closing_deletes_temporary_files_of_killed_writers(tmp_path: Path) -> None:
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


def test_close_without_a_history_is_refused() -> None:
    assert "no history" in needed(MemoryStore())


def test_close_is_refused_while_an_attempt_runs() -> None:
    store = MemoryStore()
    driver(store)
    assert "attempt 1 is not over" in needed(store)


def test_close_is_refused_for_a_day_while_a_launch_waits() -> None:
    store = MemoryStore()
    open_journal(store).append(launch())
    assert "launch 1 waits" in needed(store, at(60 * 23))
    close(coordinator(store), CLOSE)


def test_close_is_refused_while_a_checkpoint_is_left() -> None:
    store = MemoryStore()
    closer = driver(store, scope="day-1")
    take(closer)
    closer.trigger(Request(token="pending"))
    closer.journal.append(launch(try_number=2, scope="day-1"))
    closer.journal.append(start(try_number=2))
    closer.journal.append(c.EndAttempt(epoch=2, outcome="finished"))
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
    "an abort": (c.Abort(id=1, reason="expired"), HistoryIsClosed),
    "a restore": (
        c.Restore(token=launch().spec.token, base=None, by="me", reason="restore"), HistoryIsClosed,
    ),
    "a stop": (c.RequestStop(launch=1, try_number=9, by="me", reason="killed"), HistoryIsClosed),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("finishes", [False, True], ids=["closing", "closed"])
def test_command_on_a_closing_or_closed_history_is_refused(name: str, finishes: bool) -> None:
    command, error = REFUSED[name]
    store = MemoryStore()
    over(store)
    closer = coordinator(store)
    closer.journal.append(CLOSE)
    if finishes:
        finish(closer)
    before = dict(store.objects)
    with pytest.raises(error):
        open_journal(store).append(command)
    assert store.objects == before


def test_second_close_changes_nothing() -> None:
    store = closed()
    before = dict(store.objects)
    close(coordinator(store), c.CloseHistory(reason="again", now=MONTHS_LATER))
    assert store.objects == before


def test_two_closers_leave_the_same_objects() -> None:
    """The second closer read *closing* before the first finished, and slept until all objects were deleted."""
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
def test_write_of_a_sleeping_launcher_opens_the_closed_history(replaced: int) -> None:
    """The launcher writes a number that was deleted, reads the boundary, and decides again: its launch opens the history."""
    store = MemoryStore()
    before = over(store, 1, SHORT, replaced).state.n
    sleeper = open_journal(store, segment=SHORT)
    sleeper.catch_up()
    close(coordinator(store, SHORT), CLOSE)
    boundary = max(numbers(store))
    sleeper.append(clear(try_number=replaced + 2, scope="day-1"))
    assert before + 1 in numbers(store), "the store accepted the put, or held a boundary there"
    assert sleeper.state.n == boundary + 1
    assert open_journal(store, segment=SHORT).catch_up() == sleeper.state


# -- killed closers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.KILLED_BEFORE, Fault.KILLED_AFTER, Fault.LOST, Fault.DROPPED])
@pytest.mark.parametrize("call", range(1, 40))
def test_killed_closing_is_finished_or_opened_by_another_process(fault: Fault, call: int) -> None:
    """After a kill at any request, another process finishes the closing or opens the history."""
    inner = MemoryStore()
    over(inner, 5, SHORT)
    store = FaultyStore(inner)
    closer = coordinator(store, SHORT)
    closer.journal.patience = 0.0
    begun = store.requests.total()
    store.plan = lambda asked: fault if asked.number == begun + call else Fault.NONE
    with contextlib.suppress(Killed, StoreUnavailable, CommitStateUnknown):
        close(closer, CLOSE)
    opened = MemoryStore()
    opened.objects = dict(inner.objects)
    close(coordinator(inner, SHORT), CLOSE)
    assert sorted(inner.objects) == [KEYS.entry(n) for n in (0, 4, 8, 12, 16, 20) if KEYS.entry(n) in inner.objects]
    assert open_journal(inner, segment=SHORT).catch_up().closed
    again = open_journal(opened, segment=SHORT)
    again.append(clear(try_number=6, scope="day-1"))
    assert (again.state.current_launch(), again.state.closing) == (again.state.launch(6), None)


# -- opened again --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finished", [True, False])
def test_cleared_task_opens_the_history_and_counters_go_on(finished: bool) -> None:
    """The clear, forty days later, is a new run of the history. It finishes a closing first."""
    store = MemoryStore()
    driver_ = driver(store, scope="day-1")
    take(driver_), take(driver_)
    driver_.journal.append(c.EndAttempt(epoch=1, outcome="finished"))
    task = coordinator(store)
    retire(task, MONTHS_LATER)
    task.journal.append(CLOSE)
    if finished:
        finish(task)
    journal = open_journal(store)
    answer = journal.append(clear(scope="day-1", incarnation="another"))
    assert answer.n == 65
    kinds = [event["kind"] for event in raw(store, 65)["events"]]
    assert kinds == ["history_opened", "launch_planned"]
    state = journal.state
    assert (state.incarnation, state.closing, state.closed) == ("1ncarnation", None, False)
    assert [(driver_.key, driver_.outcome) for driver_ in state.runs] == [("day-1", None)]
    assert state.launches[-1].number == 2
    assert state.restore_point() is None
    journal.append(start(try_number=2, generation=1, driver="another"))
    assert journal.state.last_epoch == 2
    assert Coordinator(journal, 2).trigger(Request(token="its first")) == 3
    assert open_journal(store).catch_up() == journal.state


@pytest.mark.parametrize("cleaned", [True, False])
@pytest.mark.parametrize("lost", [1, 2])
def test_missing_entry_behind_the_end_of_a_closed_history_is_named(lost: int, cleaned: bool) -> None:
    """Otherwise a launch would write there, and what follows would come back into sight."""
    store = MemoryStore()
    over(store, segment=SHORT)
    closer = coordinator(store, SHORT)
    closer.journal.append(CLOSE)
    closer.journal.append(c.FinishClosing())
    end = closer.state.n
    if cleaned:
        delete_leftovers(closer)
    again = open_journal(store, segment=SHORT)
    for try_number in (2, 3, 4):
        again.append(clear(try_number=try_number, scope="day-1"))
    assert numbers(store)[-3:] == [end + 1, end + 2, end + 3]
    del store.objects[KEYS.entry(end + lost)]
    before = dict(store.objects)
    with pytest.raises(
        Damaged, match=f"{KEYS.entry(end + lost)} is missing, and {KEYS.entry(end + lost + 1)} is there"
    ):
        open_journal(store, segment=SHORT).append(clear(try_number=5, scope="day-1"))
    assert store.objects == before


def _begin(task: Coordinator, why: str, now: str) -> None:
    task.journal.append(c.CloseHistory(reason=why, now=now))


def test_branch_numbers_go_on_after_closing() -> None:
    store = MemoryStore()
    journal = over(store)
    journal.append(clear(scope="day-1", on_clear="restart"))
    journal.append(start(try_number=2, generation=1, driver="another"))
    journal.append(c.EndAttempt(epoch=2, outcome="finished"))
    close(coordinator(store), CLOSE)
    assert open_journal(store).catch_up().branch == Branch(number=1)


def test_script_opens_a_closing_history() -> None:
    store = MemoryStore()
    over(store)
    coordinator(store).journal.append(CLOSE)
    plan = clear(scope="day-1", alone=True)
    journal = open_journal(store)
    journal.append(c.StartAlone(plan=plan, start=start(try_number=2, generation=1, driver="alone")))
    assert journal.state.last_epoch == 2


def test_closed_history_has_no_required_state() -> None:
    store = closed()
    with pytest.raises(StateRequired):
        open_journal(store).append(clear(scope="day-1", require_state=True))
    assert numbers(store) == [0, 64]


def test_sleeping_closer_deletes_nothing_of_the_opened_history() -> None:
    """The closer wrote *closed* and deletes only after the next attempt has written rows and a checkpoint."""
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
    assert open_journal(store).catch_up() == late.state, "a repeated finish changes nothing"


def test_history_closed_forty_times_is_read_in_a_few_requests() -> None:
    """Numbers go on; a new reader needs requests in the order of the logarithm of the segments."""
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


def test_opened_history_is_compacted() -> None:
    store = closed(5, SHORT)
    journal = open_journal(store, segment=SHORT)
    journal.append(clear(try_number=6, scope="day-1"))
    for _ in range(7 * SHORT):
        journal.append(lambda state: clear(try_number=state.next_launch, scope="day-1"))
    compact(journal)
    assert open_journal(store, segment=SHORT).catch_up() == journal.state
    assert [n for n in numbers(store) if n % SHORT and n < journal.state.n - 3 * SHORT] == []


def test_history_begun_again_after_deletion_by_hand_is_another_incarnation() -> None:
    store = closed()
    reader = open_journal(store)
    reader.catch_up()
    store.objects.clear()
    open_journal(store).append(launch(incarnation="another"))
    with pytest.raises(OtherIncarnation):
        reader.entry(0)


def test_closing_costs_a_known_number_of_requests() -> None:
    """Two entries, two stubs, and three listings: journal, heartbeats, and what else there is."""
    inner = MemoryStore()
    over(inner, 3)
    store = FaultyStore(inner)
    closer = coordinator(store)
    store.requests.clear()
    close(closer, CLOSE)
    assert dict(store.requests) == {"create": 2, "read": 5, "list": 3, "delete": 2, "overwrite": 2}


def test_closing_deletes_heartbeats_of_all_launches() -> None:
    """Launches have their own numbers: there may be more of them than attempts."""
    store = MemoryStore()
    over(store, tries=2, replaced=3)
    beats = [KEYS.launch_beat(5), KEYS.driver_beat(5), KEYS.attempt_beat(2)]
    others = [KEYS.launch_beat(6), KEYS.attempt_beat(3)]
    for key in (*beats, *others):
        store.create(key, b"{}")
    close(coordinator(store), CLOSE)
    assert sorted(key for key in store.objects if "/heartbeat/" in key) == sorted(others)
