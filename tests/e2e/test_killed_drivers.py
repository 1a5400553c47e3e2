"""On a real Airflow: a driver that dies. The retry goes on, and its log tells the story."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.e2e.lab import RESULT, TASK, Lab, Run, kill, wait_gone
from tests.support.folds import unfolded

pytestmark = pytest.mark.timeout(1800)
SPARK = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (INFO|WARN) ")  # how lines of Spark begin


@pytest.mark.slow  # test_example_dag.py kills a driver in the fast suite
@pytest.mark.parametrize(
    ("dag", "victim"),
    [
        pytest.param("stages", Run.driver, id="driver"),
        pytest.param("stages", Run.jvm, id="jvm"),
        pytest.param("stages_s3", Run.driver, id="driver in s3"),
    ],
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
    _spark_is_folded(run)
    _the_end_reads_the_same_everywhere(run, of_the_driver=victim == Run.driver)
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


def _spark_is_folded(run: Run) -> None:
    """What a person sees who opens no fold: after a failure the last lines of Spark, after a success none."""
    lines = run.log(2).splitlines()
    shown = unfolded(lines)
    assert [line for line in shown if SPARK.match(line)] == []
    assert any(SPARK.match(line) for line in lines)
    assert (" INFO DAGScheduler: " in run.log(2)) == (run.dag == "stages"), "the other DAG sets spark.log.level to OFF"
    for words in ("RESTORE ", "stage 'one': reused", "  driver says", "chk-2 completed", "CHECKPOINTS "):
        assert [line for line in shown if line.startswith(words)], lines
    before, _, after = run.log(1).partition("The last ")
    assert "[CKP502]" in after
    assert [line for line in unfolded(before.splitlines()) if SPARK.match(line)] == []
    again = [line for line in unfolded(after.splitlines()) if SPARK.match(line)]
    assert again
    assert again == [line for line in before.splitlines() if SPARK.match(line)][-len(again) :]


def _the_end_reads_the_same_everywhere(run: Run, *, of_the_driver: bool) -> None:
    """The Python of a driver whose JVM was killed may say first that it has failed, with an exit code of its own."""
    log = run.log(1)
    found = re.search(r"AirflowException: attempt 1 failed (\(exit code .*\))$", log, re.MULTILINE)
    assert found, log
    end = found[1]
    assert end == "(exit code 137: SIGKILL)" or not of_the_driver
    assert f"CHECKPOINTS {run.dag}.job, run {run.id}: FAILED {end}" in log
    (event,) = (line for line in run.log(2).splitlines() if line.startswith("  event "))
    assert event.endswith(end)


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


@pytest.mark.slow  # test_launch_end.py fails such a task without a retry
def test_refusal_for_good_is_not_retried(lab: Lab) -> None:
    run = lab.start("refuses")
    run.ended("failed", 1)
    log = run.log(1)
    assert "uid 'counted' is used twice" in log
    assert "[CKP605]" in log
    assert run.attempt(1).outcome == "failed"
    shown = unfolded(log.splitlines())
    (again,) = (number for number, line in enumerate(shown) if line.startswith("The last 60 lines of Spark's output:"))
    last_lines, error, table = shown[again + 1 : again + 61], shown[again + 61], shown[again + 62]
    assert "Traceback (most recent call last):" in last_lines
    assert error.startswith("  last error  airflow_checkpoint_provider.errors.WrongUse: uid 'counted' is used twice")
    assert table.startswith("CHECKPOINTS ")


@pytest.mark.slow  # test_launch_end.py reads the line
def test_plain_application_is_told_what_to_add(lab: Lab) -> None:
    run = lab.start("plain")
    run.ended("success", 1)
    log = run.log(1)
    assert "plain as ever" in log
    assert "[CKP501]" in log
