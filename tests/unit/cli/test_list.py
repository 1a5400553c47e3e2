"""``checkpoints list``: which checkpoints there are, newest first."""

from __future__ import annotations

import json

import pytest

from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.protocol.keys import Pointer
from airflow_checkpoint_provider.storage import LocalStore
from tests.support.acting import Job
from tests.support.recorded import RUN, Recorded
from tests.unit.cli.conftest import ABORTED, FLIGHTS, ORDERS, Command
from tests.unit.cli.driver import savepoint


def test_list_prints_all_runs_newest_first(lake: LocalStore, checkpoints: Command) -> None:
    done = checkpoints("list", FLIGHTS)
    assert (done.code, done.err) == (0, "")
    assert done.lines[:3] == [
        "ID     KIND        ORIGIN   RUN                    ATTEMPT  STATE      BARRIER          SIZE      TAKEN             NOTE",
        "chk-1  checkpoint  barrier  scheduled__2026-11-21  1        completed  stage 'clean'    18.0 KiB  2026-11-21 10:12",
        "chk-6  checkpoint  barrier  scheduled__2026-11-20  2        deleted    end              63.1 KiB  2026-11-21 03:44",
    ]
    assert done.lines[4] == ABORTED


def test_list_of_a_run_prints_its_checkpoints(lake: LocalStore, checkpoints: Command) -> None:
    found = json.loads(checkpoints("list", FLIGHTS, RUN, "-o", "json").out)
    assert [entry["id"] for entry in found] == [6, 5, 4, 3, 2, 1]
    assert {entry["pointer"] for entry in found} == {None}


def test_list_of_a_run_in_a_shared_history_prints_its_checkpoints(lake: LocalStore, checkpoints: Command) -> None:
    found = json.loads(checkpoints("list", ORDERS, "scheduled__2026-11-19", "-o", "json").out)
    assert [(entry["id"], entry["run"]) for entry in found] == [(1, "scheduled__2026-11-19")]


def test_pointer_leads_to_an_existing_checkpoint(lake: LocalStore, checkpoints: Command) -> None:
    (newest, *_) = json.loads(checkpoints("list", FLIGHTS, "-o", "json").out)
    pointer = Pointer.parse(newest["pointer"])
    assert (pointer.root, pointer.id) == (lake.uri, 1)
    assert lake.read(f"{pointer.prefix}/chk-1/_metadata")


def test_limit_leaves_out_older_checkpoints(lake: LocalStore, checkpoints: Command) -> None:
    done = checkpoints("list", FLIGHTS, "--limit", "2", "-o", "plain")
    assert [line.split("\t")[0] for line in done.lines] == ["chk-1", "chk-6"]
    assert done.err == "5 older checkpoints left out; see --limit\n"


def test_limit_leaves_out_runs_with_older_names(lake: LocalStore, checkpoints: Command) -> None:
    done = checkpoints("list", FLIGHTS, "--limit", "1", "-o", "plain")
    assert [line.split("\t")[3] for line in done.lines] == ["scheduled__2026-11-21"]
    assert done.err == "1 run with older names not read; name a run, or see --limit\n"


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("scheduled__2026-11-20T00:00:00+00:00", "manual__2026-11-20T00:00:01+00:00"),
        ("scheduled__2026-11-20T00:00:00+00:00", "a name without a time"),
    ],
)
def test_run_with_the_newer_name_is_read(store: LocalStore, checkpoints: Command, older: str, newer: str) -> None:
    for time, run in (("20:00:00", older), ("21:00:00", newer)):
        recorded = Recorded(store, scope=run)
        recorded.started(time)
        recorded.completed("end", time, time)
    found = json.loads(checkpoints("list", FLIGHTS, "--limit", "1", "-o", "json").out)
    assert [entry["run"] for entry in found] == [newer]


def test_history_without_checkpoints_says_so(store: LocalStore, checkpoints: Command) -> None:
    Recorded(store).launched("22:00:20")
    done = checkpoints("list", FLIGHTS)
    assert (done.code, done.out, done.err) == (0, "", f"{FLIGHTS} has no checkpoints\n")


def test_savepoints_are_marked_in_the_list(job: Job, checkpoints: Command) -> None:
    periodic = savepoint(job, origin="periodic", owner="orders_savepoints.hourly")
    named = savepoint(job, name="before price change", pinned=True)
    job.coordinator.trigger(Request(token="full", kind="full_checkpoint", origin="task"))
    job.complete(4)
    stopped = savepoint(job, kind="suspend_savepoint", publish=False)
    rows = [line.split("\t") for line in checkpoints("list", "orders", "-o", "plain").lines]
    assert [(*row[:3], row[5], row[9]) for row in rows] == [
        ("chk-5", "savepoint", "stop", "completed", ""),
        ("chk-4", "full checkpoint", "task", "completed", ""),
        ("chk-3", "savepoint", "cli", "pinned", "before price change"),
        ("chk-2", "savepoint", "periodic", "completed", ""),
        ("chk-1", "checkpoint", "barrier", "completed", ""),
    ]
    found = {entry["id"]: entry for entry in json.loads(checkpoints("list", "orders", "-o", "json").out)}
    assert [found[number]["pointer"] for number in (2, 3, 5)] == [periodic.target, named.target, None], "as published"
    assert (found[5]["kind"], found[3]["name"], found[3]["pinned"]) == (stopped.kind, "before price change", True)
    assert found[2]["owner"] == "orders_savepoints.hourly"
