"""On a real Airflow: each way to clear a run that did not finish, and a clear that discards what Airflow has stored for the task.

No release that discards was to be had: the task takes this one for it, and the test deletes the keys.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.lab import RESULT, TASK, Lab, Run, wait_gone

pytestmark = pytest.mark.timeout(1800)
ALL = ["one", "two", "three"]


def failed(lab: Lab, dag: str) -> Run:
    """A run that was marked as failed when its first stage was stored, and that could go on."""
    run = lab.at_two(dag)
    driver = run.driver()
    run.mark_failed()
    wait_gone(driver)
    run.ended("failed", 1)
    run.open("two")
    return run


def of_run(run: Run) -> None:
    path = f"/api/v2/dags/{run.dag}/dagRuns/{run.id}/clear"
    with run.lab.writing:
        run.client.write("POST", path, {"dry_run": False, "only_failed": False})


def by_command(run: Run) -> None:
    with run.lab.writing:
        run.lab.stack.run("airflow", "tasks", "clear", "--yes", run.dag)


@pytest.mark.slow  # test_people.py clears a task instance
@pytest.mark.parametrize(("dag", "clear"), [("stages", of_run), ("clears", by_command)], ids=["run", "command"])
def test_run_that_did_not_finish_continues(lab: Lab, dag: str, clear: Callable[[Run], None]) -> None:
    run = failed(lab, dag)
    clear(run)
    run.ended("success", 2)
    assert (run.computed(1), run.computed(2)) == (["one"], ["two", "three"])
    assert run.results == [{"attempt": 2, **RESULT}]


@pytest.mark.slow  # test_newer_airflow.py has the first line, and the branch that the launch opens
def test_run_starts_again_after_a_clear_that_discards(lab: Lab) -> None:
    run = failed(lab, "discards")
    assert run.client.store(run.dag, run.id, TASK).keys() == {"checkpoint_generation", "checkpoint_history"}
    with run.lab.writing:
        run.client.call("DELETE", f"/api/v2/dags/{run.dag}/dagRuns/{run.id}/taskInstances/{TASK}/state-store")
    run.clear()
    run.ended("success", 2)
    assert (run.computed(1), run.computed(2)) == (["one"], ALL)
    assert f"checkpoints restore discards.{TASK} {run.id} --from chk-1`" in run.log(2)
    lines = [line for line in run.log(2).splitlines() if "[CKP" in line]
    assert ["[CKP117]" in lines[0], lines[1].startswith("GIVES UP chk-1")] == [True, True], lines


@pytest.mark.slow  # test_newer_airflow.py keeps the keys, too
def test_run_continues_after_a_clear_that_keeps(lab: Lab) -> None:
    run = failed(lab, "discards")
    run.clear()
    run.ended("success", 2)
    assert (run.computed(1), run.computed(2)) == (["one"], ["two", "three"])
