"""On a real Airflow with real drivers: the example DAGs that keep a query running, and upgrade it. Runs on Linux."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_checkpoint_provider.coordinator.savepoint_target import Savepoint, open_savepoint
from airflow_checkpoint_provider.protocol.keys import History, SavepointPointer
from airflow_checkpoint_provider.protocol.state import State
from tests.e2e.lab import PATIENCE, Lab
from tests.support.processes import command, find
from tests.support.stack import EXAMPLES
from tests.support.streams import rows_in

pytestmark = pytest.mark.timeout(1800)
DAG, SAVEPOINTS = "clean_orders", "clean_orders_savepoints"
CUSTOMERS, CUSTOMERS_SAVEPOINTS = "new_customers", "new_customers_savepoints"
WATCHED, WATCHED_HEALTH = "watched_orders", "watched_orders_health"
DEPLOYED, UPGRADE = "clean_orders_deployed", "clean_orders_upgrade"
CLEAN_ORDERS = EXAMPLES / "jobs" / "clean_orders.py"


def put(folder: Path, number: int) -> None:
    """Let a file with ten orders arrive: half of them are also in the next file, one has no customer."""
    orders = [
        {"number": n, "customer": "ann" if n % 10 else None, "cents": n} for n in range(number * 5, number * 5 + 10)
    ]
    hidden = folder / f".{number}"
    hidden.write_text("".join(f"{json.dumps(order)}\n" for order in orders))
    hidden.rename(folder / f"{number}.json")


def written(out: Path) -> list[int]:
    return rows_in(out, "number")


def wanted(files: int) -> list[int]:
    return [n for n in range(files * 5 + 5) if n % 10]


def inbox(lab: Lab, data: str = "orders") -> Path:
    """Return the folder where files arrive by default."""
    return lab.stack.home / "data" / data / "inbox"


def paused(lab: Lab, dag: str, value: bool) -> None:
    with lab.writing:
        lab.stack.client.write("PATCH", f"/api/v2/dags/{dag}", {"is_paused": value})


def newest_run(lab: Lab, dag: str) -> str:
    runs = lab.stack.client.call("GET", f"/api/v2/dags/{dag}/dagRuns?order_by=-run_after")["dag_runs"]
    return str(runs[0]["dag_run_id"]) if runs else ""


@contextmanager
def running(lab: Lab, dag: str) -> Iterator[Callable[[], str]]:
    """Unpause the DAG: it runs at once. Yield the end of the task's log; afterwards end the run, which would last for ever."""

    def log() -> str:
        run = newest_run(lab, dag)
        tries = lab.stack.client.task(dag, run, "run")["try_number"] if run else 0
        return (
            "\n".join(lab.stack.client.logs(dag, run, "run", tries))[-6000:] if tries else f"run {run!r} has not begun"
        )

    paused(lab, dag, False)
    try:
        yield log
    finally:
        paused(lab, dag, True)
        with lab.writing:
            lab.stack.client.write("PATCH", f"/api/v2/dags/{dag}/dagRuns/{newest_run(lab, dag)}", {"state": "failed"})


@pytest.fixture
def report(lab: Lab) -> Iterator[Callable[[], str]]:
    inbox(lab).mkdir(parents=True)
    with running(lab, DAG) as log:
        yield log


@pytest.mark.slow  # test_first_stream kills a query, and test_savepoint_is_taken_every_hour saves in Airflow
def test_stream_goes_on_after_a_kill_and_is_saved(lab: Lab, report: Callable[[], str]) -> None:
    out = inbox(lab).with_name("clean")
    put(inbox(lab), 0)
    lab.wait_until(lambda: written(out) == wanted(1), report)
    for pid in find(lambda pid: str(inbox(lab)) in " ".join(command(pid))):
        os.kill(pid, signal.SIGKILL)
    for number in range(1, 5):
        put(inbox(lab), number)
    lab.wait_until(lambda: written(out) == wanted(5), report)
    assert len(lab.journal(History(DAG)).catch_up().attempts) == 2
    lies = saved(lab, SAVEPOINTS, DAG, report)
    assert lies.verify() > 0
    assert {uid: snapshot.kind for uid, snapshot in lies.seal.states.items()} == {"orders": "query"}
    assert written(out) == wanted(5)


def saved(lab: Lab, dag: str, job: str, report: Callable[[], str]) -> Savepoint:
    """Run a DAG that takes a savepoint. Return the savepoint."""
    paused(lab, dag, False)
    with lab.writing:
        saving = lab.stack.client.trigger(dag)
    assert lab.stack.client.wait_for_run(dag, saving, PATIENCE) == "success", report()
    paused(lab, dag, True)
    found: Any = lab.stack.client.xcom(dag, saving, "savepoint")
    answer = json.loads(found) if isinstance(found, str) else found
    return open_savepoint(SavepointPointer.parse(answer["pointer"]), lab.store(History(job)))


@pytest.mark.slow
def test_two_streams_are_saved_together(lab: Lab) -> None:
    folder = inbox(lab, "customers")
    out = folder.with_name("customers")
    folder.mkdir(parents=True)
    put(folder, 0)
    with running(lab, CUSTOMERS) as report:
        lab.wait_until(lambda: rows_in(out, "customer") == ["ann"], report)
        put(folder, 1)
        lies = saved(lab, CUSTOMERS_SAVEPOINTS, CUSTOMERS, report)
        assert lies.verify() > 0
        queries = {uid: snapshot.query for uid, snapshot in lies.seal.states.items()}
        assert queries.keys() == {"orders", "customers"}
        assert queries["customers"]
        (edge,) = queries["customers"].edges
        assert (edge.upstream, edge.ahead) == ("orders", 0)


@pytest.mark.slow
def test_watched_stream_tells_of_a_kill_and_is_healthy(lab: Lab) -> None:
    folder = inbox(lab, "watched")
    out, told = folder.with_name("clean"), folder.with_name("told.txt")
    folder.mkdir(parents=True)
    put(folder, 0)
    with running(lab, WATCHED) as report:
        lab.wait_until(lambda: written(out) == wanted(1), report)
        lab.wait_until(lambda: lab.journal(History(WATCHED)).catch_up().retained, report)
        for pid in find(lambda pid: str(folder) in " ".join(command(pid))):
            os.kill(pid, signal.SIGKILL)
        put(folder, 1)
        lab.wait_until(lambda: written(out) == wanted(2), report)
        head, *text = told.read_text().splitlines()
        assert head.startswith(f"RETRY of {WATCHED}.run, run ")
        assert any(line.startswith("  next        the next attempt continues from chk-") for line in text)
        paused(lab, WATCHED_HEALTH, False)
        with lab.writing:
            looks = lab.stack.client.trigger(WATCHED_HEALTH)
        assert lab.stack.client.wait_for_run(WATCHED_HEALTH, looks, PATIENCE) == "success", report()
        paused(lab, WATCHED_HEALTH, True)
        log = "\n".join(lab.stack.client.logs(WATCHED_HEALTH, looks, "health", 1))
        assert f"{WATCHED} is healthy: its work is saved up to " in log


def version(lab: Lab, name: str, query: str) -> Path:
    """Return another script, in which ``query`` stands at the end of the query."""
    folder = lab.folder(name)
    folder.mkdir(parents=True)
    script = folder / "clean_orders.py"
    script.write_text(
        CLEAN_ORDERS.read_text().replace('.dropDuplicates(["number"])', f'.dropDuplicates(["number"]){query}')
    )
    return script


def upgrade(lab: Lab, to: Path, back: Path) -> str:
    with lab.writing:
        return lab.stack.client.trigger(UPGRADE, {"application": str(to), "previous": str(back)})


@pytest.mark.slow
def test_upgrade_of_a_stream_is_rolled_back(lab: Lab) -> None:
    """A good version goes on exactly. One that writes wrong rows and then fails is taken back, with its rows."""
    client, folder = lab.stack.client, inbox(lab, "deployed_orders")
    out = folder.with_name("clean")

    def state() -> State:
        return lab.journal(History(DEPLOYED)).catch_up()

    folder.mkdir(parents=True)
    put(folder, 0)
    with running(lab, DEPLOYED) as report:
        lab.wait_until(lambda: written(out) == wanted(1), report)
        two = version(lab, "two", '.withColumn("cents", orders.cents + 1)')
        good = upgrade(lab, two, CLEAN_ORDERS)
        put(folder, 1)
        assert client.wait_for_run(UPGRADE, good, PATIENCE) == "success", report()
        put(folder, 2)
        lab.wait_until(lambda: written(out) == wanted(3), report)
        first, second = state().attempts
        assert first.outcome == "suspended"
        assert second.application_digest != first.application_digest

        bug = """.selectExpr("number", "customer", "if(number < 25, 0L, raise_error('a bug')) AS cents")"""
        bad = upgrade(lab, version(lab, "three", bug), two)
        client.wait_for_task(UPGRADE, bad, "restore", {"success"}, seconds=PATIENCE)
        put(folder, 3)
        lab.wait_until(lambda: written(out) == wanted(4), report)
        put(folder, 4)
        lab.wait_until(lambda: [attempt.outcome for attempt in state().attempts].count("failed") >= 2, report)
        with lab.writing:
            client.set_task(UPGRADE, bad, "healthy", "failed")  # somebody sees that it makes no checkpoints
        assert client.wait_for_run(UPGRADE, bad, PATIENCE) == "failed"
        states = client.states(UPGRADE, bad)
        assert {states[name] for name in ("stopped", "undeploy", "roll_back")} == {"success"}
        assert (states["healthy"], states["upgraded"]) == ("failed", "upstream_failed")
        put(folder, 5)
        lab.wait_until(lambda: written(out) == wanted(6), report)
        assert 0 not in rows_in(out, "cents")
        assert state().attempts[-1].application_digest == second.application_digest
