"""The EMR of the tests, driven by boto3. A tiny script stands in for Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from tests.support.services.emr import ROLE, Emr
from tests.support.services.hosts import Host
from tests.support.waiting import wait_until
from tests.unit.support.applications import FAILS, TELLS, WAITS, script


@pytest.fixture
def emr(host: Host) -> Iterator[Emr]:
    with Emr(host) as emr:
        yield emr


def step(*words: str, on_failure: str = "CONTINUE") -> dict[str, Any]:
    jar = {"Jar": "command-runner.jar", "Args": ["spark-submit", *words]}
    return {"Name": "step", "ActionOnFailure": on_failure, "HadoopJarStep": jar}


def add(emr: Emr, cluster: str, *steps: dict[str, Any]) -> list[str]:
    added: list[str] = emr.client("emr").add_job_flow_steps(JobFlowId=cluster, Steps=list(steps))["StepIds"]
    return added


def state(emr: Emr, cluster: str, number: str) -> str:
    told: str = emr.client("emr").describe_step(ClusterId=cluster, StepId=number)["Step"]["Status"]["State"]
    return told


def wait_for(emr: Emr, cluster: str, number: str, wanted: str) -> None:
    wait_until(lambda: state(emr, cluster, number) == wanted, say=lambda: state(emr, cluster, number))


def run(emr: Emr, application: str, app: str, parameters: str = "", arguments: Sequence[str] = (), **more: Any) -> str:
    submit: dict[str, Any] = {"entryPoint": app, "entryPointArguments": list(arguments)}
    if parameters:
        submit["sparkSubmitParameters"] = parameters
    asked: str = emr.client("emr-serverless").start_job_run(
        applicationId=application, executionRoleArn=ROLE, jobDriver={"sparkSubmit": submit}, **more
    )["jobRunId"]
    return asked


def run_state(emr: Emr, application: str, number: str) -> str:
    told = emr.client("emr-serverless").get_job_run(applicationId=application, jobRunId=number)
    found: str = told["jobRun"]["state"]
    return found


def test_step_is_submitted_as_it_stands(emr: Emr, host: Host, tmp_path: Path) -> None:
    app, cluster = script(tmp_path, TELLS), emr.create_cluster()
    asked = [
        "--deploy-mode",
        "cluster",
        "--conf",
        "spark.yarn.appMasterEnv.A=of YARN",
        "--py-files",
        "/x.zip",
        app,
        "1 2",
    ]
    (number,) = add(emr, cluster, step(*asked))
    wait_for(emr, cluster, number, "COMPLETED")
    (driver,) = host.started
    assert driver.said().strip() == 'TELLS [["1 2"], "of YARN", null]'
    assert driver.command[2:] == [
        "--deploy-mode", "cluster", "--py-files", "/x.zip", "--conf", "spark.yarn.appMasterEnv.A=of YARN", "--master", "local[2]",
        "--deploy-mode", "client", app, "1 2",
    ]  # fmt: skip


def test_exit_code_decides_and_steps_run_one_after_the_other(emr: Emr, host: Host, tmp_path: Path) -> None:
    cluster = emr.create_cluster()
    first, second, third = add(
        emr, cluster, step(script(tmp_path, FAILS)), step(script(tmp_path, WAITS), on_failure="CANCEL_AND_WAIT"), step(script(tmp_path, "")),
    )  # fmt: skip
    wait_for(emr, cluster, first, "FAILED")
    wait_for(emr, cluster, second, "RUNNING")
    assert state(emr, cluster, third) == "PENDING"
    emr.steps.drivers[second].kill()
    wait_for(emr, cluster, second, "FAILED")
    assert state(emr, cluster, third) == "CANCELLED"
    assert len(host.started) == 2
    told = emr.client("emr").describe_step(ClusterId=cluster, StepId=second)["Step"]["Status"]
    assert told["StateChangeReason"]["Message"] == "exit code 137"


def test_step_that_is_cancelled_ends(emr: Emr, tmp_path: Path) -> None:
    cluster = emr.create_cluster()
    (number,) = add(emr, cluster, step(script(tmp_path, WAITS)))
    emr.steps.drivers[number].wait_for("HERE")
    told = emr.client("emr").cancel_steps(ClusterId=cluster, StepIds=[number])
    assert told["CancelStepsInfoList"] == [{"StepId": number, "Status": "SUBMITTED"}]
    assert (state(emr, cluster, number), emr.steps.drivers[number].left()) == ("CANCELLED", [])


def test_step_of_something_else_is_refused(emr: Emr, host: Host) -> None:
    with pytest.raises(ClientError, match="spark-submit"):
        add(emr, emr.create_cluster(), {"Name": "x", "HadoopJarStep": {"Jar": "command-runner.jar", "Args": ["hive"]}})
    assert not host.started


def test_step_runs_twice_if_boto_tries_again_after_a_lost_answer(emr: Emr, host: Host, tmp_path: Path) -> None:
    """The request has no token. By default boto3 tries again by itself."""
    cluster = emr.create_cluster()
    emr.lose_answer()
    (second,) = add(emr, cluster, step(script(tmp_path, "")))
    wait_for(emr, cluster, second, "COMPLETED")
    assert len(host.started) == 2


def test_lost_answer_and_refusal_reach_a_client_that_does_not_try_again(
    emr: Emr, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    cluster, asked = emr.create_cluster(), step(script(tmp_path, ""))
    emr.refuse_launch(400, "no room")
    with pytest.raises(ClientError, match="no room"):
        add(emr, cluster, asked)
    assert not host.started
    emr.lose_answer()
    with pytest.raises(ConnectionClosedError):
        add(emr, cluster, asked)
    assert len(host.started) == 1


def test_job_run_is_submitted_as_it_stands(emr: Emr, host: Host, tmp_path: Path) -> None:
    app, application = script(tmp_path, TELLS), emr.create_application()
    parameters = "--conf spark.a='x y' --conf spark.emr-serverless.driverEnv.A=there --py-files /x.zip"
    defaults = {"classification": "spark-defaults", "properties": {"spark.a": "over", "spark.b": "kept"}}
    number = run(
        emr, application, app, parameters, ["1 2"], configurationOverrides={"applicationConfiguration": [defaults]}
    )
    wait_until(lambda: run_state(emr, application, number) == "SUCCESS")
    (driver,) = host.started
    assert driver.said().strip() == 'TELLS [["1 2"], "there", null]'
    assert driver.command[2:8] == ["--py-files", "/x.zip", "--conf", "spark.a=x y", "--conf", "spark.b=kept"]


def test_job_run_fails_and_is_cancelled(emr: Emr, tmp_path: Path) -> None:
    application = emr.create_application()
    failed, waits = (run(emr, application, script(tmp_path, text)) for text in (FAILS, WAITS))
    wait_until(lambda: run_state(emr, application, failed) == "FAILED")
    assert run_state(emr, application, waits) == "RUNNING"
    emr.client("emr-serverless").cancel_job_run(applicationId=application, jobRunId=waits)
    assert (run_state(emr, application, waits), emr.runs.drivers[waits].left()) == ("CANCELLED", [])


def test_job_run_with_the_same_token_runs_once(emr: Emr, host: Host, tmp_path: Path) -> None:
    application, app = emr.create_application(), script(tmp_path, WAITS)
    emr.lose_answer()
    first = run(emr, application, app, clientToken="mine")  # boto3 tries again, with the token
    assert run(emr, application, app, clientToken="mine") == first
    assert len(host.started) == 1
