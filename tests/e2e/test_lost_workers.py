"""On a real Airflow: parts of a task are lost while its driver lives on, or after it has ended."""

from __future__ import annotations

import pytest

from tests.e2e.lab import RESULT, Lab, Run, exit_code, kill, parent, wait_gone

pytestmark = pytest.mark.timeout(1800)


def one_launch(run: Run) -> bool:
    state = run.state
    return [one.number for one in state.launches] == [1] and [one.outcome for one in state.attempts] == ["finished"]


@pytest.mark.slow  # test_people loses a worker, too
@pytest.mark.parametrize("dag", ["stages", "stages_s3"])
def test_next_try_follows_the_living_driver_of_a_lost_worker(lab: Lab, dag: str) -> None:
    run = lab.at_two(dag)
    process, driver = run.process(), run.driver()
    kill(parent(process), process)
    run.wait_adopted(2)
    assert run.driver() == driver
    run.open("two")
    run.ended("success", 2)
    assert one_launch(run)
    assert run.results == [{"attempt": 1, **RESULT}]
    assert run.xcom()["attempts"] == 1
    log = run.log(2)
    assert "[CKP110]" in log
    assert "spark-submit" not in log
    assert "CHECKPOINTS " in log
    assert run.state.retained == ()


@pytest.mark.slow  # the model's scenario tries_of_one_run lets two tries plan
def test_one_of_two_executes_wins_after_a_lost_supervisor(lab: Lab) -> None:
    run = lab.at_two()
    process = run.process()
    kill(parent(process))
    run.wait_adopted(2)
    run.wait_running(2)
    old, new = process, run.process()
    assert parent(old) != parent(new)
    run.open("two")
    run.ended("success", 2)
    wait_gone(old)
    assert one_launch(run)
    assert run.results == [{"attempt": 1, **RESULT}]


@pytest.mark.slow  # so does the scenario a_launch_that_ended of the model
def test_worker_lost_after_the_end_of_the_driver_submits_nothing(lab: Lab) -> None:
    run = lab.start("stages", "end")
    run.wait_at("end")
    assert run.attempt(1).outcome == "finished"
    kill(run.process())
    run.ended("success", 2)
    run.open("end")
    assert one_launch(run)
    assert run.results == [{"attempt": 1, **RESULT}]
    assert "[CKP111]" in run.log(2)
    assert run.state.retained == ()


@pytest.mark.slow  # test_launch.py of the operators replaces such a driver, test_loop_kills.py fences one
def test_living_driver_is_fenced_if_not_durable(lab: Lab) -> None:
    run = lab.at_two("fences")
    jvm = run.jvm()
    kill(run.process())
    run.wait_at("two", attempt=2)
    assert exit_code(jvm) == 79
    run.open("two")
    run.ended("success", 2)
    assert run.results == [{"attempt": 2, **RESULT}]
    assert (run.computed(1), run.computed(2)) == (["one"], ["two", "three"])
