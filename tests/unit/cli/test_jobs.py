"""``checkpoints jobs``: where each job stands."""

from __future__ import annotations

import json
import os
import re
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from airflow_checkpoint_provider.cli import lists
from airflow_checkpoint_provider.coordinator import histories
from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.liveness import VARIABLE, Beat
from airflow_checkpoint_provider.storage import LocalStore
from airflow_checkpoint_provider.storage.base import LARGEST
from airflow_checkpoint_provider.text.units import NONE
from tests.support.acting import RUN, Job
from tests.support.beats import CLOCKS_OFF, beating
from tests.support.faults import Call, Fault, FaultyStore
from tests.support.planted import plant_3_gib
from tests.support.recorded import Recorded
from tests.unit.cli.conftest import FLIGHTS, ORDERS, Command
from tests.unit.cli.driver import savepoint

pytestmark = pytest.mark.usefixtures("fast_beats")


CHECKING = "Checking whether the drivers of running jobs are alive (up to 0.15 s).\n"


def listed(checkpoints: Command, *arguments: str, says: str = "") -> list[dict[str, Any]]:
    done = checkpoints("jobs", "--output", "json", *arguments)
    assert (done.code, done.err) == (0, says)
    found: list[dict[str, Any]] = json.loads(done.out)
    return found


def test_jobs_reports_the_newest_run_of_each_job(lake: LocalStore, checkpoints: Command) -> None:
    failed, finished = listed(checkpoints)
    assert failed.pop("age_s") > 0
    assert failed == {
        "job": FLIGHTS, "run": "scheduled__2026-11-21", "state": "failed", "attempt": 1, "last_checkpoint": "chk-1",
        "next_start": "chk-1", "at": "2026-11-21T10:30:00.000Z",
    }  # fmt: skip
    assert (finished["job"], finished["run"]) == (ORDERS, "scheduled__2026-11-20")
    assert (finished["state"], finished["attempt"], finished["next_start"]) == ("finished", 2, "chk-2")


def test_job_behind_a_link_is_an_error_and_a_folder_without_a_journal_is_noted(
    lake: LocalStore, root: Path, checkpoints: Command
) -> None:
    (root / "jobs" / ORDERS).rename(root.parent / "other disk")
    (root / "jobs" / ORDERS).symlink_to(root.parent / "other disk")
    (root / "jobs" / "junk").mkdir()
    done = checkpoints("jobs", "-o", "plain")
    assert (done.code, [line.split("\t")[0] for line in done.lines]) == (2, [FLIGHTS])
    noted, error = done.err.splitlines()
    assert noted == "1 folder of jobs without a journal: junk"
    assert f"jobs/{ORDERS} is a symbolic link" in error
    shown = checkpoints("show", "junk")
    assert shown.code == 4
    assert "there is no job 'junk'" in shown.err
    assert "Its folder is there, but holds no journal." in shown.err
    assert "Did you mean" not in shown.err


def test_jobs_prints_a_table(lake: LocalStore, checkpoints: Command) -> None:
    header, first, second = (re.split(r"\s{2,}", line) for line in checkpoints("jobs").lines)
    assert header == ["JOB", "RUN", "STATE", "ATTEMPT", "LAST CHECKPOINT", "AGE", "NEXT START"]
    assert first[:5] == [FLIGHTS, "scheduled__2026-11-21", "failed", "1", "chk-1"]
    assert second[-1] == "chk-2"


def test_finished_run_with_its_own_history_has_no_next_start(store: LocalStore, checkpoints: Command) -> None:
    recorded = Recorded(store)
    recorded.started("22:00:20")
    recorded.ended("22:00:30")
    (found,) = listed(checkpoints)
    assert (found["state"], found["last_checkpoint"], found["next_start"]) == ("finished", None, None)


def test_driver_with_a_heartbeat_is_running(store: LocalStore, checkpoints: Command) -> None:
    recorded = Recorded(store)
    recorded.started("22:00:20")
    (silent,) = listed(checkpoints, says=CHECKING)
    assert silent["state"] == "running, no heartbeat"
    Heart(store, recorded.keys.attempt_beat(1), Beat(epoch=1)).pulse()
    (running,) = listed(checkpoints)
    assert running["state"] == "running"


@CLOCKS_OFF
def test_driver_elsewhere_is_running_while_its_heartbeat_moves(
    store: LocalStore, checkpoints: Command, off: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(store)
    recorded.started("22:00:20")
    with monkeypatch.context() as patient, beating(store, recorded.keys.attempt_beat(1), off):
        patient.setenv(VARIABLE, "20")  # it ends as soon as the heartbeat moves
        (found,) = listed(checkpoints, says=CHECKING.replace("0.15", "60"))
    assert found["state"] == "running"
    (found,) = listed(checkpoints, says=CHECKING)
    assert found["state"] == "running, no heartbeat"


def test_stopped_job_is_suspended(job: Job, checkpoints: Command) -> None:
    savepoint(job, kind="suspend_savepoint")
    job.end("suspended")
    (found,) = listed(checkpoints)
    assert (found["state"], found["last_checkpoint"], found["next_start"]) == ("suspended", "chk-2", "chk-2")
    assert json.loads(checkpoints("show", "orders", "-o", "json").out)["status"] == "suspended"


def test_restored_job_is_resumed(job: Job, checkpoints: Command) -> None:
    savepoint(job, kind="suspend_savepoint")
    job.end("suspended")
    checkpoints("restore", "orders", "--from", "latest", "--yes")
    assert listed(checkpoints)[0]["state"] == "resumed"
    shown = checkpoints("show", "orders")
    assert shown.lines[0].startswith(f"CHECKPOINTS orders, run {RUN}: RESUMED, no attempt has started since; 1 attempt")
    job.start(try_number=2)
    assert listed(checkpoints, says=CHECKING)[0]["state"] == "running, no heartbeat"


def test_launch_without_a_driver_is_launched(store: LocalStore, checkpoints: Command) -> None:
    recorded = Recorded(store)
    recorded.launched("22:00:20")
    Heart(store, recorded.keys.launch_beat(1), Beat(launch=1)).pulse()
    (found,) = json.loads(checkpoints("jobs", "-o", "json").out)
    assert (found["state"], found["attempt"], found["last_checkpoint"]) == ("launched", 0, None)
    done = checkpoints("jobs")
    assert done.lines[1].split()[2:5] == ["launched", NONE, NONE]
    assert done.err.startswith(
        f"{found['job']}, run {found['run']}: launched 2026-11-20 22:00 by try 1, not attached yet"
    )


def test_empty_store_has_no_jobs(checkpoints: Command, store: LocalStore) -> None:
    Path(store.root).mkdir()
    done = checkpoints("jobs")
    assert (done.code, done.out, done.err) == (0, "", f"no jobs under {store.uri}\n")


def test_root_that_does_not_exist_is_refused(checkpoints: Command, store: LocalStore) -> None:
    """Nobody should look for a job where the path is wrong."""
    done = checkpoints("jobs")
    assert done.code == 2
    assert f"the folder {store.root} does not exist" in done.err


def test_limit_leaves_out_older_jobs(lake: LocalStore, checkpoints: Command) -> None:
    done = checkpoints("jobs", "--limit", "1", "-o", "plain")
    assert [line.split("\t")[0] for line in done.lines] == [FLIGHTS]
    assert done.err == "1 older job left out; see --limit\n"


@pytest.mark.parametrize("limit", ["1", "20"])
def test_jobs_reads_a_few_runs_of_each_job(
    store: LocalStore, checkpoints: Command, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """However many lines a person wants to see."""
    for hour in range(10):
        recorded = Recorded(store, scope=f"scheduled__2026-11-20T{hour:02d}:00:00+00:00")
        recorded.started(f"{hour:02d}:00:00")
    read = mock.Mock(wraps=histories.read)
    monkeypatch.setattr(histories, "read", read)
    (found,) = json.loads(checkpoints("jobs", "-o", "json", "--limit", limit).out)
    assert found["run"] == "scheduled__2026-11-20T09:00:00+00:00"
    assert read.call_count == 6, "the shared one and five of runs"


def test_runs_without_a_time_in_their_names_hide_no_newer_run(store: LocalStore, checkpoints: Command) -> None:
    names = [*(f"backfill of customer {number}" for number in range(8)), "scheduled__2026-11-20T20:00:00+00:00"]
    for hour, run in enumerate(names):
        Recorded(store, scope=run).started(f"{hour:02d}:00:00")
    (found,) = json.loads(checkpoints("jobs", "-o", "json").out)
    assert found["run"] == names[-1]


@pytest.mark.parametrize("name", ["lost+found", "_temporary", "my job", ".Trash", "ä"])
def test_folder_that_is_no_job_is_passed_over(lake: LocalStore, root: Path, checkpoints: Command, name: str) -> None:
    (root / "jobs" / name).mkdir()
    assert [found["job"] for found in listed(checkpoints)] == [FLIGHTS, ORDERS]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"v":1,"inc":"i","n":0,"stub":true,"closed":{}}',
        b'{"v":1,"inc":"i","n":0.0,"nonce":"a","at":"2026-11-22T10:00:00Z","by":{},"events":[]}',
        b'{"v":1,"inc":"i","n":0,"nonce":"a","at":"soon","by":{},"events":[]}',
    ],
)
def test_broken_journal_of_any_kind_hides_no_other_job(lake: LocalStore, checkpoints: Command, body: bytes) -> None:
    lake.overwrite("jobs/broken/job/journal/0000000000000000", body)
    done = checkpoints("jobs")
    assert done.code == 1
    assert [line.split()[0] for line in done.lines[1:]] == [FLIGHTS, ORDERS]
    assert "jobs/broken/job/journal/0000000000000000" in done.err


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Fail a test that holds more than twice the largest object at a time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 2 * LARGEST
    finally:
        tracemalloc.stop()


@pytest.mark.usefixtures("little_memory")
def test_journal_of_3_gib_hides_no_other_job(lake: LocalStore, checkpoints: Command) -> None:
    plant_3_gib(lake, "jobs/broken/job/journal/0000000000000000")
    done = checkpoints("jobs")
    assert done.code == 1
    assert [line.split()[0] for line in done.lines[1:]] == [FLIGHTS, ORDERS]
    assert f"jobs/broken/job/journal/0000000000000000 has more than {LARGEST} bytes" in done.err


@pytest.mark.parametrize("below", ["runs", "job", "job/journal", "job/journal/0000000000000000"])
@pytest.mark.parametrize("plant", [os.mkfifo, lambda path: path.symlink_to("/etc")], ids=["pipe", "link"])
def test_history_that_is_a_pipe_or_a_link_hides_no_other_job(
    lake: LocalStore, checkpoints: Command, plant: Callable[[Path], object], below: str
) -> None:
    planted = Path(lake.root, f"jobs/broken/{below}")
    planted.parent.mkdir(parents=True)
    plant(planted)
    done = checkpoints("jobs")
    assert [line.split()[0] for line in done.lines[1:]] == [FLIGHTS, ORDERS]
    if plant is os.mkfifo and not below.endswith("0"):  # nothing can lie below a pipe
        assert (done.code, done.err) == (0, "1 folder of jobs without a journal: broken\n")
    else:
        assert done.code == 2
        assert str(planted) in done.err


@pytest.mark.parametrize("plant", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/etc/passwd")])
def test_heartbeat_that_is_no_file_is_no_heartbeat(
    store: LocalStore, checkpoints: Command, plant: Callable[[Path], object]
) -> None:
    recorded = Recorded(store)
    recorded.started("22:00:20")
    planted = Path(store.root, recorded.keys.attempt_beat(1))
    planted.parent.mkdir(exist_ok=True)
    plant(planted)
    (silent,) = listed(checkpoints, says=CHECKING)
    assert silent["state"] == "running, no heartbeat"


def test_heartbeat_of_this_host_is_read_once(lake: LocalStore) -> None:
    recorded = Recorded(lake, job="orders", scope="")
    recorded.started("22:00:20")
    key, reads = recorded.keys.attempt_beat(1), list[str]()
    Heart(lake, key, Beat(epoch=1)).pulse()

    def recording(call: Call) -> Fault:
        reads.extend([call.key] if call.kind == "read" else [])
        return Fault.NONE

    report = lists.jobs(FaultyStore(lake, recording), 10, "2026-11-22T00:00:00.000Z")
    assert {row[0]: row[2] for row in report.rows}["orders"] == "running"
    assert reads.count(key) == 1


@pytest.mark.parametrize(
    ("denied", "state", "unreadable"),
    [
        ("jobs/orders/job/journal/0000000000000000", None, 1),
        ("jobs/orders/runs", "running, no heartbeat", 1),
        ("jobs/orders/job/heartbeat/1", "running", 0),  # what the journal says
    ],
)
def test_job_that_may_not_be_read_hides_no_other_job(
    lake: LocalStore, denied: str, state: str | None, unreadable: int
) -> None:
    Recorded(lake, job="orders", scope="").started("22:00:20")
    denying = FaultyStore(lake, lambda call: Fault.DENIED if call.key == denied else Fault.NONE)
    report = lists.jobs(denying, 10, "2026-11-22T00:00:00.000Z")
    states = {row[0]: row[2] for row in report.rows}
    assert (states.pop("orders", None), len(report.errors)) == (state, unreadable)
    assert states.keys() == {FLIGHTS, ORDERS}


@pytest.mark.usefixtures("little_memory")
def test_heartbeat_of_3_gib_is_no_heartbeat(store: LocalStore, checkpoints: Command) -> None:
    recorded = Recorded(store)
    recorded.started("22:00:20")
    plant_3_gib(store, recorded.keys.attempt_beat(1))
    (silent,) = listed(checkpoints, says=CHECKING)
    assert silent["state"] == "running, no heartbeat"


@pytest.mark.usefixtures("little_memory")
def test_seal_of_3_gib_is_damaged_and_its_history_is_listed(
    store: LocalStore, running: Recorded, checkpoints: Command
) -> None:
    plant_3_gib(store, running.keys.seal(3))
    assert listed(checkpoints, says=CHECKING)[0]["last_checkpoint"] == "chk-3"
    done = checkpoints("verify", str(running.coordinator.pointer(3)))
    assert done.code == 1
    assert f"chk-3/_metadata has more than {LARGEST} bytes" in done.out + done.err


def test_unreadable_history_hides_no_other_job(lake: LocalStore, checkpoints: Command) -> None:
    key = Recorded(lake, job=ORDERS, scope="").keys.entry(2)
    lake.overwrite(key, b"{")
    done = checkpoints("jobs", "-o", "plain")
    assert (done.code, len(done.lines)) == (1, 1)
    assert FLIGHTS in done.lines[0]
    assert done.err.startswith(key)
    assert done.err.endswith("[CKP621]\n")
    assert done.err.count("\n") == 1


def test_what_runs_or_is_suspended_stands_first_then_what_moved_last(store: LocalStore, checkpoints: Command) -> None:
    for job, time in (("old", "20:00:00"), ("starting", "20:10:00"), ("new", "23:00:00"), ("stopped", "20:20:00")):
        recorded = Recorded(store, job=job, scope="")
        recorded.launched(time, run="one")
        if job == "starting":
            continue
        recorded.attached(time)
        if job == "stopped":
            recorded.suspended(time)
        else:
            recorded.ended(time)
    found = json.loads(checkpoints("jobs", "-o", "json").out)
    assert [line["job"] for line in found] == ["stopped", "starting", "new", "old"]
    assert [line["job"] for line in json.loads(checkpoints("jobs", "-o", "json", "--limit", "2").out)] == [
        "stopped",
        "starting",
    ]
