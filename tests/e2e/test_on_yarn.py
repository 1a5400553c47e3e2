"""On a real Airflow and a real YARN, in cluster mode: workers, drivers and applications that are killed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from shutil import copy

import pytest

from airflow_checkpoint_provider.coordinator.liveness import read_beat
from airflow_checkpoint_provider.storage import LocalStore, S3Settings, S3Store
from tests.e2e.lab import PATIENCE, RESULT, TASK, Lab, Run, adopt_orphans, kill, parent, wait_gone
from tests.support.clusters import SMALL
from tests.support.jars import NoJars
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from tests.support.yarn import Yarn

pytestmark = [
    pytest.mark.slow,  # test_on_yarn.py of the operators lets a script act the cluster
    pytest.mark.timeout(1800),
]
DAGS = Path(__file__).parent / "dags"
PAGE = Path(__file__).parents[2] / "docs" / "orchestrate" / "on-yarn.md"


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    try:
        yarn = Yarn(tmp_path_factory.mktemp("yarn") / "yarn", recovers=True)
    except NoJars as error:
        pytest.skip(str(error))
    with yarn:
        yield yarn


@pytest.fixture(scope="module")
def on_yarn(yarn: Yarn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    adopt_orphans()
    folder = tmp_path_factory.mktemp("on-yarn")
    (folder / "dags").mkdir()
    copy(DAGS / "on_yarn.py", folder / "dags")
    (folder / "checkpoints").mkdir()
    local = LocalStore(str(folder / "checkpoints"))
    no_bucket = S3Store("none", "ckp", S3Settings())
    with Stack(folder / "airflow", folder / "dags", _environment(yarn, folder / "checkpoints")) as stack:
        stack.run("airflow", *_command_of_the_page(yarn.webapp))
        wait_until(lambda: len(stack.client.call("GET", "/api/v2/dags")["dags"]) == 8, 300, "DAG files are not read")
        yield Lab(stack, local, no_bucket, folder / "runs", folder / "airflow")


def _command_of_the_page(webapp: str) -> list[str]:
    """Return the command with which the documentation adds the connection, for this resource manager."""
    (command,) = re.findall(r"^```sh\nairflow (.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return shlex.split(command.replace("http://rm:8088", webapp))


def _environment(yarn: Yarn, root: Path) -> dict[str, str]:
    address = {"yarn_resourcemanager_webapp_address": yarn.webapp}
    no_mode = {"conn_type": "spark", "host": "yarn", "extra": address}
    storage = {"conn_type": "checkpoint_storage", "extra": {"root": str(root)}}
    return {
        "AIRFLOW_CONN_CHECKPOINT_DEFAULT": json.dumps(storage),
        "AIRFLOW_CONN_YARN": json.dumps(no_mode),
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
        "CHECKPOINT_HEARTBEAT_SECONDS": "2",
        "CONFS_OF_YARN": json.dumps({**SMALL, "spark.executor.instances": "1", **yarn.confs}),
        **yarn.environment,
    }


def application(run: Run) -> str:
    """Return the application of the newest driver, which has attached."""
    beat = read_beat(run.store, run.lab.journal(run.history).keys.attempt_beat(run.state.last_epoch))
    assert beat is not None
    assert beat.spark_application
    return beat.spark_application


def state_of(yarn: Yarn, application: str) -> str:
    (state,) = (app["state"] for app in yarn.applications() if app["id"] == application)
    return str(state)


def test_driver_of_a_lost_worker_is_followed_and_a_kill_ends_its_application(on_yarn: Lab, yarn: Yarn) -> None:
    run = on_yarn.at_two("on_yarn", "three")
    process, before = run.process(), len(yarn.applications())
    first = application(run)
    kill(parent(process), process)
    run.wait_adopted(2)
    run.wait_logged("[CKP110]", 2)
    run.wait_logged("driver says attached", 2)
    assert len(yarn.applications()) == before
    run.mark_failed()
    wait_until(lambda: state_of(yarn, first) == "KILLED", 120, run.report)
    run.ended("failed", 2)
    assert run.state.launches[-1].stop is not None
    run.open("two")
    run.open("three")
    run.clear()
    run.ended("success", 3)
    assert run.results == [{"attempt": 2, **RESULT}]
    assert (run.computed(1), run.computed(3)) == (["one"], ["two", "three"])
    _the_log_tells(run, 3)


def _the_log_tells(run: Run, try_number: int) -> None:
    """Return story, checkpoints and summary stand in the log, though the output of the driver does not."""
    log = run.log(try_number)
    for words in ("RESTORE", "[CKP101]", "driver says attached", "chk-2 completed", f"CHECKPOINTS {run.dag}.job"):
        assert words in log, log
    assert log.index("[CKP101]") < log.index("driver says") < log.index("CHECKPOINTS ")


def test_application_outlives_its_spark_submit(on_yarn: Lab, yarn: Yarn) -> None:
    run = on_yarn.at_two("on_yarn")
    before = len(yarn.applications())
    kill(run.jvm())
    run.wait_logged("[CKP503]", 1)
    run.open("two")
    run.ended("success", 1)
    assert len(yarn.applications()) == before
    assert run.results == [{"attempt": 1, **RESULT}]
    assert [launch.number for launch in run.state.launches] == [1]


def test_in_client_mode_a_killed_driver_is_followed_and_mark_failed_ends_the_next(on_yarn: Lab, yarn: Yarn) -> None:
    run = on_yarn.at_two("on_yarn_client", "three")
    kill(run.driver())
    run.wait_at("two", attempt=2)
    run.open("two")
    run.wait_stored("two")
    second, processes = application(run), (run.driver(), run.jvm())
    run.mark_failed()
    for process in processes:
        wait_gone(process)
    wait_until(lambda: state_of(yarn, second) not in ("ACCEPTED", "RUNNING"), 120, run.report)
    run.ended("failed", 2)
    run.open("three")
    run.clear()
    run.ended("success", 3)
    assert run.results == [{"attempt": 3, **RESULT}]
    assert [run.computed(number) for number in (1, 2, 3)] == [["one"], ["two"], ["three"]]
    assert run.state.launches[1].stop is not None
    assert run.attempt(2).outcome in ("failed", "cancelled")  # SIGTERM and the journal tell the driver to end


def test_queued_application_is_asked_for_by_the_trigger(on_yarn: Lab, yarn: Yarn) -> None:
    holder = on_yarn.at_two("on_yarn")
    run = on_yarn.start("on_yarn_queued")
    wait_queued(run, 1)
    yarn.end(newest(yarn))
    wait_queued(run, 2)
    assert "the cluster manager says FAILED" in run.log(1)
    holder.open("two")
    holder.ended("success", 1)
    run.ended("success", 2)
    assert run.results == [{"attempt": 1, **RESULT}]
    assert [launch.outcome for launch in run.state.launches] == ["failed", None]


def wait_queued(run: Run, try_number: int) -> None:
    """Wait until a task is deferred whose trigger has heard of the resource manager that its application waits."""
    run.client.wait_for_task(run.dag, run.id, TASK, {"deferred"}, try_number, PATIENCE)
    run.lab.wait_until(lambda: "the cluster manager says ACCEPTED" in run.log(try_number), run.report)


def newest(yarn: Yarn) -> str:
    return str(yarn.applications()[-1]["id"])


def test_application_that_waits_without_its_spark_submit_is_killed(on_yarn: Lab, yarn: Yarn) -> None:
    holder = on_yarn.at_two("on_yarn")
    run = on_yarn.start("on_yarn_queued_submit")
    run.wait_logged("(state: ACCEPTED)", 1)
    first = newest(yarn)
    kill(run.jvm())
    run.wait_logged("(state: ACCEPTED)", 2)
    assert "[CKP522]" in run.log(1)
    assert state_of(yarn, first) == "KILLED"
    holder.open("two")
    holder.ended("success", 1)
    run.ended("success", 2)
    assert run.results == [{"attempt": 1, **RESULT}]


def test_application_goes_on_when_the_resource_manager_is_restarted(on_yarn: Lab, yarn: Yarn) -> None:
    run = on_yarn.at_two("on_yarn")
    first, before = application(run), len(yarn.applications())
    yarn.restart()
    wait_until(lambda: state_of(yarn, first) == "RUNNING", 120, run.report)
    run.open("two")
    run.ended("success", 1)
    wait_until(lambda: state_of(yarn, first) == "FINISHED", 120, run.report)
    assert len(yarn.applications()) == before
    assert run.results == [{"attempt": 1, **RESULT}]


def test_application_that_a_restart_has_forgotten_is_followed_by_another(on_yarn: Lab, yarn: Yarn) -> None:
    run = on_yarn.at_two("on_yarn")
    yarn.restart(forgets=True)
    run.wait_at("two", attempt=2)
    assert "[CKP521]" in run.log(1)
    run.open("two")
    run.ended("success", 2)
    assert run.results == [{"attempt": 2, **RESULT}]
    assert (run.computed(1), run.computed(2)) == (["one"], ["two", "three"])


def test_killed_application_master_is_started_again_by_the_cluster(on_yarn: Lab, yarn: Yarn) -> None:
    run = on_yarn.at_two("on_yarn_twice")
    first = application(run)
    kill(*yarn.masters(first))
    run.wait_at("two", attempt=2)
    run.wait_logged("[CKP119]", 1)
    run.open("two")
    run.ended("success", 1)
    assert application(run) == first
    assert run.results == [{"attempt": 2, **RESULT}]
    assert {launch.number for launch in run.state.launches} == {1}
    assert run.xcom()["attempts"] == 2
    log = run.log(1)
    assert "after attempt 1 the cluster has started the driver again, attempt 2, from chk-1." in log
    assert log.index("[CKP119]") < log.index("chk-2 completed") < log.index("FINISHED in 2 attempts")


def test_application_that_an_administrator_killed_is_retried(on_yarn: Lab, yarn: Yarn) -> None:
    """The deploy mode and a Python file are in ``conf``, and the task asks the resource manager how the application ends."""
    run = on_yarn.at_two("on_yarn_by_conf")
    yarn.end(application(run))
    run.wait_running(2)
    run.open("two")
    run.ended("success", 2)
    assert run.results == [{"attempt": 2, **RESULT}]
    assert (run.computed(1), run.computed(2)) == (["one"], ["two", "three"])
    assert run.attempt(1).outcome == "failed"
    for words in ("state: KILLED", "AirflowException: attempt 1 failed (exit code", f"CHECKPOINTS {run.dag}.job"):
        assert words in run.log(1), run.log(1)
    _the_log_tells(run, 2)


def test_refusal_for_good_is_not_retried_whatever_yarn_makes_of_its_code(on_yarn: Lab, yarn: Yarn) -> None:
    run = on_yarn.start("on_yarn_refuses")
    run.ended("failed", 1)
    assert "uid 'counted' is used twice" in run.log(1)
    assert (run.attempt(1).outcome, run.attempt(1).exit_code) == ("failed", 3)
    assert run.client.task(run.dag, run.id, TASK)["try_number"] == 1
