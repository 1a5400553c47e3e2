"""On a real Airflow: what a person does to a task, while its job runs and afterwards."""

from __future__ import annotations

import pytest

from airflow_checkpoint_provider.protocol.keys import History
from tests.e2e.lab import JOBS, PATIENCE, RESULT, TASK, Lab, Run, kill, wait_gone

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


@pytest.mark.slow  # the test before this one clears a task, too
@pytest.mark.parametrize("dag", ["stages", "stages_s3"])
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


@pytest.mark.slow  # test_generation.py knows a clear, the model's scenario a_cleared_run starts again
def test_task_cleared_after_the_end_starts_again(lab: Lab) -> None:
    run = lab.start("stages")
    run.ended("success", 1)
    run.clear()
    run.wait_for(lambda state: len(state.launches) == 2)
    run.ended("success", 2)
    assert (run.computed(1), run.computed(2)) == (ALL, ALL)
    assert run.results == [{"attempt": 1, **RESULT}, {"attempt": 2, **RESULT}]
    assert run.state.launches[1].restore_point is None


@pytest.mark.slow  # test_launches.py refuses such a clear
def test_task_cleared_after_the_end_cannot_continue_from_deleted_state(lab: Lab) -> None:
    run = lab.start("continues")
    run.ended("success", 1)
    run.clear()
    run.client.wait_for_task(run.dag, run.id, TASK, {"failed"}, 2, PATIENCE)
    log = run.log(2)
    assert "[CKP404]" in log
    assert "retention=" in log
    assert len(run.state.launches) == 1


@pytest.mark.slow
def test_corrected_script_counts_in_a_retry_and_after_a_clear(lab: Lab) -> None:
    """The stages are reused, and the value is that of the script as it is now: with its new code, and under its right name."""
    script, history = lab.folder("script") / "counts.py", History("counts.job")
    script.parent.mkdir(parents=True)
    right = (JOBS / "counts.py").read_text()
    wrong_number = right.replace("+ a.count()", "+ 1")
    wrong_name = right.replace('"rows"', '"rowz"', 1)
    assert right not in (wrong_number, wrong_name)

    script.write_text(wrong_number)
    run = lab.start("counts", "end", history=history, script=str(script))
    run.wait_at("end")
    run.wait_stored("b")
    script.write_text(right)
    kill(run.driver(script))
    run.open("end")
    last = last_try(run, "success")
    assert (run.computed(last), run.results[-1]["rows"]) == ([], 10)
    assert "value 'rows': the script set 10, stage 'b' of attempt 1 had stored 1; 10 counts" in run.log(last)

    script.write_text(wrong_name)
    run = lab.start("counts", history=history, script=str(script))
    assert "[CKP424]" in run.log(last_try(run, "failed"))
    script.write_text(right)
    run.clear()
    last = last_try(run, "success")
    assert (run.computed(last), run.results[-1]["rows"]) == ([], 20)
    assert "value 'rows': the script set 20, stage 'b' of attempt 3 had stored 10; 20 counts" in run.log(last)
    assert "only an attempt that did not finish has set it: value 'rowz'" in run.log(last)


def last_try(run: Run, state: str) -> int:
    """Wait for the run's end. A try that a busy Airflow loses beside its driver is not what is tested here."""
    assert run.client.wait_for_run(run.dag, run.id, PATIENCE) == state, run.report()
    number: int = run.task()["try_number"]
    return number
