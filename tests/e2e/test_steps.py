"""On a real Airflow: a checkpoint's life, by hand and in one line; what fails, what is skipped, what is done twice."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from airflow_checkpoint_provider.coordinator.liveness import Process
from tests.e2e.acted import DrivenRun, running_job
from tests.e2e.lab import PATIENCE, SECRET, Lab
from tests.support.causes import cause_of

pytestmark = pytest.mark.timeout(1800)
SENSORS = ("poked", "rescheduled", "deferred")


def test_steps_by_hand_with_every_way_of_waiting(lab: Lab) -> None:
    """And meanwhile the secrets are in the connection alone."""
    job, run = running_job(lab, "by_hand"), DrivenRun(lab, "by_hand")
    asked = run.asked()
    assert job.checkpoint(asked["id"]).request.gated
    for sensor, state in zip(SENSORS, ("running", "up_for_reschedule", "deferred"), strict=True):
        run.wait_for(state, sensor)
    waiting = tables(lab)
    assert asked["pointer"] in waiting["trigger"]
    job.acknowledge(asked["id"])
    job.confirm(asked["id"], PATIENCE)
    ended, states = run.ended()
    assert (ended, states.pop("abort"), set(states.values())) == ("success", "skipped", {"success"})
    secrets_are_only_in_the_connection(lab, waiting)
    assert job.checkpoint(asked["id"]).status == "retained"
    assert [run.xcom(one) for one in (*SENSORS, "finalize", "notify")] == [asked] * 5
    assert run.xcom("audit") == 14
    # A busy scheduler may take a task that resumes quickly for lost, and try it again
    log = run.log("deferred", run.client.task(run.dag, run.id, "deferred")["try_number"])
    assert "[CKP206]" in log
    assert "[CKP6" not in log  # the triggerer found connection and store

    before = job.state
    run.clear(*SENSORS, "finalize", "notify", "abort")  # and nothing changes
    run.wait_for("success", *SENSORS, "finalize", "notify", try_number=2)
    ended, states = run.ended()
    assert (ended, states.pop("abort"), set(states.values())) == ("success", "skipped", {"success"})
    assert job.state == before
    assert [run.xcom(one) for one in (*SENSORS, "finalize", "notify")] == [asked] * 5


@pytest.mark.slow  # test_checkpoint.py of the sensors fails, test_trigger_checkpoint.py of the operators asks again
def test_abort_ends_all_waits_and_a_clear_requests_again(lab: Lab) -> None:
    job, run = running_job(lab, "by_hand_aborted"), DrivenRun(lab, "by_hand_aborted")
    asked = run.asked()
    run.wait_for("deferred", "deferred")
    job.abort(asked["id"], "expired", "batch 412 has been running for 14 min")
    ended, states = run.ended()
    assert (ended, states["abort"]) == ("failed", "success")
    assert {states[one] for one in SENSORS} == {"failed"}
    assert {states[one] for one in ("audit", "finalize", "notify")} == {"upstream_failed"}
    for sensor in SENSORS:
        last = run.client.task(run.dag, run.id, sensor)["try_number"]
        # No retry can mend it. A busy scheduler may take one that resumes quickly for lost, and try it again.
        assert last == 1 or sensor != "poked"
        assert "batch 412" in run.log(sensor, last)
        assert f"Clear task {run.dag}.trigger of run {run.id}" in run.log(sensor, last)
    run.clear("trigger", *SENSORS, "audit", "finalize", "notify", "abort")
    run.wait_for("success", "trigger", try_number=2)
    again = run.asked()
    assert again["id"] > asked["id"]
    job.acknowledge(again["id"])
    job.confirm(again["id"], PATIENCE)
    ended, states = run.ended()
    assert (ended, states.pop("abort"), set(states.values())) == ("success", "skipped", {"success"})


@pytest.mark.slow  # test_checkpoint.py of the task groups has the edges and rules, the first test runs such tasks
def test_tasks_after_the_group_run_only_if_the_checkpoint_completed(lab: Lab) -> None:
    job = running_job(lab, "one_line")
    runs = {verdict: DrivenRun(lab, "one_line", verdict=verdict) for verdict in ("good", "bad", "none")}
    for run in runs.values():
        asked = run.asked("checkpoint.trigger")
        run.wait_for("deferred", "checkpoint.acknowledged")
        job.acknowledge(asked["id"])
    job.confirm(runs["good"].asked("checkpoint.trigger")["id"], PATIENCE)
    assert said(runs["good"]) == ("success", "success", "skipped", "success", "success")
    assert said(runs["bad"]) == ("failed", "failed", "success", "upstream_failed", "upstream_failed")
    assert said(runs["none"]) == ("success", "skipped", "skipped", "skipped", "skipped")
    left = {verdict: job.checkpoint(run.xcom("checkpoint.trigger")["id"]) for verdict, run in runs.items()}
    assert [one.status for one in left.values()] == ["retained", "aborted", "pending"]
    assert (left["bad"].reason, cause_of(left["bad"]).phase) == ("aborted by a DAG", "finalize")
    assert cause_of(left["bad"]).details == f"by task one_line.checkpoint.abort of run {runs['bad'].id}"
    assert "ABORTED" in runs["bad"].log("checkpoint.abort")


def said(run: DrivenRun) -> tuple[str | None, ...]:
    """How the run ended, and its tasks from the audit on."""
    ended, states = run.ended()
    group = [states[f"checkpoint.{name}"] for name in ("audit", "abort", "notify")]
    return (ended, *group, states["after"])


@pytest.mark.slow  # test_trigger_checkpoint.py of the operators fails with a retry, too
def test_trigger_without_a_running_job_leaves_nothing(lab: Lab) -> None:
    run = DrivenRun(lab, "waits")
    ended, states = run.ended()
    assert (ended, states) == ("failed", {"trigger": "failed"})
    assert run.client.task(run.dag, run.id, "trigger")["try_number"] == 3  # it may have started meanwhile
    assert "[CKP230]" in run.log("trigger")


@pytest.mark.slow  # test_lost_driver.py of the operators aborts such a checkpoint
def test_lost_host_of_the_driver_ends_the_wait(lab: Lab) -> None:
    """Nobody starts another one, so nobody else would ever end it."""
    job = running_job(lab, "waits_lost")
    job.beat(Process(host="elsewhere", boot_id="another"))
    run = DrivenRun(lab, "waits_lost")
    assert run.ended() == ("failed", {"trigger": "failed"})
    (asked,) = job.state.checkpoints
    assert (asked.reason, cause_of(asked).details) == ("driver lost", "nothing was heard of attempt 1 for 12 s")
    assert "nothing was heard of attempt 1 for 12 s" in run.log("trigger")


def secrets_are_only_in_the_connection(lab: Lab, waiting: dict[str, str]) -> None:
    """Look into logs of tasks, triggers and processes, XCom, and what is stored of tasks; ``waiting`` are the tables while one waited."""
    for stored in (waiting, tables(lab)):
        assert [name for name, rows in stored.items() if SECRET in rows] == ["connection"]
    logs = [log.read_text(errors="replace") for log in lab.stack.home.rglob("*.log")]
    assert any("[CKP206]" in log for log in logs)
    assert not any(SECRET in log for log in logs)


def tables(lab: Lab) -> dict[str, str]:
    """All rows of Airflow's database, as text, by table."""
    with closing(sqlite3.connect(f"file:{lab.stack.home}/airflow.db?mode=ro", uri=True)) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: str(database.execute(f'SELECT * FROM "{name}"').fetchall()) for name in names}
