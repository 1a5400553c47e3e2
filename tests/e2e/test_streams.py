"""On a real Airflow with a real driver: the example DAG that keeps a query running. Runs on Linux."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_checkpoint_provider.coordinator.savepoint_target import open_savepoint
from airflow_checkpoint_provider.protocol.keys import History, SavepointPointer
from tests.e2e.lab import PATIENCE, Lab
from tests.support.processes import command, find
from tests.support.streams import rows_in

pytestmark = pytest.mark.timeout(1800)
DAG, SAVEPOINTS = "clean_orders", "clean_orders_savepoints"


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


def inbox(lab: Lab) -> Path:
    """Return the folder where files arrive by default."""
    return lab.stack.home / "data" / "orders" / "inbox"


def paused(lab: Lab, dag: str, value: bool) -> None:
    with lab.writing:
        lab.stack.client.write("PATCH", f"/api/v2/dags/{dag}", {"is_paused": value})


def newest_run(lab: Lab, dag: str) -> str:
    runs = lab.stack.client.call("GET", f"/api/v2/dags/{dag}/dagRuns?order_by=-run_after")["dag_runs"]
    return str(runs[0]["dag_run_id"]) if runs else ""


@pytest.fixture
def report(lab: Lab) -> Iterator[Callable[[], str]]:
    """Unpause the DAG: it runs at once. Yield the end of the task's log; afterwards end the run, which would last for ever."""

    def log() -> str:
        run = newest_run(lab, DAG)
        tries = lab.stack.client.task(DAG, run, "run")["try_number"] if run else 0
        return (
            "\n".join(lab.stack.client.logs(DAG, run, "run", tries))[-6000:] if tries else f"run {run!r} has not begun"
        )

    inbox(lab).mkdir(parents=True)
    paused(lab, DAG, False)
    yield log
    paused(lab, DAG, True)
    with lab.writing:
        lab.stack.client.write("PATCH", f"/api/v2/dags/{DAG}/dagRuns/{newest_run(lab, DAG)}", {"state": "failed"})


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
    paused(lab, SAVEPOINTS, False)
    with lab.writing:
        saving = lab.stack.client.trigger(SAVEPOINTS)
    assert lab.stack.client.wait_for_run(SAVEPOINTS, saving, PATIENCE) == "success", report()
    paused(lab, SAVEPOINTS, True)
    found: Any = lab.stack.client.xcom(SAVEPOINTS, saving, "savepoint")
    saved = json.loads(found) if isinstance(found, str) else found
    lies = open_savepoint(SavepointPointer.parse(saved["pointer"]), lab.store(History(DAG)))
    assert lies.verify() > 0
    assert {uid: snapshot.kind for uid, snapshot in lies.seal.states.items()} == {"orders": "query"}
    assert written(out) == wanted(5)
