"""A task whose driver dies for want of memory, and the memory of its next try. A script stands in for ``spark-submit``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_checkpoint_provider.coordinator import oom_kills
from airflow_checkpoint_provider.coordinator.coordinator import open_history
from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator, _memory
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import LocalStore
from tests.support.recorded import Recorded
from tests.support.state_store import TaskStateStore
from tests.unit.operators.submissions import TaskInstance, confs, execute, values

HEAP, OVERHEAD = "spark.driver.memory", "spark.driver.memoryOverhead"
OF_HEAP = "echo 'Exception in thread \"main\" java.lang.OutOfMemoryError: Java heap space'; exit 52"
BY_YARN = (
    "echo 'AM Container for appattempt_17_0001_000001 exited with  exitCode: -104'; echo '(state: FAILED)'; exit 1"
)
KILLED = "kill -9 $$"


class Task:
    """One task; each try of it submits to a driver that does what the test says."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.options, self._try = folder, {"memory_after_oom": "1.5 x", **options}, 0
        self._store = TaskStateStore()

    def tries(self, does: str, **changed: Any) -> list[str]:
        """Return the arguments with which a try called ``spark-submit``, which fails."""
        script = self.folder / "bin" / "spark-submit"
        script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {self.folder}/argv\n{does}\n')
        self._try += 1
        with pytest.raises(AirflowException):
            execute(
                self.folder, ti=TaskInstance(try_number=self._try), store=self._store, **{**self.options, **changed}
            )
        return (self.folder / "argv").read_text().splitlines()

    @property
    def state(self) -> State:
        store = LocalStore(str(self.folder / "checkpoints"))
        return open_history(store, History("etl.job", "manual__1").prefix).journal.catch_up()

    @property
    def heaps(self) -> list[str]:
        return [launch.spec.memory[HEAP] for launch in self.state.launches]


def test_retry_has_more_memory_and_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = Task(folder, driver_memory="2g")
    assert values(task.tries(OF_HEAP), "--driver-memory") == ["2g"]
    assert (task.state.launches[-1].cause, task.state.launches[-1].exit_code) == ("driver_heap", 52)
    assert values(task.tries("exit 1"), "--driver-memory") == ["3g"]
    assert (
        "the driver ran out of memory (Java heap): this launch has spark.driver.memory=3g, 1.5 times that of launch 1"
        in capsys.readouterr().out
    )


def test_each_death_raises_once(folder: Path) -> None:
    task = Task(folder, driver_memory="2g")
    for does in (OF_HEAP, "exit 1", KILLED, OF_HEAP, "exit 1"):
        task.tries(does)
    assert task.heaps == ["2g", "3g", "3g", "3g", "4608m"]


def test_kill_alone_raises_nothing(folder: Path) -> None:
    task = Task(folder)
    task.tries(KILLED)
    argv = task.tries("exit 1")
    assert (values(argv, "--driver-memory"), task.heaps) == ([], ["1g", "1g"])
    assert [launch.cause for launch in task.state.launches] == ["", ""]
    assert task.state.launches[0].exit_code == 137


@pytest.mark.parametrize(
    "place", ["nowhere", "parameter", "conf", "properties", "defaults", "variable", "conf of the parameter"]
)
def test_raised_heap_wins_over_the_place_where_it_was_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (folder / "my.conf").write_text(f"{HEAP} 2g\n")
    (folder / "spark-defaults.conf").write_text(f"{HEAP}=2g\n")
    options: dict[str, dict[str, Any]] = {
        "parameter": {"driver_memory": "2g"},
        "conf": {"conf": {HEAP: "2g", "spark.app.x": "1"}},
        "properties": {"properties_file": str(folder / "my.conf")},
        "conf of the parameter": {"driver_memory": "2g", "conf": {HEAP: "8g"}},
    }
    if place == "defaults":
        monkeypatch.setenv("SPARK_CONF_DIR", str(folder))
    if place == "variable":
        monkeypatch.setenv("SPARK_DRIVER_MEMORY", "2g")
    task = Task(folder, **options.get(place, {}))
    task.tries(OF_HEAP)
    argv = task.tries("exit 1")
    assert values(argv, "--driver-memory") == ["1536m" if place == "nowhere" else "3g"]
    assert HEAP not in confs(argv)
    assert task.heaps == (["1g", "1536m"] if place == "nowhere" else ["2g", "3g"])


def test_larger_value_of_a_person_wins(folder: Path) -> None:
    task = Task(folder, conf={HEAP: "2g"})
    task.tries(OF_HEAP)
    argv = task.tries(OF_HEAP, conf={HEAP: "4g"})
    assert (values(argv, "--driver-memory"), confs(argv)[HEAP]) == ([], "4g")
    task.tries("exit 1", conf={HEAP: "4g"})
    assert task.heaps == ["2g", "4g", "6g"]


def test_at_the_limit_nothing_is_raised_further_and_the_log_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = Task(folder, memory_limit="1200m")
    task.tries(OF_HEAP)
    task.tries(OF_HEAP)
    assert "CKP508" not in capsys.readouterr().out
    assert values(task.tries("exit 1"), "--driver-memory") == ["1200m"]
    said = capsys.readouterr().out
    assert "NOT RAISED: spark.driver.memory=1200m, because memory_limit=1200m." in said
    assert "[CKP508]" in said
    assert task.heaps == ["1g", "1200m", "1200m"]


def test_container_that_yarn_killed_gets_more_overhead(folder: Path) -> None:
    task = Task(folder, conn_id="yarn", conf={OVERHEAD: "500m"})
    task.tries(BY_YARN)
    assert task.state.launches[-1].cause == "driver_overhead"
    argv = task.tries("exit 1")
    assert (confs(argv)[OVERHEAD], values(argv, "--driver-memory")) == ("750m", [])


def test_word_of_the_resource_manager_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ``spark-submit`` itself does not say how the application has ended."""
    asked: list[str] = []

    class Answer:
        status_code = 200

        def json(self) -> dict[str, Any]:
            said = "AM Container for appattempt_17_0001_000001 exited with  exitCode: -103"
            return {"app": {"state": "FAILED", "finalStatus": "FAILED", "diagnostics": said}}

    def get(url: str, **_: Any) -> Answer:
        asked.append(url)
        return Answer()

    extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": "http://rm:8088"}
    monkeypatch.setenv("AIRFLOW_CONN_YARN", json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra}))
    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.requests.get", get)
    task = Task(folder, conn_id="yarn")
    task.tries("echo 'Submitted application application_17_0001'; exit 1")
    assert task.state.launches[-1].cause == "driver_overhead"
    assert {*asked} == {"http://rm:8088/ws/v1/cluster/apps/application_17_0001"}


def test_container_of_the_worker_cannot_be_raised_and_the_log_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = iter(range(9))
    monkeypatch.setattr(oom_kills, "oom_kills", lambda: next(counts))
    task = Task(folder)
    task.tries(KILLED)
    assert task.state.launches[-1].cause == "driver_overhead"
    argv = task.tries("exit 1")
    assert OVERHEAD not in confs(argv)
    said = capsys.readouterr().out
    assert "which no conf of Spark raises" in said
    assert "[CKP509]" in said


def test_without_the_option_the_cause_is_told_and_nothing_raised(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = Task(folder, memory_after_oom=None)
    task.tries(OF_HEAP)
    argv = task.tries("exit 1")
    assert values(argv, "--driver-memory") == []
    assert [(launch.cause, launch.spec.memory) for launch in task.state.launches] == [("driver_heap", {}), ("", {})]
    assert 'ran out of memory (Java heap): memory_after_oom="1.5 x" would give' in capsys.readouterr().out


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"memory_after_oom": "0.5 x"}, "over 1"),
        ({"memory_after_oom": "-1"}, "over 1"),
        ({"memory_after_oom": "1.5 x", "memory_limit": "lots"}, "memory_limit='lots'"),
        ({"memory_limit": "16g"}, "no effect without memory_after_oom="),
        ({"memory_after_oom": 2, "memory_limit": "1g", "driver_memory": "2g"}, "below spark.driver.memory=2g"),
        ({"memory_after_oom": 2, "memory_limit": "1g", "executor_memory": "2g"}, "below spark.executor.memory=2g"),
        ({"memory_after_oom": 2, "memory_limit": "1g", "conf": {HEAP: "2g"}}, "below spark.driver.memory=2g"),
        ({"memory_after_oom": 2, "conf": {OVERHEAD: "much"}}, "is not a size of memory"),
    ],
)
def test_values_that_cannot_be_are_refused_at_parse(options: dict[str, Any], said: str) -> None:
    with DAG("etl", schedule=None), pytest.raises(InvalidConfig, match=said):
        CheckpointedSparkSubmitOperator(task_id="job", application="job.py", **options)


def test_templates_and_values_of_a_task_without_the_option_are_left_alone() -> None:
    with DAG("etl", schedule=None):
        template = {HEAP: "{{ params.memory }}"}
        CheckpointedSparkSubmitOperator(task_id="one", application="job.py", conf=template, memory_after_oom=2)
        CheckpointedSparkSubmitOperator(task_id="two", application="job.py", conf={HEAP: "much"})


def test_limit_below_a_file_is_refused_before_the_submit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(folder))
    (folder / "spark-defaults.conf").write_text(f"{HEAP} 2g\n")
    with pytest.raises(AirflowFailException, match=r"memory_limit='1536m' is below spark.driver.memory=2g"):
        execute(folder, memory_after_oom="1.5 x", memory_limit="1536m")
    assert not (folder / "argv").exists()
    assert not list((folder / "checkpoints").iterdir())


# -- the end of a driver -----------------------------------------------------------------------------------------------


class Kills(oom_kills.OomKills):
    def __init__(self, happened: bool) -> None:
        self._happened = happened

    def happened(self) -> bool:
        return self._happened


def attempt(recorded: Recorded, code: int | None = None) -> AttemptRecord:
    """Return an attempt, which its driver has ended with ``code``."""
    if code is not None:
        recorded.ended("02:51:07", "failed", code)
    return recorded.state.attempts[-1]


@pytest.mark.parametrize(
    ("ended", "code", "lines", "killed", "cause"),
    [
        (None, 52, (), False, "driver_heap"),
        (1, 52, (), False, "driver_heap"),  # its Python wrote the end when the JVM was gone
        (52, 52, (), False, ""),  # the script has ended with 52
        (1, 1, ("java.lang.OutOfMemoryError: Java heap space",), False, "driver_heap"),
        (None, 137, (), False, ""),
        (None, 137, (), True, "driver_overhead"),
        (1, 1, (), True, ""),  # the kernel has killed another process of the worker
        (None, None, (), True, ""),
    ],
)
def test_cause_of_a_driver_in_client_mode(
    recorded: Recorded, ended: int | None, code: int | None, lines: Sequence[str], killed: bool, cause: str
) -> None:
    assert _memory.cause_in_client(attempt(recorded, ended), code, lines, Kills(killed)) == cause


def test_exit_code_of_a_driver_that_never_attached_is_no_evidence_alone() -> None:
    assert _memory.cause_in_client(None, 52, (), Kills(False)) == ""


def test_exit_code_that_the_script_announced_in_a_cluster_is_its_own(recorded: Recorded) -> None:
    said = "exited with  exitCode: 52"
    assert _memory.cause_in_cluster(attempt(recorded), said) == "driver_heap"
    assert _memory.cause_in_cluster(attempt(recorded, 52), said) == ""
