"""The order in which histories of older runs are collected, and folders that are no history. Runs anywhere."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest

from airflow_checkpoint_provider.coordinator import older_runs
from airflow_checkpoint_provider.coordinator.garbage import closable
from airflow_checkpoint_provider.coordinator.older_runs import OlderRun
from airflow_checkpoint_provider.errors import StoreDenied
from airflow_checkpoint_provider.policies.retention import KeepAll
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.keys import History, file_set_path
from airflow_checkpoint_provider.storage import LocalStore, MemoryStore
from tests.support.garbage import refuse_to_delete
from tests.unit.coordinator.runs_to_collect import JOB, RUN, day, ran, runs, state_of, sweep


def test_runs_without_a_time_in_their_name_come_last() -> None:
    store = MemoryStore()
    for name in ("by hand", "a backfill"):
        ran(store, name)
    dated = runs(store, 10)
    swept = [older.run for older in sweep(store, day(8))]
    assert (swept[:10], set(swept[10:])) == (dated, {"by hand", "a backfill"})


def test_begun_closing_is_finished_and_reported() -> None:
    """Retention does not count: it was decided when the closing began."""
    store = MemoryStore()
    recorded = ran(store, outcome="finished", checkpoints=0)
    recorded.coordinator.journal.append(c.CloseHistory(reason="the run finished", now=day(40)))
    assert sweep(store, day(1)) == [OlderRun(RUN, closed=True)]
    assert state_of(store).closed


def test_leftovers_alone_are_reported() -> None:
    store = MemoryStore()
    keys = ran(store, outcome="finished", checkpoints=0).keys
    store.create(f"{keys.file_set(file_set_path('lost', 1, 'n'))}/part-0", b"rows")
    assert sweep(store, day(2)) == [OlderRun(RUN, leftovers=1)]


def closed_run(store: MemoryStore, name: str) -> str:
    """Make what is left of a closed run whose map indexes were registered. Return the key of a registration."""
    prefix = History(JOB, name).prefix
    for boundary in (0, 64):
        store.create(f"{prefix}/journal/{boundary:016d}", b"stub")
    store.create(key := f"{prefix}/indexes/{name}/load.task/0/000001", b"x")
    return key


def test_registration_that_cannot_be_deleted_is_reported_and_keeps_no_run_from_being_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    stays, goes = closed_run(store, "a"), closed_run(store, "b")
    ran(store, "scheduled__2026-11-21")
    refuse_to_delete(store, "/runs/a/indexes", monkeypatch)
    denied, collected = sweep(store, day(40))
    assert (denied.run, type(denied.error), collected.run) == ("a", StoreDenied, "scheduled__2026-11-21")
    assert stays in store.objects
    assert goes not in store.objects


def test_registrations_of_a_run_in_which_the_listing_was_cut_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A history of it may be open that was not listed."""
    store = MemoryStore()
    cut = closed_run(store, "a")
    ran(store, "b")
    monkeypatch.setattr(older_runs, "LISTED", 3)
    sweep(store, day(40))
    assert cut in store.objects


def test_leftover_that_cannot_be_deleted_is_reported_and_keeps_no_history_open(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    keys = ran(store, outcome="finished", checkpoints=0).keys
    store.create(f"{keys.file_set(file_set_path('lost', 1, 'n'))}/part-0", b"rows")
    refuse_to_delete(store, "/state/lost/", monkeypatch)
    for _ in range(2):
        (older,) = sweep(store, day(40))
        assert isinstance(older.error, StoreDenied)
        assert state_of(store).closed
    monkeypatch.undo()
    assert sweep(store, day(40)) == [OlderRun(RUN, closed=True)]
    assert sweep(store, day(40)) == []


@pytest.mark.parametrize(
    "key", ["read-me", f"{RUN}/read-me", f"{RUN}/journal/read-me", f"{RUN}/other/0000000000000000", "half/journal/1"]
)
def test_keys_that_are_no_history_are_left_alone(key: str) -> None:
    store = MemoryStore()
    where = f"{History(JOB, 'x').prefix.rsplit('/', 1)[0]}/{key}"
    store.create(where, b"of somebody else")
    sweep(store, day(40))
    assert where in store.objects


@pytest.mark.parametrize("folder", ["0", "0/items/0", f"{RUN}/a"])
def test_many_keys_of_one_run_hide_no_other_run(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(older_runs, "LISTED", 100)
    monkeypatch.setattr(older_runs, "LISTED_OF_ONE", 20)
    store = MemoryStore()
    for number in range(200):
        store.create(f"{History(JOB, 'x').prefix.rsplit('/', 1)[0]}/{folder}/{number:03d}", b"x")
    ran(store, "scheduled__2026-11-21")
    assert {older.run for older in sweep(store, day(40))} == {"scheduled__2026-11-21"}


def test_more_closed_runs_than_are_listed_hide_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(older_runs, "LISTED", 20)
    store = MemoryStore()
    closed = [f"a-{number:02d}" for number in range(60)]
    for name in closed:
        for boundary in (0, 64):
            store.create(f"{History(JOB, name).prefix}/journal/{boundary:016d}", b"stub")
    ran(store, "b")
    found = next(filter(None, (sweep(store, day(8)) for _ in range(200))))
    assert [older.run for older in found] == ["b"]


def test_sweep_of_a_local_root_reads_each_folder_about_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(older_runs, "LISTED_OF_ONE", 2)
    for run in range(20):
        for number in range(3):
            path = tmp_path / f"{History(JOB, str(run)).prefix}/state/stage-{number}/part-0"
            path.parent.mkdir(parents=True)
            path.touch()
    with mock.patch("os.scandir", wraps=os.scandir) as scanned:
        sweep(LocalStore(tmp_path), day(40))
    assert scanned.call_count < 20 * 10, "each run has 5 folders"


def test_history_is_closable_without_checkpoints_after_its_period() -> None:
    store = MemoryStore()
    ran(store, outcome="finished", checkpoints=2, retention=KeepAll())
    state = state_of(store)
    assert not closable(state, day(40)), "its checkpoints are in the way"
    assert not closable(state, day(40), without=[1])
    assert closable(state, day(40), without=[1, 2])
    assert not closable(state, day(20), without=[1, 2]), "its table is kept"
