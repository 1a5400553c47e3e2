"""On a real Airflow: a job that is submitted by Livy. Its driver has what travelled with the request, and nothing else."""

from __future__ import annotations

import pytest

from tests.e2e.lab import RESULT, Lab, Run, kill, parent, wait_gone
from tests.support.services.hosts import Hosted
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(1800)


def drivers(run: Run) -> list[Hosted]:
    """Return what Livy has started for the run."""
    assert run.lab.livy is not None
    return [hosted for hosted in run.lab.livy.host.started if str(run.folder) in " ".join(hosted.command)]


@pytest.mark.slow  # test_livy.py of the operators hands a launch over, test_mixin.py retries
def test_retry_of_a_killed_driver_continues_after_the_last_stage(lab: Lab) -> None:
    run = lab.at_two("livy", "three")
    (driver,) = drivers(run)
    driver.kill()
    run.open("two")
    run.wait_logged("reused one; now running", 2)
    run.open("three")
    run.ended("success", 2)
    assert (run.computed(1), run.computed(2)) == (["one"], ["two", "three"])
    assert run.results == [{"attempt": 2, **RESULT}]
    assert run.xcom().items() >= {"job": "livy.job", "attempts": 2, "ended": "finished"}.items()
    assert run.state.retained == ()
    log = run.log(2)
    for words in ("[CKP101]", "driver says attached", "chk-2 completed", "chk-3 completed", "CHECKPOINTS livy.job"):
        assert words in log, log
    assert "did not succeed" in run.log(1)


@pytest.mark.slow  # test_mixin.py adopts a driver
def test_next_try_follows_the_living_driver_of_a_lost_worker(lab: Lab) -> None:
    run = lab.at_two("livy")
    process = run.process()
    kill(parent(process), process)
    run.wait_adopted(2)
    run.open("two")
    run.ended("success", 2)
    assert len(drivers(run)) == 1
    assert run.results == [{"attempt": 1, **RESULT}]
    assert "[CKP110]" in run.log(2)


@pytest.mark.slow  # test_mixin.py kills such a task
def test_clear_ends_the_driver_and_continues(lab: Lab) -> None:
    run = lab.at_two("livy")
    (driver,) = drivers(run)
    run.clear()
    wait_gone(driver.pid)
    run.wait_at("two", attempt=2)
    run.open("two")
    run.ended("success", 2)
    assert run.results == [{"attempt": 2, **RESULT}]
    assert run.computed(2) == ["two", "three"]


@pytest.mark.slow  # test_mixin.py kills such a task
def test_adopted_driver_that_is_marked_failed_is_killed_by_livy(lab: Lab) -> None:
    run = lab.at_two("livy")
    (driver,) = drivers(run)
    process = run.process()
    kill(parent(process), process)
    run.wait_adopted(2)
    run.mark_failed()
    wait_gone(driver.pid)
    run.ended("failed", 2)
    assert run.results == []
    livy = lab.livy
    assert livy is not None

    def is_known() -> bool:
        return any(batch.driver is driver for batch in livy.batches.values())

    wait_until(lambda: not is_known(), say="Livy was not asked to delete it")  # it ends the driver first


@pytest.mark.slow  # the model's scenario a_launch_that_ended loses such a worker
def test_worker_lost_after_the_end_of_the_driver_submits_nothing(lab: Lab) -> None:
    run = lab.start("livy", "end")
    run.wait_at("end")
    assert run.attempt(1).outcome == "finished"
    kill(run.process())
    run.ended("success", 2)
    run.open("end")
    assert len(drivers(run)) == 1
    assert run.results == [{"attempt": 1, **RESULT}]
    assert "[CKP111]" in run.log(2)
