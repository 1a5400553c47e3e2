"""On a real Airflow and a real standalone cluster in cluster mode: the worker is released while the driver runs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.lab import KEY_ID, PATIENCE, RESULT, SECRET, TASK, TOKEN, Lab, Run, kill, wait_gone
from tests.support.clusters import cluster_mode
from tests.support.processes import alive

pytestmark = pytest.mark.timeout(1800)
ALL = ["one", "two", "three"]


@pytest.fixture(scope="module")
def cluster(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The lab, with a connection to a cluster that runs drivers."""
    with cluster_mode(tmp_path_factory.mktemp("standalone")) as ports:
        extra = json.dumps({"deploy-mode": "cluster", "rest-port": ports["rest"]})
        where = {"conn_type": "spark", "host": "spark://127.0.0.1", "port": ports["rpc"], "extra": extra}
        with lab.writing:
            lab.stack.client.write("POST", "/api/v2/connections", {"connection_id": "standalone", **where})
        yield lab
        with lab.writing:
            lab.stack.client.call("DELETE", "/api/v2/connections/standalone")


def deferred_at_two(lab: Lab, *closed: str) -> Run:
    """Return a run whose task is deferred, and whose driver waits before the second stage."""
    run = lab.at_two("deferred", *closed)
    wait_deferred(run)
    return run


def wait_deferred(run: Run, try_number: int = 1) -> None:
    run.client.wait_for_task(run.dag, run.id, TASK, {"deferred"}, try_number, PATIENCE)


def stored_trigger(run: Run) -> str:
    """Return what Airflow's database holds of the task's trigger."""
    number = run.task()["trigger"]["id"]
    with sqlite3.connect(f"file:{run.lab.database}/airflow.db?mode=ro", uri=True) as database:
        (found,) = database.execute("select kwargs from trigger where id = ?", (number,)).fetchone()
    return str(found)


def launched(run: Run) -> Any:
    return run.client.xcom(run.dag, run.id, TASK, "launch")


@pytest.mark.slow  # test_deferral.py of the operators ends a task, and test_launch.py of the triggers wakes it
def test_deferred_task_ends_as_one_that_waited(cluster: Lab) -> None:
    run = deferred_at_two(cluster)
    run.wait_for(lambda _: launched(run)["attempt"] == 1)
    run.open("two")
    run.ended("success", 1)
    assert run.results == [{"attempt": 1, **RESULT}]
    assert run.xcom()["ended"] == "finished"
    assert run.state.retained == ()
    log = run.log(1)
    for words in ("[CKP100]", "driver says attached", "chk-1 completed at stage 'one'", "FINISHED in 1 attempt"):
        assert words in log, log
    assert log.count("chk-2 completed") == 1


@pytest.mark.slow  # test_launch.py of the triggers knows each argument that is stored
def test_database_holds_no_key_of_a_deferred_task(cluster: Lab) -> None:
    run = cluster.start("deferred_plain_s3")
    wait_deferred(run)
    arguments = stored_trigger(run)
    assert "in_s3" in arguments
    assert run.history.prefix in arguments
    assert not any(secret in arguments for secret in (KEY_ID, SECRET, TOKEN))
    run.ended("success", 1)
    assert "[CKP501]" in run.log(1)


@pytest.mark.slow  # test_deferral.py of the operators ends a task whose driver is silent
def test_killed_driver_of_a_deferred_task_is_retried(cluster: Lab) -> None:
    run = deferred_at_two(cluster)
    kill(run.driver())
    run.open("two")
    run.ended("success", 2)
    assert (run.computed(1), run.computed(2)) == (["one"], ["two", "three"])
    assert run.results == [{"attempt": 2, **RESULT}]
    assert run.attempt(1).outcome in ("lost", "failed")
    assert "[CKP101]" in run.log(2)


@pytest.mark.slow  # test_deferral.py of the operators asks a cluster manager, too
@pytest.mark.parametrize(
    ("dag", "state", "tries", "said"),
    [
        ("deferred_broken", "failed", 3, "before it attached"),
        ("deferred_refuses", "failed", 1, "[CKP605]"),
    ],
)
def test_driver_that_ends_early_ends_the_deferred_task(
    cluster: Lab, dag: str, state: str, tries: int, said: str
) -> None:
    run = cluster.start(dag)
    run.ended(state, tries)
    assert said in run.log(tries)


@pytest.mark.slow  # test_deferral.py of the operators clears such a task
def test_task_cleared_while_it_is_deferred_continues(cluster: Lab) -> None:
    run = deferred_at_two(cluster)
    driver = run.driver()
    run.clear()
    wait_gone(driver)
    run.open("two")
    run.ended("success", 2)
    assert "cleared while it was deferred" in str(run.state.launches[0].stop)
    assert run.attempt(1).outcome == "cancelled"
    assert (run.computed(1), run.computed(2)) == (["one"], ["two", "three"])


@pytest.mark.slow  # test_launch.py of the triggers asks for the stop
def test_task_marked_failed_while_it_is_deferred_stops_its_driver(cluster: Lab) -> None:
    run = deferred_at_two(cluster)
    driver = run.driver()
    run.mark_failed()
    wait_gone(driver)
    assert "marked failed while it was deferred" in str(run.state.launches[0].stop)
    assert (run.attempt(1).outcome, run.attempt(1).exit_code) == ("cancelled", 79)
    run.ended("failed", 1)
    run.open("two")
    run.clear()
    run.ended("success", 2)
    assert run.results == [{"attempt": 2, **RESULT}]


@pytest.mark.slow  # test_launch.py of the triggers begins twice
def test_driver_goes_on_without_a_triggerer(alone: Lab, cluster: Lab) -> None:
    run = deferred_at_two(alone, "three")
    driver = run.driver()
    alone.stack.kill("triggerer")
    run.open("two")
    run.wait_stored("two")
    assert alive(driver)
    show = ("checkpoints", "show", "deferred.job", run.id)
    alone.wait_until(lambda: "[CKP115]" in alone.stack.run("airflow", *show), run.report)
    assert alive(driver)
    alone.stack.start("triggerer")
    alone.wait_until(lambda: "[CKP115]" not in alone.stack.run("airflow", *show), run.report)
    run.open("three")
    run.ended("success", 1)
    assert run.results == [{"attempt": 1, **RESULT}]
