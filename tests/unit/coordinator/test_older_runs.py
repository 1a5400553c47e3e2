"""A run collects the garbage of older runs and closes their histories when they are due, and nothing else. Runs anywhere."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from dataclasses import replace
from datetime import timedelta
from typing import Any, NoReturn

import pytest

from airflow_checkpoint_provider.coordinator import closing
from airflow_checkpoint_provider.coordinator.closing import close
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.coordinator.liveness import Beat, Process
from airflow_checkpoint_provider.coordinator.older_runs import OlderRun, collect_older_runs
from airflow_checkpoint_provider.coordinator.savepoint import target_of
from airflow_checkpoint_provider.coordinator.savepoint_target import open_savepoint
from airflow_checkpoint_provider.errors import Damaged, StoreDenied, StoreUnavailable
from airflow_checkpoint_provider.policies.retention import KeepAll, KeepLatest, KeepWithin
from airflow_checkpoint_provider.protocol.events import QueryLocated, Request
from airflow_checkpoint_provider.protocol.keys import file_set_path
from airflow_checkpoint_provider.protocol.metadata import Acknowledgement
from airflow_checkpoint_provider.protocol.records import CHECKSUM, canonical, checked
from airflow_checkpoint_provider.storage import MemoryStore
from airflow_checkpoint_provider.text.launch_messages import older_runs
from tests.support.beats import CLOCKS_OFF, beating, put_beat
from tests.support.faults import Fault, FaultyStore, virtual_time
from tests.support.garbage import retire
from tests.support.recorded import Recorded
from tests.support.saved import memory
from tests.unit.coordinator.runs_to_collect import BY, JOB, OWN, RUN, day, ran, runs, state_of, sweep

pytestmark = pytest.mark.usefixtures("fast_beats")


CASES: dict[str, tuple[dict[str, Any], list[int], list[int]]] = {
    # what ran -> days on which nothing is done; days on which it is swept and closed
    "failed for good": ({}, [0, 1, 6], [8, 30]),
    "failed, kept for longer": ({"retention": KeepLatest(2) | KeepWithin(days=14)}, [8, 13], [15]),
    "failed, kept for less": ({"retention": KeepWithin(days=3)}, [2], [4]),
    "failed, kept for hours: a day at the least": ({"retention": KeepWithin(hours=1)}, [0], [2]),
    "failed, kept for ever": ({"retention": KeepAll()}, [8, 35], []),
    "failed before its first checkpoint": ({"checkpoints": 0}, [6], [8]),
    "cancelled": ({"outcome": "cancelled"}, [6], [8]),
    "finished": ({"outcome": "finished", "checkpoints": 0}, [1, 8, 29], [32]),
    "finished, its state kept for longer": ({"outcome": "finished", "retention": KeepWithin(days=35)}, [32], [36]),
}  # fmt: skip


@pytest.mark.parametrize(("name", "number"), [(name, number) for name, case in CASES.items() for number in case[1]])
def test_older_run_is_left_alone_before_it_is_due(name: str, number: int) -> None:
    store = MemoryStore()
    ran(store, **CASES[name][0])
    before = dict(store.objects)
    assert sweep(store, day(number)) == []
    assert store.objects == before


@pytest.mark.parametrize(("name", "number"), [(name, number) for name, case in CASES.items() for number in case[2]])
def test_older_run_is_deleted_and_closed_when_due(name: str, number: int) -> None:
    store = MemoryStore()
    keys = ran(store, **CASES[name][0]).keys
    (older,) = sweep(store, day(number))
    assert (older.run, older.closed) == (RUN, True)
    assert sorted(store.objects) == [keys.entry(0), keys.entry(64)]
    assert sweep(store, day(number)) == []
    assert state_of(store).closed


def test_state_of_a_finished_run_is_deleted_after_a_day() -> None:
    store = MemoryStore()
    ran(store, outcome="finished")
    assert sweep(store, day(0)) == []
    assert sweep(store, day(2)) == [OlderRun(RUN, deleted=(1,))]
    assert sweep(store, day(32)) == [OlderRun(RUN, closed=True)]


def test_leftovers_of_killed_writers_are_deleted() -> None:
    store = MemoryStore()
    keys = ran(store).keys
    store.create(f"{keys.file_set(file_set_path('lost', 1, 'n'))}/part-0", b"rows")
    assert sweep(store, day(8)) == [OlderRun(RUN, deleted=(1,), leftovers=1, closed=True)]


def half_saved(recorded: Recorded, target: MemoryStore) -> None:
    """End the run while its driver copies a savepoint."""
    number = recorded.coordinator.trigger(Request(token="one", kind="savepoint", origin="task", folder=target.uri))
    aborted = recorded.state.checkpoint(number)
    assert aborted
    target.create(f"{target_of(aborted).keys.file_set(file_set_path('s0', 1, 'n'))}/part-0", b"rows")
    recorded.ended("23:00:00", "failed", 1)


def test_files_of_an_aborted_savepoint_are_deleted() -> None:
    store, target = MemoryStore(), memory()
    half_saved(ran(store, outcome=None), target)
    assert target.objects
    assert sweep(store, day(8)) == [OlderRun(RUN, deleted=(1,), closed=True)]
    assert target.objects == {}


def test_history_is_not_closed_before_files_of_a_savepoint_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    store, target = MemoryStore(), memory()
    half_saved(ran(store, outcome=None), target)
    with monkeypatch.context() as denied:
        denied.setattr(target, "delete_under", _deny)
        (older,) = sweep(store, day(8))
    assert isinstance(older.error, StoreDenied)
    assert not state_of(store).retained
    assert sweep(store, day(8)) == [OlderRun(RUN, closed=True)]
    assert target.objects == {}


def _deny(prefix: str) -> NoReturn:
    raise StoreDenied(f"{prefix}: denied; allow it")


def test_restore_point_of_a_launch_without_driver_is_deleted() -> None:
    """Its rows are deleted with it: without the seal they could not be read."""
    store = MemoryStore()
    ran(store).launched("23:30:00", try_number=2)
    assert state_of(store).restoring() == {1}
    assert sweep(store, day(8)) == [OlderRun(RUN, deleted=(1,), closed=True)]


def test_unpublished_savepoint_is_published_before_its_history_is_closed() -> None:
    store = MemoryStore()
    recorded = ran(store, outcome=None)
    coordinator = recorded.coordinator
    number = coordinator.trigger(Request(token="a person", kind="savepoint", folder=memory().uri, origin="task"))
    inc = recorded.state.incarnation
    coordinator.acknowledge(Acknowledgement(inc=inc, id=number, application="", epoch=1, nonce="n", run=RUN, states=()))
    coordinator.complete(number)
    (savepoint,) = recorded.state.savepoints
    recorded.ended("23:00:00", "failed", 1)
    assert sweep(store, day(8)) == [OlderRun(RUN, deleted=(1,), closed=True)]
    assert open_savepoint(target_of(savepoint), store).seal.id == number


# -- drivers that may be alive---------------------------------------------------------------------------------------------


@CLOCKS_OFF
def test_beating_driver_is_left_alone(off: timedelta) -> None:
    store = MemoryStore()
    with beating(store, ran(store, outcome=None).keys.attempt_beat(1), off):
        assert sweep(store, day(40)) == []
    assert not any(attempt.outcome for attempt in state_of(store).attempts)


def test_driver_is_not_declared_lost_before_the_timeout() -> None:
    """The collecting driver ended before the timeout; the next run looks again."""
    store = MemoryStore()
    put_beat(store, ran(store, outcome=None).keys.attempt_beat(1))
    assert [*collect_older_runs(store, JOB, BY, own=OWN, now=day(40), pause=lambda seconds: None)] == [
        OlderRun(RUN, undecided=True), OlderRun(RUN, undecided=True),
    ]  # fmt: skip
    assert not any(attempt.outcome for attempt in state_of(store).attempts)


def test_driver_whose_process_ended_on_this_host_is_lost_at_once() -> None:
    store = MemoryStore()
    recorded = ran(store, outcome=None)
    gone = Beat(epoch=1, counter=1, process=replace(Process.this(), start_ticks="another one's"))
    store.overwrite(recorded.keys.attempt_beat(1), canonical(gone.to_json()))
    assert [*collect_older_runs(store, JOB, BY, own=OWN, now=day(8), pause=lambda seconds: None)] == [OlderRun(RUN)]
    assert state_of(store).attempts[0].outcome == "lost"


@pytest.mark.parametrize("beaten", [True, False])
def test_silent_driver_is_declared_lost_and_its_state_is_kept(beaten: bool) -> None:
    store = MemoryStore()
    recorded = ran(store, outcome=None)
    if beaten:
        put_beat(store, recorded.keys.attempt_beat(1))
    assert sweep(store, day(8)) == []
    (attempt,) = state_of(store).attempts
    assert attempt.ending
    assert (attempt.outcome, attempt.ending.reported_by) == ("lost", "a later run")
    assert len(state_of(store).retained) == 1


def test_acknowledged_savepoint_of_a_silent_driver_is_completed() -> None:
    store = MemoryStore()
    recorded = ran(store, outcome=None)
    coordinator, inc = recorded.coordinator, recorded.state.incarnation
    number = coordinator.trigger(Request(token="a person", kind="savepoint", folder=memory().uri, origin="task"))
    coordinator.acknowledge(Acknowledgement(inc=inc, id=number, application="", epoch=1, nonce="n", run=RUN, states=()))
    assert sweep(store, day(8)) == []
    assert [savepoint.id for savepoint in state_of(store).savepoints] == [number]


def test_suspended_run_is_left_alone() -> None:
    store = MemoryStore()
    ran(store).suspended("23:30:00")
    assert sweep(store, day(40)) == []


def test_driver_of_a_suspended_run_is_not_declared_lost() -> None:
    store = MemoryStore()
    ran(store, outcome=None).suspended("23:30:00")
    assert sweep(store, day(40)) == []
    assert [attempt.outcome for attempt in state_of(store).attempts] == [None]


def test_run_whose_driver_never_came_is_closed_after_a_week() -> None:
    store = MemoryStore()
    Recorded(store, JOB, RUN).launched("22:00:00")
    assert sweep(store, day(6)) == []
    assert sweep(store, day(8)) == [OlderRun(RUN, closed=True)]


def test_leftovers_of_a_run_stay_as_long_as_its_state() -> None:
    store = MemoryStore()
    store.create(f"{ran(store).keys.file_set(file_set_path('lost', 1, 'n'))}/part-0", b"rows")
    before = dict(store.objects)
    assert sweep(store, day(6)) == []
    assert store.objects == before


def test_own_and_shared_histories_are_left_alone() -> None:
    store = MemoryStore()
    own = ran(store).keys.prefix
    shared = Recorded(store, JOB, "")
    shared.started("22:00:00", run="A")
    shared.ended("23:00:00")
    ran(store, job="another_job")
    assert sweep(store, day(40), own=own) == []


def test_run_cleared_during_the_collection_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clear comes between the last read and *closing*."""
    store = MemoryStore()
    recorded = ran(store, outcome="finished", checkpoints=0)

    def cleared_before(coordinator: Coordinator, command: Any) -> None:
        Recorded(store, JOB, RUN).started("23:30:00", try_number=2, generation=1)
        close(coordinator, command)

    monkeypatch.setattr(closing, "close", cleared_before)
    assert sweep(store, day(40)) == []
    assert state_of(store).closing is None
    assert recorded.coordinator.journal.catch_up().last_epoch == 2


# -- how much ------------------------------------------------------------------------------------------------------------


def test_collection_takes_twenty_runs_half_of_them_the_oldest() -> None:
    store = MemoryStore()
    names = runs(store, 45)
    rounds = [[older.run for older in sweep(store, day(8))] for _ in range(4)]
    assert [len(older) for older in rounds] == [20, 20, 5, 0]
    assert rounds[0][:10] == names[:10]
    assert sorted(itertools.chain(*rounds)) == names


@pytest.mark.parametrize("due", ["scheduled__2026-11-20", "a name without a time"])
def test_kept_runs_delay_no_due_run(due: str) -> None:
    random.seed(1)
    store = MemoryStore()
    runs(store, 25, retention=KeepAll())
    ran(store, due)
    assert [older.run for _ in range(20) for older in sweep(store, day(8))] == [due]


def test_runs_with_checkpoints_come_before_runs_without() -> None:
    store = MemoryStore()
    runs(store, 5, outcome="finished", checkpoints=0)
    ran(store)
    assert next(collect_older_runs(store, JOB, BY, own=OWN, now=day(8))).run == RUN


def test_many_runs_without_checkpoints_do_not_hide_a_run_with_checkpoints() -> None:
    store = MemoryStore()
    runs(store, 25, outcome="finished", checkpoints=0)
    ran(store)
    assert [older.run for older in sweep(store, day(8))] == [RUN]


def test_cost_does_not_depend_on_the_number_of_closed_runs() -> None:
    costs = []
    for count in (2, 40):
        store = MemoryStore()
        runs(store, count)
        while sweep(store, day(8)):
            pass
        ran(store, "scheduled__2026-12-30", outcome="finished", checkpoints=0)
        counting = FaultyStore(store)
        assert sweep(counting, day(8)) == []
        costs.append(dict(counting.requests))
    assert costs[0] == costs[1]
    assert costs[0]["list"] == 3, (
        "the list of runs; of the run that is not due, what lies behind its journal, and its leftovers"
    )


def test_collection_stops_when_asked() -> None:
    store = MemoryStore()
    runs(store, 5)
    looked = iter([False, False, True])
    assert len([*collect_older_runs(store, JOB, BY, own=OWN, now=day(8), stop=lambda: next(looked))]) == 2


# -- errors --------------------------------------------------------------------------------------------------------------


def test_unreadable_run_is_reported_and_the_others_are_collected() -> None:
    store = MemoryStore()
    ran(store, "scheduled__2026-11-18")
    damaged = ran(store, "scheduled__2026-11-19").keys
    ran(store, "scheduled__2026-11-20")
    store.objects[damaged.entry(1)] = b"{"
    done = sweep(store, day(8))
    assert [(older.run, older.closed) for older in done] == [
        ("scheduled__2026-11-18", True), ("scheduled__2026-11-19", False), ("scheduled__2026-11-20", True),
    ]  # fmt: skip
    (line,) = older_runs(JOB, done)
    assert line.startswith(
        "flights_etl.delays, older runs: deleted 2 checkpoints and 0 leftovers of scheduled__2026-11-18, scheduled__2026-11-20;"
        " closed scheduled__2026-11-18, scheduled__2026-11-20; could not clean up scheduled__2026-11-19"
    )


def test_epoch_of_too_many_digits_stops_only_its_own_run() -> None:
    """Python makes no number of so many digits."""
    store = MemoryStore()
    planted = ran(store, "scheduled__2026-11-19").keys
    ran(store, "scheduled__2026-11-20")
    newest = max(key for key in store.objects if key.startswith(planted.journal))
    entry = json.loads(store.objects[newest])
    located = QueryLocated(uid="a", path="query/a/1-a", taken_from=None, begun=-1, committed=-1).to_json()
    entry["events"].append(located | {"path": f"query/a/{'9' * 4301}-a"})
    store.objects[newest] = checked({name: value for name, value in entry.items() if name != CHECKSUM})
    done = sweep(store, day(8))
    assert [(older.run, older.closed) for older in done] == [
        ("scheduled__2026-11-19", False),
        ("scheduled__2026-11-20", True),
    ]
    assert isinstance(done[0].error, Damaged)


def test_error_that_nobody_has_foreseen_stops_only_its_own_run() -> None:
    class Odd(MemoryStore):
        def read(self, key: str) -> bytes | None:
            if "2026-11-18" in key or "2026-11-19" in key:
                raise RecursionError("too deep")
            return super().read(key)

    store = Odd()
    for run in ("scheduled__2026-11-18", "scheduled__2026-11-19", "scheduled__2026-11-20"):
        store.objects |= recorded_objects(run)
    done = sweep(store, day(8))
    assert [older.closed for older in done] == [False, False, True]
    (line,) = older_runs(JOB, done)
    assert "could not clean up scheduled__2026-11-18, scheduled__2026-11-19, the next run tries again" in line
    assert "RecursionError: too deep" in line


def recorded_objects(run: str) -> dict[str, bytes]:
    store = MemoryStore()
    ran(store, run)
    return store.objects


def test_error_of_the_listing_is_raised() -> None:
    store = FaultyStore(MemoryStore(), lambda call: Fault.DROPPED)
    with pytest.raises(StoreUnavailable):
        sweep(store, day(8))


@pytest.mark.parametrize("steps", range(1, 30))
def test_killed_collection_is_finished_by_the_next_run(steps: int) -> None:
    inner = MemoryStore()
    keys = ran(inner).keys
    store = FaultyStore(inner, lambda call: Fault.DROPPED if call.number > steps else Fault.NONE)
    with contextlib.suppress(StoreUnavailable), virtual_time():
        sweep(store, day(8))
    sweep(inner, day(8))
    assert sorted(inner.objects) == [keys.entry(0), keys.entry(64)]


def test_unchanged_runs_have_no_log_line() -> None:
    assert older_runs(JOB, [OlderRun(RUN)]) == []


def test_deleted_checkpoint_is_no_restore_point() -> None:
    """A clear between deletion and closing starts from nothing."""
    store = MemoryStore()
    recorded = ran(store)
    coordinator = Coordinator(Journal(store, recorded.keys, BY))
    coordinator.journal.catch_up()
    assert retire(coordinator, day(8)) == (1,)
    recorded.coordinator.journal.catch_up()
    assert recorded.launched("23:59:00", try_number=2).restore_point is None
