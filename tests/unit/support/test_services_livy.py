"""The Livy of the tests, driven by Airflow's own hook and operator. A tiny script stands in for Spark."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import requests
from airflow.providers.apache.livy.hooks.livy import BatchState, LivyHook
from airflow.providers.apache.livy.operators.livy import LivyOperator
from airflow.sdk.exceptions import AirflowException

from tests.support.processes import alive
from tests.support.services.hosts import Host
from tests.support.services.livy import Livy
from tests.support.services.tiny_submit import TINY
from tests.support.state_store import TaskStateStore
from tests.support.waiting import wait_until
from tests.unit.support.applications import DEAF, FAILS, WAITS, script


@pytest.fixture
def livy(host: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[Livy]:
    with Livy(host) as livy:
        monkeypatch.setenv("AIRFLOW_CONN_LIVY_DEFAULT", livy.connection)
        yield livy


@pytest.fixture
def hook(livy: Livy) -> LivyHook:
    return LivyHook()


class Instance:
    """A task instance, as far as the operator uses it."""

    stats_tags: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self.pushed: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


def run(operator: LivyOperator) -> Any:
    return operator.execute({"ti": Instance(), "task_state_store": TaskStateStore()})  # type: ignore[typeddict-item]


def test_operator_waits_until_the_application_has_ended(livy: Livy, tmp_path: Path) -> None:
    app = script(tmp_path, "print('told the log')")
    assert run(LivyOperator(task_id="t", file=app, polling_interval=1)) == 0
    assert livy.batches[0].state == "success"
    assert "told the log" in livy.batches[0].log()


def test_operator_fails_with_an_application_that_fails(livy: Livy, tmp_path: Path) -> None:
    app = script(tmp_path, FAILS)
    with pytest.raises(AirflowException, match="Batch 0 did not succeed"):
        run(LivyOperator(task_id="t", file=app, polling_interval=1))
    assert (livy.batches[0].state, livy.batches[0].driver.code) == ("dead", 3)


def test_request_becomes_the_words_of_spark_submit(hook: LivyHook, host: Host, tmp_path: Path) -> None:
    app, library = (
        script(tmp_path, "import sys, library; print('SAYS', library.WORD, sys.argv)"),
        tmp_path / "library.py",
    )
    library.write_text("WORD = 'hello'")
    hook.post_batch(
        app, args=["a b", 2], py_files=[str(tmp_path)], files=["/x"], jars=["/y.jar"], driver_memory="1g", num_executors=3, name="named",
        conf={"spark.a": "1,2", "spark.jars": "/z.jar", "spark.long": "with spaces = and signs"}, class_name="C",
    )  # fmt: skip
    (driver,) = host.started
    assert driver.wait() == 0, driver.said()
    assert driver.said().strip() == f"SAYS hello ['{app}', 'a b', '2']"
    assert driver.command[2:] == [
        "--class", "C", "--name", "named", "--py-files", str(tmp_path), "--conf", "spark.a=1,2", "--conf", "spark.jars=/y.jar,/z.jar",
        "--conf", "spark.long=with spaces = and signs", "--conf", "spark.files=/x", "--conf", "spark.driver.memory=1g",
        "--conf", "spark.executor.instances=3", "--master", "local[2]", "--deploy-mode", "client", app, "a b", "2",
    ]  # fmt: skip


def test_nothing_of_the_test_is_there(
    hook: LivyHook, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROM_THE_TEST", "1")
    look = "import os, importlib.util as u; print('FROM_THE_TEST' in os.environ, u.find_spec('airflow_checkpoint_provider'), os.getcwd())"
    hook.post_batch(script(tmp_path, look))
    (driver,) = host.started
    driver.wait()
    assert driver.said().strip() == f"False None {driver.folder}"


def test_driver_that_is_killed_from_outside_is_dead(livy: Livy, hook: LivyHook, tmp_path: Path) -> None:
    number = hook.post_batch(script(tmp_path, WAITS))
    driver = livy.batches[number].driver
    driver.wait_for("HERE")
    assert hook.get_batch_state(number) == BatchState.RUNNING
    os.kill(driver.pid, signal.SIGKILL)
    wait_until(lambda: hook.get_batch_state(number) == BatchState.DEAD)
    assert (driver.code, driver.shell_code) == (-9, 137)


def test_driver_that_the_cluster_manager_kills_is_killed(livy: Livy, hook: LivyHook, tmp_path: Path) -> None:
    number = hook.post_batch(script(tmp_path, WAITS))
    livy.kill_application(number)
    assert hook.get_batch_state(number) == BatchState.KILLED


def test_delete_ends_the_whole_group(livy: Livy, hook: LivyHook, tmp_path: Path) -> None:
    number = hook.post_batch(script(tmp_path, WAITS))
    driver = livy.batches[number].driver
    driver.wait_for("HERE")
    wait_until(lambda: len(driver.left()) == 2, say="no child of the driver")
    group = driver.left()
    assert hook.delete_batch(number) == {"msg": "deleted"}
    assert not any(map(alive, group))
    with pytest.raises(AirflowException, match="Session '0' not found"):
        hook.get_batch_state(number)


def test_group_that_ignores_sigterm_ends_too(livy: Livy, hook: LivyHook, tmp_path: Path) -> None:
    number = hook.post_batch(script(tmp_path, DEAF))
    driver = livy.batches[number].driver
    driver.wait_for("HERE")
    hook.delete_batch(number)
    assert (driver.code, driver.left()) == (-9, [])


@pytest.mark.parametrize("status", [400, 500])
def test_refused_launch_starts_nothing(livy: Livy, hook: LivyHook, host: Host, tmp_path: Path, status: int) -> None:
    livy.refuse_launch(status, "no room")
    app = script(tmp_path, "")
    with pytest.raises(AirflowException, match=f"Status code: {status}.*no room"):
        hook.post_batch(app)
    assert not host.started
    assert hook.post_batch(app) == 0


def test_driver_runs_though_the_answer_is_lost(livy: Livy, hook: LivyHook, host: Host, tmp_path: Path) -> None:
    livy.lose_answer()
    app = script(tmp_path, WAITS)
    with pytest.raises(requests.ConnectionError):
        hook.post_batch(app, name="once")
    assert (livy.requests, len(host.started)) == ([("POST", "/batches")], 1)
    assert requests.get(f"{livy.url}/batches", timeout=60).json()["sessions"][0]["name"] == "once"
    with pytest.raises(AirflowException, match="Duplicate session name"):
        hook.post_batch(app, name="once")
    assert len(host.started) == 1


def test_driver_outlives_livy(livy: Livy, hook: LivyHook, tmp_path: Path) -> None:
    number = hook.post_batch(script(tmp_path, WAITS))
    driver = livy.batches[number].driver
    livy.stop()
    with pytest.raises(requests.ConnectionError):
        hook.get_batch_state(number)
    assert driver.code is None
    livy.start()
    assert hook.get_batch_state(number) == BatchState.RUNNING


def test_livy_without_recovery_gives_the_same_number_twice(livy: Livy, hook: LivyHook, tmp_path: Path) -> None:
    first = hook.post_batch(script(tmp_path, WAITS))
    driver = livy.batches[first].driver
    livy.stop()
    livy.forget()
    livy.start()
    with pytest.raises(AirflowException, match="not found"):
        hook.get_batch_state(first)
    assert driver.code is None
    assert hook.post_batch(script(tmp_path, "")) == first


def test_log_has_the_last_lines_in_pages(livy: Livy, hook: LivyHook, tmp_path: Path) -> None:
    number = hook.post_batch(script(tmp_path, "for n in range(300): print('line', n)"))
    livy.batches[number].driver.wait()
    page = hook.get_batch_logs(number, 100, 100)
    assert (page["from"], page["total"], page["log"][0], page["log"][-1]) == (100, 202, "line 199", "line 298")
    assert hook.get_batch(number)["log"][-2:] == ["line 299", "\nstderr: "]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"file": "job.py"}, "Path 'job.py' is not absolute"),
        ({"file": "/job.py", "conf": {"spark.submit.deployMode": "cluster"}}, "Blacklisted .* spark.submit.deployMode"),
        ({"file": "/job.py", "name": "12"}, "Invalid session name: 12"),
    ],
)
def test_livy_refuses_as_livy_does(hook: LivyHook, host: Host, asked: dict[str, Any], why: str) -> None:
    with pytest.raises(AirflowException, match=f"Status code: 400.*{why}"):
        hook.post_batch(**asked)
    assert not host.started


def test_nothing_is_left_when_the_host_ends(tmp_path: Path) -> None:
    with Host(tmp_path / "host", spark_submit=TINY) as host, Livy(host) as livy:
        body = {"file": script(tmp_path, WAITS)}
        assert requests.post(f"{livy.url}/batches", json=body, timeout=60).status_code == 201
        (driver,) = host.started
        driver.wait_for("HERE")
        wait_until(lambda: len(driver.left()) == 2)
        group = driver.left()
    assert not any(map(alive, group))
