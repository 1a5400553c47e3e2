"""On a real Airflow: a driver that dies. The retry goes on, and its log tells the story."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.lab import RESULT, TASK, Lab, Run, kill, wait_gone

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.parametrize(
    ("dag", "victim"),
    [("stages", Run.driver), ("stages", Run.jvm), ("stages_s3", Run.driver)],
    ids=["driver", "jvm", "driver in s3"],
)
def test_retry_continues_after_the_last_stage(lab: Lab, dag: str, victim: Callable[[Run], int]) -> None:
    run = lab.at_two(dag, "three")
    driver, generation = run.driver(), run.task()["max_tries"]
    kill(victim(run))
    wait_gone(driver)
    run.open("two")
    run.wait_logged("reused one; now running", 2)
    _airflow_shows_the_history(run)
    run.open("three")
    run.ended("success", 2)
    assert (run.computed(1), run.computed(2)) == (["one"], ["two", "three"])
    assert run.results == [{"attempt": 2, **RESULT}]
    assert run.task()["max_tries"] == generation
    _the_log_tells(run)
    _state_is_deleted(run)


def _airflow_shows_the_history(run: Run) -> None:
    """While the driver runs."""
    history = f"{run.store.uri}/{run.history.prefix}"
    launched = run.client.xcom(run.dag, run.id, TASK, "launch")
    assert launched == {"job": f"{run.dag}.job", "run": run.id, "attempt": 2, "history": history, "restored": "chk-1"}
    assert run.task()["rendered_fields"]["history"] == history


def _the_log_tells(run: Run) -> None:
    log = run.log(2)
    for words in (
        "RESTORE",
        "[CKP101]",
        "driver says attached",
        "application unchanged",
        f"CHECKPOINTS {run.dag}.job",
        "restore saved",
    ):
        assert words in log, log
    assert log.index("[CKP101]") < log.index("driver says") < log.index("CHECKPOINTS ")
    assert "CHECKPOINTS " in run.log(1)


def _state_is_deleted(run: Run) -> None:
    answer = run.xcom()
    kept = {"job": f"{run.dag}.job", "run": run.id, "attempts": 2, "ended": "finished"}
    assert answer.items() >= kept.items()
    assert run.state.retained == ()
    prefix = f"{run.history.prefix}/"
    left = {one.key.removeprefix(prefix).split("/")[0] for one in run.store.list(run.history.prefix)}
    assert left == {"journal", "heartbeat"}
    arguments = ["--conn-id", "in_s3"] if run.dag.endswith("_s3") else []
    table = run.lab.stack.run("airflow", "checkpoints", "show", f"{run.dag}.job", run.id, *arguments)
    assert "FINISHED in 2 attempts" in table
    assert answer["checkpoint"] in table


def test_refusal_for_good_is_not_retried(lab: Lab) -> None:
    run = lab.start("refuses")
    run.ended("failed", 1)
    log = run.log(1)
    assert "uid 'counted' is used twice" in log
    assert "[CKP605]" in log
    assert run.attempt(1).outcome == "failed"


def test_plain_application_is_told_what_to_add(lab: Lab) -> None:
    run = lab.start("plain")
    run.ended("success", 1)
    log = run.log(1)
    assert "plain as ever" in log
    assert "[CKP501]" in log
