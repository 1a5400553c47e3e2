"""On a real Airflow: triggerers die, sleep and wake up while a task waits in them. Nothing is lost, nothing is done twice."""

from __future__ import annotations

import signal

import pytest

from airflow_checkpoint_provider.coordinator.liveness import Process
from tests.e2e.lifecycle.conftest import SECONDS, Run, Stage
from tests.support.processes import send
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(400)


def test_killed_it_is_started_again_and_the_wait_goes_on(stage: Stage) -> None:
    job, run = stage.job("waits_killed"), stage.run("waits_killed")
    run.wait_for("deferred", "trigger")
    (asked,) = job.state.pending
    stage.stack.kill("triggerer")
    job.complete(asked.id)
    stage.stack.start("triggerer")
    assert run.ended() == ("success", {"trigger": "success"})
    assert run.client.task(run.dag, run.id, "trigger")["try_number"] == 1
    assert [one.id for one in job.state.checkpoints] == [asked.id]


@pytest.mark.slow
def test_asleep_another_takes_over_and_its_waking_changes_nothing(stage: Stage) -> None:
    """Longer than the threshold after which it is given up. Awake again, it thinks that somebody killed the task."""
    job, run = stage.job("waits_asleep"), stage.run("waits_asleep")
    run.wait_for("deferred", "trigger")
    (asked,) = job.state.pending
    wait_until(lambda: _triggerer(run), SECONDS, lambda: "no triggerer took the task")
    first = _triggerer(run)
    asleep = stage.stack.parts["asleep"] = stage.stack.parts.pop("triggerer")
    try:
        send(asleep.all_pids(), signal.SIGSTOP)
        stage.stack.start("triggerer")
        wait_until(lambda: _triggerer(run) not in (first, None), SECONDS, lambda: f"still {first}")
    finally:
        send(asleep.all_pids(), signal.SIGCONT)
    wait_until(lambda: _noticed(stage, run), SECONDS, lambda: "it did not notice that it was given up")
    assert run.states() == {"trigger": "deferred"}
    job.complete(asked.id)
    assert run.ended() == ("success", {"trigger": "success"})
    assert [(one.id, one.status) for one in job.state.checkpoints] == [(asked.id, "retained")]
    stage.stack.kill("asleep")


def test_a_driver_whose_host_is_lost_ends_the_wait(stage: Stage) -> None:
    """Nobody starts another one, so nobody else would ever end it."""
    job = stage.job("waits_lost")
    job.beat(Process(host="elsewhere", boot="another"))
    run = stage.run("waits_lost")
    assert run.ended() == ("failed", {"trigger": "failed"})
    (asked,) = job.state.checkpoints
    assert (asked.reason, asked.words) == ("driver lost", "nothing was heard of attempt 1 for 6 s")
    assert "nothing was heard of attempt 1 for 6 s" in run.log("trigger")


def _triggerer(run: Run) -> int | None:
    """The one in which the task waits."""
    job = run.client.task(run.dag, run.id, "trigger")["triggerer_job"]
    return job["id"] if job else None


def _noticed(stage: Stage, run: Run) -> bool:
    logs = (stage.stack.home / "logs" / f"dag_id={run.dag}").rglob("*.trigger.*")
    return any("Trigger cancelled by user action" in log.read_text() for log in logs)
