"""Jobs of Spark that Airflow's own operators run in EMR. Runs on Linux."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.services.telling import ARGUMENTS, CONF, archive, check, script
from tests.support.providers import Environment
from tests.support.services.emr import ROLE, Emr
from tests.support.services.hosts import Host
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # test_services_emr.py starts the same without the provider
OPERATORS = "airflow.providers.amazon.aws.operators.emr"
STEPS, SERVERLESS = f"{OPERATORS}:EmrAddStepsOperator", f"{OPERATORS}:EmrServerlessStartJobOperator"


@pytest.fixture
def emr(host: Host) -> Iterator[Emr]:
    with Emr(host) as emr:
        yield emr


def variables(emr: Emr) -> dict[str, str]:
    return {"AIRFLOW_CONN_AWS_DEFAULT": emr.connection}


def steps(cluster: str, *words: str) -> dict[str, Any]:
    jar = {"Jar": "command-runner.jar", "Args": ["spark-submit", *words]}
    step = {"Name": "job", "ActionOnFailure": "CONTINUE", "HadoopJarStep": jar}
    return {
        "job_flow_id": cluster,
        "steps": [step],
        "wait_for_completion": True,
        "waiter_delay": 1,
        "waiter_max_attempts": 600,
    }


def job_run(application: str, app: str, **more: Any) -> dict[str, Any]:
    driver = {"sparkSubmit": {"entryPoint": app, **more}}
    return {
        "application_id": application, "execution_role_arn": ROLE, "job_driver": driver, "waiter_delay": 1, "waiter_max_attempts": 600,
    }  # fmt: skip


def test_step_is_a_real_spark_submit(emr: Emr, amazon: Environment, tmp_path: Path) -> None:
    confs = ["--conf", f"spark.my.conf={CONF}", "--conf", "spark.yarn.appMasterEnv.A=1"]
    words = [
        "--master",
        "yarn",
        "--deploy-mode",
        "cluster",
        *confs,
        "--py-files",
        archive(),
        script(tmp_path),
        *ARGUMENTS,
    ]
    task = amazon.run(STEPS, steps(emr.create_cluster(), *words), variables(emr))
    assert task.code == 0, task.log
    assert task.result == list(emr.steps.drivers)
    (driver,) = emr.host.started
    check(driver, ["1", None])


def test_job_run_is_a_real_spark_submit(emr: Emr, amazon: Environment, tmp_path: Path) -> None:
    options = ["--conf", "spark.emr-serverless.driverEnv.A=1", "--py-files", archive()]
    defaults = {"classification": "spark-defaults", "properties": {"spark.my.conf": CONF}}
    asked = job_run(
        emr.create_application(), script(tmp_path), entryPointArguments=ARGUMENTS, sparkSubmitParameters=shlex.join(options),
    )  # fmt: skip
    asked["configuration_overrides"] = {"applicationConfiguration": [defaults]}
    task = amazon.run(SERVERLESS, asked, variables(emr))
    assert task.code == 0, task.log
    assert [task.result] == list(emr.runs.drivers)
    (driver,) = emr.host.started
    check(driver, ["1", None])


@pytest.fixture
def waiting(tiny_host: Host) -> Iterator[Emr]:
    """Yield an EMR whose drivers are a script without Spark."""
    with Emr(tiny_host) as emr:
        yield emr


def test_killed_driver_fails_the_task(waiting: Emr, amazon: Environment, app: str, tmp_path: Path) -> None:
    log = tmp_path / "task"
    with amazon.running(STEPS, steps(waiting.create_cluster(), app), variables(waiting), log) as task:
        wait_until(lambda: waiting.host.started, 300, log.read_text)
        waiting.host.started[0].kill()
        assert task.wait(300) == 1, log.read_text()
    assert "FAILED" in log.read_text()


def test_killed_task_cancels_its_job_run(waiting: Emr, amazon: Environment, app: str, tmp_path: Path) -> None:
    log = tmp_path / "task"
    asked = job_run(waiting.create_application(), app)
    with amazon.running(SERVERLESS, asked, variables(waiting), log) as task:
        wait_until(lambda: "Serverless Job status is" in log.read_text(), 300, log.read_text)
        task.send_signal(signal.SIGTERM)
        assert task.wait(300) == 143, log.read_text()
    (driver,) = waiting.host.started
    assert driver.left() == []
