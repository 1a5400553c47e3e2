"""``prune`` deletes what is no longer needed, and nothing else."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_checkpoint_provider.cli import prune
from airflow_checkpoint_provider.cli.change import Approval
from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By, Entry
from airflow_checkpoint_provider.coordinator.journal import Journal, utc_now
from airflow_checkpoint_provider.coordinator.liveness import VARIABLE
from airflow_checkpoint_provider.coordinator.savepoint import target_of
from airflow_checkpoint_provider.coordinator.savepoint_target import DISPOSAL, put_claim
from airflow_checkpoint_provider.errors import StoreDenied
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.checkpoint_records import AbortCause, Claim
from airflow_checkpoint_provider.protocol.commands import CloseHistory
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import SEGMENT, History, Keys, file_set_path
from airflow_checkpoint_provider.storage import LocalStore
from airflow_checkpoint_provider.text.units import day_and_time
from tests.support.acting import Job
from tests.support.beats import beating
from tests.support.garbage import retire
from tests.support.recorded import Recorded, three_stages
from tests.unit.cli.conftest import FLIGHTS, Command
from tests.unit.cli.driver import savepoint


@pytest.fixture
def died(store: LocalStore) -> Recorded:
    """A run that failed for good; its last attempt left rows that nobody acknowledged."""
    recorded = Recorded(store)
    three_stages(recorded)
    store.create(f"{recorded.keys.file_set(file_set_path('delays', 1, 'lost'))}/part-0.parquet", b"rows")
    recorded.ended("02:51:00", "failed", 137, "task")
    return recorded


@pytest.fixture(autouse=True)
def soon_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``prune`` see the clock of the recorded run: with that of today its history would be over for good."""
    monkeypatch.setattr(prune, "utc_now", lambda: "2026-11-21T04:00:00.000Z")


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and "journal" not in path.parts}


def test_prune_with_dry_run_prints_what_it_would_delete(died: Recorded, root: Path, checkpoints: Command) -> None:
    before = files(root)
    done = checkpoints("prune", FLIGHTS, "--dry-run")
    folder = died.keys.file_set(file_set_path("delays", 1, "lost"))
    assert (done.code, done.lines) == (
        0,
        [
            f"{FLIGHTS}, run scheduled__2026-11-20: 1 leftover of ended attempts",
            f"  4 B         {folder}",
            "nothing was changed (--dry-run)",
        ],
    )
    (planned,) = json.loads(checkpoints("prune", FLIGHTS, "--dry-run", "-o", "json").out)
    assert (planned["folders"], planned["bytes"]) == ([{"folder": folder, "bytes": 4}], 4)
    assert files(root) == before


@pytest.mark.usefixtures("months_later")
def test_prune_with_dry_run_names_the_folders_that_it_then_deletes(
    died: Recorded, root: Path, checkpoints: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune, "SHOWN", 1)
    before = {path: Path(root, path).stat().st_size for path in files(root)}
    done = checkpoints("prune", FLIGHTS, "--dry-run")
    (planned,) = json.loads(checkpoints("prune", FLIGHTS, "--dry-run", "-o", "json").out)
    assert checkpoints("prune", FLIGHTS, "--yes").code == 0
    gone = before.keys() - files(root)
    named = {path for path in gone if any(path.startswith(f"{entry['folder']}/") for entry in planned["folders"])}
    assert {path for path in gone - named if "/heartbeat/" not in path} == set()
    assert planned["bytes"] == sum(before[path] for path in named)
    assert done.lines[2].endswith(f"{len(planned['folders']) - 1} smaller folders")


def test_prune_deletes_leftovers_and_keeps_checkpoints(died: Recorded, root: Path, checkpoints: Command) -> None:
    before = files(root)
    done = checkpoints("prune", FLIGHTS, "--yes")
    assert (done.code, done.lines[-1]) == (0, "done")
    (gone,) = before - files(root)
    assert gone.endswith("1-lost/part-0.parquet")
    assert died.coordinator.journal.catch_up().restore_point() is not None
    assert checkpoints("prune", FLIGHTS, "--yes").lines == ["nothing to delete"]


def test_prune_deletes_the_state_of_a_finished_run_after_a_day(
    store: LocalStore, root: Path, checkpoints: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that would have deleted the state of the run was lost; after a day ``prune`` deletes it."""
    recorded = Recorded(store)
    three_stages(recorded)
    recorded.ended("03:00:00")
    before = files(root)
    monkeypatch.setattr(prune, "utc_now", lambda: "2026-11-22T02:59:59.000Z")
    done = checkpoints("prune", FLIGHTS, "--yes")
    assert (done.code, done.lines, files(root)) == (0, ["nothing to delete"], before)
    assert f"{FLIGHTS}, run scheduled__2026-11-20: finished less than a day ago and is left to its task" in done.err
    monkeypatch.setattr(prune, "utc_now", lambda: "2026-11-22T03:00:01.000Z")
    done = checkpoints("prune", FLIGHTS, "--yes", "-o", "json")
    (pruned,) = json.loads(done.out)
    assert pruned["checkpoints"] == ["chk-2", "chk-3"]
    assert recorded.coordinator.journal.catch_up().retained == ()


@pytest.mark.parametrize("beats", [True, False])
def test_prune_leaves_a_run_whose_driver_has_waited_for_days(
    died: Recorded, store: LocalStore, checkpoints: Command, monkeypatch: pytest.MonkeyPatch, beats: bool
) -> None:
    """Its application is in the queue of the cluster. Without its restore point the driver, and the retry, would start from nothing."""
    monkeypatch.setenv(VARIABLE, "0.05")
    launch = died.launched("02:55:00", try_number=2)
    monkeypatch.setattr(prune, "utc_now", lambda: "2026-12-24T00:00:00.000Z")
    with beating(store, died.keys.launch_beat(launch.number)) if beats else nullcontext():
        done = checkpoints("prune", FLIGHTS, "--yes")
    kept = died.coordinator.journal.catch_up().retained
    assert done.code == 0
    assert bool(kept) is beats
    assert (f"{FLIGHTS}, run scheduled__2026-11-20: waits for its driver to start. Prune it later" in done.err) is beats


def test_prune_leaves_a_run_that_finished_during_the_question(
    store: LocalStore, checkpoints: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(store)
    three_stages(recorded)
    store.create(f"{recorded.keys.prefix}/chk-1/acks/-", b"left behind")

    def ended(job: str, lines: list[str], approval: Approval) -> None:
        recorded.ended("03:00:00")

    monkeypatch.setattr(prune, "confirm", ended)
    monkeypatch.setattr(prune, "utc_now", lambda: "2026-11-21T03:00:01.000Z")
    done = checkpoints("prune", FLIGHTS)
    assert "left to its task" in done.err
    assert len(recorded.coordinator.journal.catch_up().retained) == 2


def test_prune_deletes_an_expired_claimed_savepoint(job: Job, checkpoints: Command, tmp_path: Path) -> None:
    other = Job(LocalStore(tmp_path / "other lake"))
    other.start()
    claimed = str(savepoint(other).target)
    assert checkpoints("restore", "orders", "--from", claimed, "--claim", "--yes").code == 0
    assert "orders, run" not in checkpoints("prune", "orders", "--yes").out, "the next attempt starts from it"
    job.start(2)
    for barrier in ("one", "two"):
        job.complete(job.coordinator.trigger(Request(token=barrier, barrier=barrier)))
    (pruned,) = json.loads(checkpoints("prune", "orders", "--dry-run", "-o", "json").out)
    assert pruned["savepoints"] == [claimed]
    line = checkpoints("prune", "orders", "--yes").lines[0]
    assert f"{claimed} (claimed)" in line
    assert checkpoints("verify", claimed).err.endswith("[CKP442]\n")
    assert checkpoints("prune", "orders", "--yes").lines == ["nothing to delete"]


def test_prune_keeps_the_files_of_a_running_attempt(store: LocalStore, checkpoints: Command) -> None:
    recorded = Recorded(store)
    three_stages(recorded)
    store.create(f"{recorded.keys.file_set(file_set_path('delays', 1, 'being written'))}/part-0.parquet", b"rows")
    assert checkpoints("prune", FLIGHTS, "--yes").lines == ["nothing to delete"]


def test_prune_reports_an_unreadable_history_and_prunes_the_others(died: Recorded, checkpoints: Command) -> None:
    key = Keys(History(FLIGHTS, "scheduled__2026-11-21").prefix).entry(0)
    died.store.create(key, b"{")
    done = checkpoints("prune", FLIGHTS, "--yes")
    assert (done.code, done.lines[-1], done.err.count("\n")) == (1, "done", 1)
    assert done.err.startswith(key)


def plant(recorded: Recorded, **changed: Any) -> None:
    """Let the journal begin anew with another state, as somebody with access to the store can."""
    state, keys = recorded.coordinator.journal.catch_up(), recorded.keys
    recorded.store.delete([keys.entry(number) for number in range(1, state.n + 1)])
    snapshot = replace(state, n=SEGMENT - 1, **changed)
    entry = Entry(state.incarnation, SEGMENT, "n", state.at, {}, (), snapshot=snapshot)
    recorded.store.overwrite(keys.entry(SEGMENT), entry.to_bytes())


@pytest.mark.parametrize("planted", ["a claim", "a savepoint without target"])
def test_prune_names_the_run_whose_garbage_nobody_can_tell_and_prunes_the_others(
    died: Recorded, store: LocalStore, root: Path, checkpoints: Command, planted: str
) -> None:
    later = Recorded(store, scope="scheduled__2026-11-21")
    three_stages(later)
    later.ended("02:51:00", "failed", 137, "task")
    store.create(f"{later.keys.file_set(file_set_path('delays', 1, 'lost'))}/part-0.parquet", b"rows")
    state = later.coordinator.state
    if planted == "a claim":
        plant(later, claims=(Claim(pointer="x", at=state.at, status="condemned"),))
    else:
        last = state.checkpoints[-1]
        aborted = AbortCause(at=state.at, n=state.n, reason="x")
        saved = replace(last, request=replace(last.request, kind="savepoint"), completion=None, abort_cause=aborted)
        plant(later, checkpoints=(*state.checkpoints[:-1], saved))
    before = files(root)
    done = checkpoints("prune", FLIGHTS, "--yes")
    assert done.code
    assert done.err.startswith(later.keys.prefix)
    assert done.lines[-1] == "done"
    gone = before - files(root)
    assert gone
    assert all(path.startswith(died.keys.prefix) for path in gone)


def test_prune_reports_a_file_that_it_may_not_delete_and_prunes_the_others(
    died: Recorded, store: LocalStore, root: Path, checkpoints: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Recorded(store, scope="scheduled__2026-11-21")
    three_stages(later)
    lost = [f"{keys.file_set(file_set_path('delays', 1, 'lost'))}/part-0.parquet" for keys in (died.keys, later.keys)]
    store.create(lost[1], b"rows")
    later.ended("02:51:00", "failed", 137, "task")
    delete_under, denied = LocalStore.delete_under, list[str]()

    def deny_the_first(self: LocalStore, prefix: str) -> None:
        if not denied or prefix in denied:
            denied.append(prefix)
            raise StoreDenied(f"{prefix} belongs to another user")
        delete_under(self, prefix)

    monkeypatch.setattr(LocalStore, "delete_under", deny_the_first)
    done = checkpoints("prune", FLIGHTS, "--yes")
    assert done.code == 5
    assert "belongs to another user" in done.err
    assert sum((root / key).exists() for key in lost) == 1


def test_prune_of_an_unknown_job_exits_with_4(died: Recorded, checkpoints: Command) -> None:
    done = checkpoints("prune", "nobody", "--yes")
    assert (done.code, done.out) == (4, "")
    assert "there is no job 'nobody'" in done.err


def test_prune_asks_and_changes_nothing_without_a_terminal(
    died: Recorded, root: Path, checkpoints: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    before = files(root)
    done = checkpoints("prune", FLIGHTS)
    assert (done.code, files(root)) == (2, before)
    assert "--dry-run" in done.err


# -- histories that are over for good ------------------------------------------------------------------------------------

LATER = "2027-03-01T00:00:00.000Z"
DUE = f"{FLIGHTS}, run scheduled__2026-11-20: chk-2, chk-3 (not retained) and 1 leftover of ended attempts"


@pytest.fixture
def months_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "utc_now", lambda: LATER)


@pytest.mark.usefixtures("months_later")
def test_prune_closes_the_history_of_a_failed_run_months_later(
    died: Recorded, root: Path, checkpoints: Command
) -> None:
    before = files(root)
    done = checkpoints("prune", FLIGHTS, "--dry-run")
    assert (done.lines[0], done.lines[-1]) == (f"{DUE} and its history (closed)", "nothing was changed (--dry-run)")
    assert files(root) == before
    assert checkpoints("prune", FLIGHTS, "--yes").lines[-1] == "done"
    assert files(root) == set()
    assert died.coordinator.journal.catch_up().closed
    assert checkpoints("prune", FLIGHTS, "--yes").lines == ["nothing to delete"]


@pytest.mark.usefixtures("months_later")
def test_prune_deletes_what_an_aborted_savepoint_left_at_its_target(
    store: LocalStore, tmp_path: Path, checkpoints: Command
) -> None:
    recorded = Recorded(store)
    three_stages(recorded)
    number = recorded.coordinator.trigger(
        Request(token="one", kind="savepoint", origin="task", folder=f"file://{tmp_path}/shared")
    )
    aborted = recorded.state.checkpoint(number)
    assert aborted
    LocalStore(f"{tmp_path}/shared").create(f"{target_of(aborted).name}/state/clean/1-n0nce/part-0", b"rows")
    recorded.ended("02:51:00", "failed", 137, "task")
    assert checkpoints("prune", FLIGHTS, "--yes").lines[-1] == "done"
    assert not [path for path in (tmp_path / "shared").rglob("*") if path.is_file()]


@pytest.mark.usefixtures("months_later")
def test_prune_finishes_a_closing_that_was_begun(died: Recorded, checkpoints: Command) -> None:
    journal = died.coordinator.journal
    task = Coordinator(Journal(died.store, died.keys, By("task", "", "")))
    task.journal.catch_up()
    retire(task, LATER)
    journal.append(CloseHistory(reason="the run failed for good", now=LATER))
    (pruned,) = json.loads(checkpoints("prune", FLIGHTS, "--yes", "-o", "json").out)
    assert (pruned["checkpoints"], pruned["closed"]) == ([], True)
    assert journal.catch_up().closed


@pytest.mark.usefixtures("months_later")
def test_closed_history_is_reported_as_closed(died: Recorded, store: LocalStore, checkpoints: Command) -> None:
    checkpoints("prune", FLIGHTS, "--yes")
    died.coordinator.journal.catch_up()
    closed = f"{FLIGHTS}, run scheduled__2026-11-20: closed at {day_and_time(died.state.at)} (the run failed for good);"
    shown = checkpoints("show", FLIGHTS, "scheduled__2026-11-20")
    assert (shown.code, shown.lines[0][: len(closed)]) == (0, closed)
    listed = checkpoints("list", FLIGHTS)
    assert listed.code == 0
    assert closed in listed.out + listed.err
    (job,) = json.loads(checkpoints("jobs", "-o", "json").out)
    assert (job["run"], job["state"], job["next_start"]) == ("scheduled__2026-11-20", "closed", None)
    refused = checkpoints("restore", FLIGHTS, "--from", "chk-3", "--dry-run")
    assert refused.code == 4


@pytest.mark.usefixtures("months_later")
def test_jobs_reports_a_younger_run_before_a_closed_one(
    died: Recorded, store: LocalStore, checkpoints: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "0.05")  # ``jobs`` watches the driver for 0.15 s instead of 30
    younger = Recorded(store, scope="scheduled__2026-11-21")
    younger.started("04:00:00")
    checkpoints("prune", FLIGHTS, "scheduled__2026-11-20", "--yes")
    (job,) = json.loads(checkpoints("jobs", "-o", "json").out)
    assert job["run"] == "scheduled__2026-11-21"


def test_prune_with_dry_run_names_the_directory_of_an_interrupted_disposal(job: Job, checkpoints: Command) -> None:
    stored = savepoint(job)
    pointer = target_of(stored)
    for barrier in ("one", "two"):
        job.complete(job.coordinator.trigger(Request(token=barrier, barrier=barrier)))
    put_claim(job.store.beside(pointer.root), pointer, DISPOSAL, "ann", utc_now())
    job.coordinator.journal.append(c.Condemn(ids=(stored.id,), now=utc_now(), disposing=True))
    (planned,) = json.loads(checkpoints("prune", "orders", "--dry-run", "-o", "json").out)
    assert str(pointer) in [entry["folder"] for entry in planned["folders"]]
    assert checkpoints("prune", "orders", "--yes").code == 0
    assert checkpoints("verify", str(pointer)).err.endswith("[CKP442]\n")
