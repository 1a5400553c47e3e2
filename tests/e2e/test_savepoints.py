"""On a real Airflow with real drivers: the example DAGs that take savepoints of a running job, and upgrade it with one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from airflow_checkpoint_provider.coordinator.savepoint_target import open_savepoint
from airflow_checkpoint_provider.protocol.keys import History, SavepointPointer
from airflow_checkpoint_provider.protocol.state import State
from tests.e2e.lab import PATIENCE, Lab
from tests.support.stack import EXAMPLES

pytestmark = pytest.mark.timeout(1800)
TALLY = EXAMPLES / "jobs" / "tally.py"


class Tally:
    """A run of the job that adds up batches, in a folder of its own."""

    def __init__(self, lab: Lab, dag: str) -> None:
        self.lab, self.client, self.dag = lab, lab.stack.client, dag
        self.folder, self.batches = lab.folder(dag), 0
        (self.folder / "inbox").mkdir(parents=True)
        with lab.writing:
            self.id = self.client.trigger(dag, {"data": str(self.folder)})

    def put(self, *cents: int) -> None:
        """A batch arrives: whole, or not at all."""
        self.batches += 1
        new = self.folder / "inbox" / "new"
        new.write_text("".join(json.dumps({"customer": "ann", "cents": one}) + "\n" for one in cents))
        new.rename(self.folder / "inbox" / f"{self.batches}.json")

    def end(self) -> dict[str, int]:
        """The sums that the job leaves when no more batches come."""
        (self.folder / "inbox" / "END").touch()
        assert self.client.wait_for_run(self.dag, self.id, PATIENCE) == "success", self.report()
        found: dict[str, int] = json.loads((self.folder / "sums.json").read_text())
        return found

    def version(self, name: str, behaves: str = "") -> Path:
        """Another script that does the same, or not even that."""
        script = self.folder / name
        script.write_text(f"{TALLY.read_text()}".replace("if __name__", f"{behaves}\nif __name__"))
        return script

    @property
    def state(self) -> State:
        return self.lab.journal(History(self.dag)).catch_up()

    def savepoint_bytes(self) -> int:
        (savepoint,) = self.state.savepoints
        return savepoint.bytes

    def wait_for(self, condition: Any) -> None:
        self.lab.wait_until(lambda: condition(self.state), self.report)

    def report(self) -> str:
        task = self.client.task(self.dag, self.id, "run")
        log = "\n".join(self.client.logs(self.dag, self.id, "run", max(1, task["try_number"])))
        return f"{task['state']} in try {task['try_number']}, suspended: {self.state.suspended}, {self.state.attempts}\n{log[-6000:]}"


def completed(number: int) -> Any:
    return lambda state: any(one.completed_at and one.id >= number for one in state.checkpoints)


def xcom(lab: Lab, dag: str, run: str, task: str) -> Any:
    found = lab.stack.client.xcom(dag, run, task)
    return json.loads(found) if isinstance(found, str) else found


def test_savepoint_is_taken_every_hour(lab: Lab) -> None:
    tally = Tally(lab, "tally")
    tally.put(100, 200)
    tally.wait_for(completed(1))
    asset = watched_asset(lab, "savepoints of tally")
    pause(lab, "tally_savepoints", False)
    with lab.writing:
        lab.stack.client.trigger("tally_savepoints")  # or an hour is due: then that run is the first
    tally.wait_for(lambda state: any(one.savepoint for one in state.pending))
    tally.put(300)
    saved = xcom(lab, "tally_savepoints", succeeded(lab, "tally_savepoints"), "savepoint")
    pause(lab, "tally_savepoints", True)
    lies = open_savepoint(SavepointPointer.parse(saved["pointer"]), lab.store(History("tally")))
    assert lies.verify() == 2
    assert {uid for uid, one in lies.seal.states.items() if one.kind == "stage"} == {"batch-1", "batch-2"}
    assert lies.seal.states["cents"].value == 300  # the script counts a batch after the barrier at its end
    counted = xcom(lab, "tally_counted", succeeded(lab, "tally_counted"), "count")
    assert counted == {"savepoint": saved["pointer"], "rows": 2}  # one a batch
    (event,) = lab.stack.client.call("GET", f"/api/v2/assets/events?asset_id={asset}")["asset_events"]
    assert event["extra"]["payload"] == {**saved, "kind": "savepoint", "bytes": tally.savepoint_bytes()}
    assert tally.end() == {"orders": 3, "cents": 600}
    assert lies.verify() == 2, "nothing deletes a savepoint with the job"


def watched_asset(lab: Lab, name: str) -> int:
    """Return the id of an asset, when its trigger has begun to watch: what was completed before that is no event."""
    client = lab.stack.client
    (asset,) = client.call("GET", f"/api/v2/assets?{urlencode({'name_pattern': name})}")["assets"]
    number: int = asset["id"]
    stored = f"/api/v2/assets/{number}/state-store"
    lab.wait_until(lambda: client.call("GET", stored)["asset_state_store"], lambda: f"nobody watches {name}")
    return number


def pause(lab: Lab, dag: str, paused: bool) -> None:
    with lab.writing:
        lab.stack.client.write("PATCH", f"/api/v2/dags/{dag}", {"is_paused": paused})


def succeeded(lab: Lab, dag: str) -> str:
    """The first run that does."""
    found: list[str] = []

    def there() -> bool:
        runs = lab.stack.client.call("GET", f"/api/v2/dags/{dag}/dagRuns")["dag_runs"]
        found.extend(one["dag_run_id"] for one in runs if one["state"] == "success")
        return bool(found)

    lab.wait_until(there, lambda: f"no run of {dag} succeeded")
    return found[0]


def upgrade(lab: Lab, to: Path, back: Path) -> str:
    with lab.writing:
        return lab.stack.client.trigger("tally_upgrade", {"application": str(to), "previous": str(back)})


ROLLBACK = ("stopped", "undeploy", "roll_back", "ended")


@pytest.mark.slow
def test_upgrade_is_rolled_back(lab: Lab) -> None:
    """First of a job that does not run: the stop is refused, and nothing is rolled back."""
    client = lab.stack.client
    refused = upgrade(lab, TALLY, TALLY)
    assert client.wait_for_run("tally_upgrade", refused, PATIENCE) == "failed"
    states = client.states("tally_upgrade", refused)
    assert (states["stop"], states["deploy"]) == ("failed", "upstream_failed")
    assert [states[name] for name in ROLLBACK] == ["success", "skipped", "skipped", "skipped"]

    tally = Tally(lab, "tally_deployed")
    two, three = tally.version("two.py"), tally.version("three.py", 'raise SystemExit("a bug")')
    tally.put(1, 2)
    tally.wait_for(completed(1))
    good = upgrade(lab, two, TALLY)
    tally.wait_for(stopping)
    tally.put(10)
    tally.wait_for(lambda state: len(state.attempts) == 2)
    tally.put(100)
    tally.put(1000)
    assert client.wait_for_run("tally_upgrade", good, PATIENCE) == "success", tally.report()
    states = client.states("tally_upgrade", good)
    assert {states.pop(name) for name in (*ROLLBACK, "start")} == {"skipped"}
    assert set(states.values()) == {"success"}
    first, second = tally.state.attempts
    assert (first.outcome, first.exit_code) == ("suspended", 79)
    assert second.application_digest != first.application_digest

    bad = upgrade(lab, three, two)
    tally.wait_for(stopping)
    tally.put(10_000)
    tally.wait_for(lambda state: len(state.launches) == 3)
    client.wait_for_task("tally_deployed", tally.id, "run", {"up_for_retry"}, seconds=PATIENCE)
    with lab.writing:
        client.set_task("tally_upgrade", bad, "healthy", "failed")  # somebody sees that it makes no checkpoints
    assert client.wait_for_run("tally_upgrade", bad, PATIENCE) == "failed"
    states = client.states("tally_upgrade", bad)
    assert {states[name] for name in ROLLBACK} == {"success"}
    assert states["start"] == "skipped", "its run has retries left"
    assert (states["healthy"], states["upgraded"]) == ("failed", "upstream_failed")
    tally.put(100_000)
    assert tally.end() == {"orders": 7, "cents": 111_113}
    assert tally.state.attempts[-1].application_digest == second.application_digest


def stopping(state: State) -> bool:
    return any(one.kind == "suspend_savepoint" for one in state.pending)
