"""On a real Airflow, of which a part is lost: a triggerer dies or sleeps, a database or an API server cannot be reached."""

from __future__ import annotations

import signal

import pytest

from airflow_checkpoint_provider.hooks.connections import ConnectionUnreadable
from tests.e2e.acted import DrivenRun, running_job
from tests.e2e.lab import PATIENCE, Lab, Look
from tests.support.processes import send
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.slow  # test_steps_by_hand_with_every_way_of_waiting defers, test_checkpoint.py of the triggers keeps the deadline
def test_wait_continues_after_the_triggerer_is_killed(alone: Lab) -> None:
    job, run = running_job(alone, "waits_killed"), DrivenRun(alone, "waits_killed")
    run.wait_for("deferred", "trigger")
    (asked,) = job.state.pending
    alone.stack.kill("triggerer")
    job.complete(asked.id)
    alone.stack.start("triggerer")
    assert run.ended() == ("success", {"trigger": "success"})
    assert run.client.task(run.dag, run.id, "trigger")["try_number"] == 1
    assert [one.id for one in job.state.checkpoints] == [asked.id]


@pytest.mark.slow
def test_second_triggerer_takes_over_from_a_sleeping_one(alone: Lab) -> None:
    """Longer than the threshold after which it is given up. Awake again, it thinks that somebody killed the task."""
    job, run = running_job(alone, "waits_asleep"), DrivenRun(alone, "waits_asleep")
    run.wait_for("deferred", "trigger")
    (asked,) = job.state.pending
    wait_until(lambda: _triggerer(run), PATIENCE, "no triggerer took the task")
    first = _triggerer(run)
    asleep = alone.stack.parts["asleep"] = alone.stack.parts.pop("triggerer")
    try:
        send(asleep.all_pids(), signal.SIGSTOP)
        alone.stack.start("triggerer")
        wait_until(lambda: _triggerer(run) not in (first, None), PATIENCE, lambda: f"still {first}")
    finally:
        send(asleep.all_pids(), signal.SIGCONT)
    wait_until(lambda: _noticed(alone, run), PATIENCE, "it did not notice that it was given up")
    assert run.states() == {"trigger": "deferred"}
    job.complete(asked.id)
    assert run.ended() == ("success", {"trigger": "success"})
    assert [(one.id, one.status) for one in job.state.checkpoints] == [(asked.id, "retained")]
    alone.stack.kill("asleep")


def _triggerer(run: DrivenRun) -> int | None:
    """The one in which the task waits."""
    job = run.client.task(run.dag, run.id, "trigger")["triggerer_job"]
    return job["id"] if job else None


def _noticed(alone: Lab, run: DrivenRun) -> bool:
    logs = (alone.stack.home / "logs" / f"dag_id={run.dag}").rglob("*.trigger.*")
    return any("Trigger cancelled by user action" in log.read_text() for log in logs)


@pytest.mark.slow  # test_airflow_changed.py tells an unreadable connection from an absent one
def test_connection_is_unreadable_without_the_api_server(alone: Lab) -> None:
    look = Look(alone, "nowhere")
    alone.stack.kill("api-server")
    try:
        assert look.answer() == ConnectionUnreadable.code
    finally:
        alone.stack.start("api-server")
        alone.stack.wait_until_healthy()


@pytest.mark.slow
def test_connection_is_unreadable_without_the_database(alone: Lab) -> None:
    look = Look(alone, "nowhere")
    alone.database.unlink()
    try:
        assert look.answer() == ConnectionUnreadable.code
    finally:
        alone.database.symlink_to(alone.stack.home)
