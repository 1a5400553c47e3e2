"""``checkpoints show``: the closing table again, or one checkpoint."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from airflow_checkpoint_provider.coordinator.heart import Heart
from airflow_checkpoint_provider.coordinator.liveness import Beat, QueryProgress
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.events import Request
from airflow_checkpoint_provider.storage import LocalStore
from tests.support.acting import Job
from tests.support.recorded import RUN, Recorded
from tests.unit import text as texts
from tests.unit.cli.conftest import FLIGHTS, ORDERS, Command
from tests.unit.cli.driver import savepoint

GOLDEN = Path(texts.__file__).parent / "summary_deleted.txt"


def test_show_prints_the_table_of_the_tasks_log(lake: LocalStore, checkpoints: Command) -> None:
    done = checkpoints("show", FLIGHTS, RUN)
    assert (done.code, done.err) == (0, "")
    assert done.lines == GOLDEN.read_text(encoding="utf-8").splitlines()


def test_show_without_run_prints_the_newest(lake: LocalStore, checkpoints: Command) -> None:
    assert "run scheduled__2026-11-21: FAILED (exit code 137: SIGKILL)" in checkpoints("show", FLIGHTS).lines[0]
    assert "run scheduled__2026-11-20: FINISHED" in checkpoints("show", ORDERS).lines[0]


def test_show_of_a_run_in_a_shared_history(lake: LocalStore, checkpoints: Command) -> None:
    lines = checkpoints("show", ORDERS, "scheduled__2026-11-19").lines
    assert "run scheduled__2026-11-19: FINISHED" in lines[0]
    assert [line.split()[0] for line in lines[1:3]] == ["id", "chk-1"]


def test_show_of_a_history_by_its_scope(store: LocalStore, checkpoints: Command) -> None:
    recorded = Recorded(store, scope="2026-11-20")
    recorded.started("22:00:20", run="scheduled__2026-11-20")
    assert "run scheduled__2026-11-20: RUNNING" in checkpoints("show", FLIGHTS, "2026-11-20").lines[0]


def test_show_as_json(lake: LocalStore, checkpoints: Command) -> None:
    found = json.loads(checkpoints("show", FLIGHTS, RUN, "-o", "json").out)
    assert (found["status"], found["attempts"], found["completed"], found["aborted"]) == ("finished", 2, 5, 1)
    assert (found["saved_s"], found["next_start"]) == (4320 + 6000 + 4920, None)
    assert [entry["state"] for entry in found["rows"]] == [
        "deleted",
        "deleted",
        "restored",
        "aborted",
        "deleted",
        "deleted",
    ]


def test_show_as_columns(lake: LocalStore, checkpoints: Command) -> None:
    rows = [line.split("\t") for line in checkpoints("show", FLIGHTS, RUN, "-o", "plain").lines]
    assert rows[2][:5] == ["chk-3", "1", "checkpoint", "restored", "stage 'planes'"]


@pytest.mark.parametrize(
    "named", [["chk-2"], ["2"], ["scheduled__2026-11-20", "2"], ["scheduled__2026-11-20", "chk-2"]]
)
def test_show_of_a_checkpoint(lake: LocalStore, checkpoints: Command, named: list[str]) -> None:
    done = checkpoints("show", ORDERS, *named)
    assert done.code == 0
    pointer = f"{lake.uri}/jobs/{ORDERS}/job/chk-2"
    assert done.lines == [
        "etl.orders, run scheduled__2026-11-20, attempt 2: completed 2026-11-20 20:10",
        "chk-2 completed at stage 'clean': 2 states, 4.0 KiB, 4.0 KiB new  [CKP200]",
        f"  pointer     {pointer}",
        " state       kind   rows  size     since  barrier        work   value",
        " clean       stage  1000  4.0 KiB  chk-2  stage 'clean'  9 min",
        ' high_water  value  0     0 B      chk-2  end            0.0 s  "2026-11-20"',
    ]


def test_show_of_values_is_one_line_each_whatever_is_in_them(store: LocalStore, checkpoints: Command) -> None:
    recorded = Recorded(store, job=ORDERS, scope="")
    recorded.started("19:00:00", run="one")
    values = {"escape": "a\x1b[2J\nb", "long": "x" * 500, "none": None, "nested": {"day": ["2026-11-20", 1.5]}}
    for uid, value in values.items():
        recorded.value(uid, value)
    recorded.value("source", {"offset": 7}, kind="registered")
    recorded.completed("end", "19:10:00", "19:10:01")
    lines = checkpoints("show", ORDERS, "chk-1").lines[-5:]
    shown = [line.split("  ")[-1] for line in lines]
    assert shown == [
        r'"a\u001b[2J\nb"',
        f'"{"x" * 199}… (502 characters; -o json prints all)',
        '{"day": ["2026-11-20", 1.5]}',
        "null",
        '{"offset": 7}',
    ]
    found = json.loads(checkpoints("show", ORDERS, "chk-1", "-o", "json").out)["states"]
    assert {state["uid"]: state["value"] for state in found} == values | {"source": {"offset": 7}}
    recorded.aborted(recorded.triggered("checkpoint()", "19:20:00"), "19:21:00", "expired")
    assert json.loads(checkpoints("show", ORDERS, "chk-2", "-o", "json").out)["states"] == []


def test_show_of_a_deleted_checkpoint_has_no_values(lake: LocalStore, checkpoints: Command) -> None:
    found = json.loads(checkpoints("show", FLIGHTS, RUN, "chk-6", "-o", "json").out)
    assert found["state"] == "deleted"
    assert all("value" not in state for state in found["states"])


def test_show_of_queries_that_run(job: Job, checkpoints: Command) -> None:
    orders = QueryProgress(uid="orders", batch=412, ended_at="2026-11-20T03:02:08Z", input_rate=1200.0)
    Heart(job.store, job.keys.attempt_beat(1), Beat(epoch=1, queries=(orders,))).pulse()
    assert json.loads(checkpoints("show", "orders", "-o", "json").out)["queries"] == [], "no query has a location"
    job.coordinator.journal.append(
        c.LocateQuery(uid="orders", path="query/orders/1-abc", taken_from=None, begun=-1, committed=-1, epoch=1)
    )
    *_, head, columns, row = checkpoints("show", "orders").lines
    assert re.fullmatch(r" queries at \d\d:\d\d:\d\d, the newest heartbeat, \d+ s ago:", head)
    assert columns.split("  ")[:2] == [" query", " newest batch"]
    assert row.startswith(" orders  batch 412")
    found = json.loads(checkpoints("show", "orders", "-o", "json").out)
    assert found["queries"] == [orders.to_json()]
    assert found["heartbeat_at"]
    job.end("failed")
    ended = json.loads(checkpoints("show", "orders", "-o", "json").out)
    assert (ended["queries"], ended["heartbeat_at"]) == ([], None)


def test_show_of_an_aborted_checkpoint(lake: LocalStore, checkpoints: Command) -> None:
    done = checkpoints("show", FLIGHTS, RUN, "chk-4")
    assert done.code == 0
    assert done.lines[0] == "flights_etl.delays, run scheduled__2026-11-20, attempt 1: aborted 2026-11-21 03:02"
    assert done.lines[1].startswith("ABORTED chk-4 of flights_etl.delays: attempt replaced, in phase acknowledge")


def test_show_of_a_checkpoint_as_json(lake: LocalStore, checkpoints: Command) -> None:
    found = json.loads(checkpoints("show", ORDERS, "2", "-o", "json").out)
    assert (found["state"], found["total_bytes"]) == ("completed", 4096)
    assert found["states"][0] == {
        "uid": "clean", "kind": "stage", "run": "scheduled__2026-11-20", "rows": 1000, "bytes": 4096, "checkpoint": 2,
        "barrier": "stage 'clean'", "work_s": 540, "batch": None, "sources": {}, "sink": None,
    }  # fmt: skip


def test_show_of_an_aborted_checkpoint_as_json(job: Job, checkpoints: Command) -> None:
    """All that its lines say."""
    job.coordinator.trigger(Request(token="barrier 2", barrier="stage 'clean'"))
    job.coordinator.abort(2, "declined", missing=("",), details="ValueError: no position")
    found = json.loads(checkpoints("show", "orders", "chk-2", "-o", "json").out)
    gone = job.checkpoint(2)
    assert {name: found[name] for name in ("why", "phase", "missing", "details", "triggered_at", "ended_at", "at")} == {
        "why": "declined", "phase": "acknowledge", "missing": [""], "details": "ValueError: no position",
        "triggered_at": gone.triggered_at, "ended_at": gone.ended_at, "at": None,
    }  # fmt: skip
    (_, listed) = json.loads(checkpoints("list", "orders", "-o", "json").out)[::-1]
    assert listed == found | {"states": None}


def test_savepoint_has_no_barrier(job: Job, checkpoints: Command) -> None:
    savepoint(job)
    assert json.loads(checkpoints("show", "orders", "chk-2", "-o", "json").out)["barrier"] is None
    assert [entry["barrier"] for entry in json.loads(checkpoints("show", "orders", "-o", "json").out)["rows"]] == [
        "stage 'clean'",
        None,
    ]


def test_savepoint_has_the_pointer_of_its_target(job: Job, checkpoints: Command) -> None:
    made = savepoint(job, owner="ann@desk", name="before price change", pinned=True)
    lines = checkpoints("show", "orders", "chk-2").lines
    assert lines[2:4] == ["  savepoint   ann@desk, 'before price change', pinned", f"  pointer     {made.target}"]
    assert json.loads(checkpoints("show", "orders", "chk-2", "-o", "json").out)["pointer"] == made.target


def test_unpublished_savepoint_has_no_pointer(job: Job, checkpoints: Command) -> None:
    made = savepoint(job, publish=False)
    lines = checkpoints("show", "orders", "chk-2").lines
    assert lines[2:4] == ["  savepoint   cli", f"  target      {made.target}, not published yet"]
    assert json.loads(checkpoints("show", "orders", "chk-2", "-o", "json").out)["pointer"] is None


def test_pending_savepoint_shows_where_it_will_lie(job: Job, checkpoints: Command) -> None:
    asked = Request(token="one", kind="savepoint", origin="cli", folder=f"{job.store.uri}/savepoints")
    number = job.coordinator.trigger(asked)
    target = f"  target      {job.checkpoint(number).target}, not published yet"
    assert target in checkpoints("show", "orders", f"chk-{number}").lines


def test_pending_savepoint_has_its_pointer_in_the_history(job: Job, checkpoints: Command) -> None:
    job.coordinator.trigger(
        Request(token="asked", kind="savepoint", origin="task", owner="etl.saves", folder=f"{job.store.uri}/saved")
    )
    pointer = f"{job.store.uri}/jobs/orders/job/chk-2"
    lines = checkpoints("show", "orders", "chk-2").lines
    assert f"  pointer     {pointer}" in lines
    assert "chk-2 waits for the driver's next barrier  [CKP205]" in lines
    assert json.loads(checkpoints("show", "orders", "chk-2", "-o", "json").out)["pointer"] == pointer


def test_number_is_a_run_if_there_is_one_of_that_name(store: LocalStore, checkpoints: Command) -> None:
    recorded = Recorded(store, scope="20261120")
    recorded.started("22:00:20")
    recorded.completed("end", "22:00:21", "22:00:22")
    assert checkpoints("show", FLIGHTS, "20261120").lines[0].startswith("CHECKPOINTS")
    assert checkpoints("show", FLIGHTS, "1").lines[0].endswith("completed 2026-11-20 22:00")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nobody"], "there is no job 'nobody' under"),
        (["nobody", "chk-1"], "there is no job 'nobody' under"),
        ([FLIGHTS, "another"], "job 'flights_etl.delays' has no run 'another' under"),
        ([FLIGHTS, RUN, "chk-7"], "chk-7: flights_etl.delays, run scheduled__2026-11-20 has no such checkpoint"),
        ([FLIGHTS, "99"], "99: flights_etl.delays, run scheduled__2026-11-21 has no such checkpoint"),
        ([FLIGHTS, RUN, "latest"], "latest: flights_etl.delays, run scheduled__2026-11-20 has no such checkpoint"),
    ],
)
def test_show_of_anything_absent_exits_with_4(
    lake: LocalStore, checkpoints: Command, arguments: list[str], message: str
) -> None:
    done = checkpoints("show", *arguments)
    assert (done.code, done.out) == (4, "")
    assert done.err.startswith(message)
    assert done.err.endswith("[CKP624]\n")


def test_unknown_checkpoint_of_a_run_leads_to_the_list_of_that_run(lake: LocalStore, checkpoints: Command) -> None:
    done = checkpoints("show", FLIGHTS, RUN, "chk-7")
    assert f"`checkpoints --root {lake.root} list {FLIGHTS} {RUN}` prints its checkpoints" in done.err


def test_show_of_a_checkpoint_whose_values_are_damaged_shows_the_rest(lake: LocalStore, checkpoints: Command) -> None:
    lake.overwrite(f"jobs/{ORDERS}/job/chk-2/_metadata", b"{}")
    done = checkpoints("show", ORDERS, "chk-2")
    assert (done.code, done.lines[-1].split()[:3]) == (1, ["high_water", "value", "0"])
    assert "[CKP621]" in done.err
