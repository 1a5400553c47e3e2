"""On a real Airflow: what a person does to a task, while its job runs and afterwards."""

from __future__ import annotations

import pytest

from tests.e2e.lab import PATIENCE, RESULT, TASK, Lab, kill, wait_gone

pytestmark = pytest.mark.timeout(1800)
ALL = ["one", "two", "three"]


def test_task_marked_failed_stops_the_driver_and_a_clear_continues(lab: Lab) -> None:
    """The task that is marked did not start the driver: only the journal can tell it."""
    run = lab.at_two()
    driver, first = run.driver(), run.task()["max_tries"]
    kill(run.process())
    run.wait_adopted(2)
    run.wait_running(2)
    assert run.task()["max_tries"] == first
    run.mark_failed()
    wait_gone(driver)
    assert (run.attempt(1).outcome, run.attempt(1).exit_code) == ("cancelled", 79)
    run.ended("failed", 2)
    run.open("two")
    run.clear()
    run.ended("success", 3)
    assert run.task()["max_tries"] != first
    assert (run.computed(1), run.computed(3)) == (["one"], ["two", "three"])
    assert run.results == [{"attempt": 2, **RESULT}]
    assert "[CKP101]" in run.log(3)


@pytest.mark.parametrize("dag", ["stages", pytest.param("stages_s3", marks=pytest.mark.slow)])
def test_task_cleared_while_running_continues(lab: Lab, dag: str) -> None:
    run = lab.at_two(dag)
    driver, process = run.driver(), run.process()
    run.clear()
    wait_gone(driver)
    wait_gone(process)
    assert "was killed" in str(run.state.launches[0].stop)
    run.open("two")
    run.ended("success", 2)
    assert run.attempt(1).outcome in ("cancelled", "failed")  # its own signal may come before the word in the journal
    assert (run.computed(1), run.computed(2)) == (["one"], ["two", "three"])
    assert run.results == [{"attempt": 2, **RESULT}]


def test_task_cleared_after_the_end_starts_again(lab: Lab) -> None:
    run = lab.start("stages")
    run.ended("success", 1)
    run.clear()
    run.wait_for(lambda state: len(state.launches) == 2)
    run.ended("success", 2)
    assert (run.computed(1), run.computed(2)) == (ALL, ALL)
    assert run.results == [{"attempt": 1, **RESULT}, {"attempt": 2, **RESULT}]
    assert run.state.launches[1].restore_point is None


def test_task_cleared_after_the_end_cannot_continue_from_deleted_state(lab: Lab) -> None:
    run = lab.start("continues")
    run.ended("success", 1)
    run.clear()
    run.client.wait_for_task(run.dag, run.id, TASK, {"failed"}, 2, PATIENCE)
    log = run.log(2)
    assert "[CKP404]" in log
    assert "retention=" in log
    assert len(run.state.launches) == 1
