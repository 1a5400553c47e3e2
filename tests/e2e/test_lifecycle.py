"""On a real Airflow with a real driver: tasks drive a checkpoint of a job that runs. What tasks alone do is in test_steps.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.state import State
from tests.e2e.lab import PATIENCE, RESULT, Lab, Run, kill, wait_gone
from tests.support.client import Client

pytestmark = pytest.mark.timeout(1800)
STEPS = [f"checkpoint.{name}" for name in ("trigger", "acknowledged", "audit", "finalize", "notify", "abort")]


def gated(state: State) -> Checkpoint | None:
    return next((one for one in state.pending if one.request.gated), None)


def asked(run: Run) -> Checkpoint:
    """The checkpoint that waits for the driver to come to a barrier."""
    run.wait_for(gated)
    found = gated(run.state)
    assert found
    return found


def xcom(client: Client, dag: str, run: str, task: str) -> Any:
    found = client.xcom(dag, run, task)
    return json.loads(found) if isinstance(found, str) else found


def ended(run: Run) -> dict[str, str | None]:
    assert run.client.wait_for_run(run.dag, run.id, PATIENCE) == "success", run.client.states(run.dag, run.id)
    return run.client.states(run.dag, run.id)


@pytest.mark.slow  # test_steps_by_hand_with_every_way_of_waiting audits a checkpoint, and clears tasks, without Spark
def test_gated_checkpoint_is_audited_and_completed_also_after_a_clear(lab: Lab) -> None:
    """Cleared together, the trigger finds a run that has finished, and waits for its new start."""
    run = lab.start("audited", "one")
    for attempt in (1, 2):
        run.wait_at("one", attempt)
        wanted = asked(run)
        run.open("one")
        states = ended(run)
        assert (states.pop("checkpoint.abort"), set(states.values())) == ("skipped", {"success"})
        found = run.state.checkpoint(wanted.id)
        assert found
        assert found.completed_at
        assert xcom(run.client, run.dag, run.id, "checkpoint.audit") == {"one": 1000}
        assert f"chk-{wanted.id} completed" in run.log(attempt)
        assert run.state.runs[-1].outcome == "finished"
        if attempt == 1:
            (run.folder / "closed-one").touch()
            with lab.writing:
                run.client.clear(run.dag, run.id, "job", *STEPS)
    assert run.results == [{"attempt": attempt, **RESULT} for attempt in (1, 2)]


@pytest.mark.slow  # test_trigger_checkpoint.py of the operators asks again after an abort
def test_clear_after_a_dead_driver_requests_from_the_next_driver(lab: Lab) -> None:
    run = lab.start("audited", "one")
    run.wait_at("one")
    wanted, driver = asked(run), run.driver()
    kill(driver)
    wait_gone(driver)
    run.client.wait_for_task(run.dag, run.id, "checkpoint.acknowledged", {"failed"}, seconds=PATIENCE)
    run.client.wait_for_task(run.dag, run.id, "checkpoint.abort", {"success"}, seconds=PATIENCE)  # done already
    last = run.client.task(run.dag, run.id, "checkpoint.acknowledged")["try_number"]
    log = "\n".join(run.client.logs(run.dag, run.id, "checkpoint.acknowledged", last))
    assert f"chk-{wanted.id} of audited.job, run {run.id} was aborted" in log
    assert "Clear task audited.checkpoint.trigger" in log
    run.wait_at("one", attempt=2)
    with lab.writing:
        run.client.clear(run.dag, run.id, *STEPS)
    assert asked(run).id > wanted.id
    run.open("one")
    states = ended(run)
    assert (states.pop("checkpoint.abort"), set(states.values())) == ("skipped", {"success"})
    assert run.results == [{"attempt": 2, **RESULT}]


# -- the example DAGs ----------------------------------------------------------------------------------------------------


@pytest.mark.slow  # test_steps_by_hand_with_every_way_of_waiting does the same without Spark
@pytest.mark.parametrize("dag", ["flights_audited", "flights_audited_by_hand"])
def test_example_dag_succeeds(lab: Lab, dag: str) -> None:
    folder = lab.folder(dag)
    _write_tables(folder / "tables")
    with lab.writing:
        run = lab.stack.client.trigger(dag, {"data": str(folder)})
    client = lab.stack.client
    state = client.wait_for_run(dag, run, PATIENCE)
    states = client.states(dag, run)
    (abort,) = (states.pop(name) for name in list(states) if name.endswith("abort"))
    assert (state, abort, set(states.values())) == ("success", "skipped", {"success"}), states
    (audit,) = (name for name in states if name.endswith("audit"))
    assert xcom(client, dag, run, audit)["clean"] == 900


def _write_tables(folder: Path) -> None:
    """What the job reads of the tables that ``flights_etl`` prepares, with few rows."""
    folder.mkdir(parents=True)
    rows: list[dict[str, Any]] = [
        {
            "carrier": "AA", "origin": "JFK", "dest": "BOS", "tailnum": f"N{n % 50}", "time_hour": f"2013-01-01 {n % 24:02d}",
            "dep_delay": n % 60, "arr_delay": None if n % 10 == 0 else n % 90 - 10, "distance": 187,
        }
        for n in range(1000)
    ]  # fmt: skip
    tables: dict[str, list[dict[str, Any]]] = {
        "flights": rows,
        "weather": [
            {"origin": "JFK", "time_hour": f"2013-01-01 {n:02d}", "precip": 0.1 * (n % 2), "visib": 10}
            for n in range(24)
        ],
        "planes": [{"tailnum": f"N{n}", "year": 2000 + n % 10, "seats": 100} for n in range(50)],
        "airlines": [{"carrier": "AA", "name": "American"}],
        "airports": [{"faa": "BOS", "name": "Logan"}],
    }
    for name, table in tables.items():
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), folder / f"{name}.parquet")
