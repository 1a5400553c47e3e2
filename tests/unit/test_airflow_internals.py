"""The private names of Airflow and its Spark provider that we touch exist, and do what we think."""

from __future__ import annotations

import inspect
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from airflow.models.connection import Connection as Stored
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Connection
from airflow.sdk._shared.secrets_masker import redact
from airflow.sdk.api.datamodels._generated import TaskStatesResponse
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.definitions.param import process_params
from airflow.sdk.execution_time import comms, context, task_runner
from airflow.sdk.execution_time.secrets import DEFAULT_SECRETS_SEARCH_PATH_WORKERS, ExecutionAPISecretsBackend
from airflow.sdk.execution_time.xcom import XCom
from airflow.secrets import BaseSecretsBackend

from airflow_checkpoint_provider import _airflow


@pytest.fixture(autouse=True)
def spark_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[1]"}')


def test_installed_versions_are_those_that_were_read() -> None:
    assert version("apache-airflow").startswith("3.3.")
    assert version("apache-airflow-providers-apache-spark") == "6.3.4"
    assert _airflow.untried() == {}


def test_task_processes_announce_their_supervisor() -> None:
    assert "SUPERVISOR_COMMS" in task_runner.__annotations__


def test_workers_use_the_api_server_secrets_backend() -> None:
    name = f"{ExecutionAPISecretsBackend.__module__}.{ExecutionAPISecretsBackend.__qualname__}"
    assert name in DEFAULT_SECRETS_SEARCH_PATH_WORKERS


def test_answers_of_the_supervisor_become_connections() -> None:
    nothing = dict.fromkeys(("schema", "login", "password", "port", "extra"))
    answer = comms.ConnectionResult.model_validate({"conn_id": "x", "conn_type": "spark", "host": "local", **nothing})
    found = context._process_connection_result_conn(answer)
    assert (found.conn_id, found.host) == ("x", "local")


def test_connections_under_test_are_found() -> None:
    tested = Connection(conn_id="x", conn_type="spark", host="local")
    token = context._preset_connections.set({"x": tested})
    try:
        assert _airflow.find_connection("x") is tested
    finally:
        context._preset_connections.reset(token)


def test_functions_that_read_what_is_written_for_a_connection_have_these_names() -> None:
    owners = (BaseSecretsBackend, Connection, Connection, Stored, Stored)
    assert [name for owner, name in zip(owners, _airflow.READERS, strict=True) if not hasattr(owner, name)] == []


def test_instances_of_mapped_tasks_are_made_by_these_names() -> None:
    assert list(inspect.signature(MappedOperator._expand_mapped_kwargs).parameters) == ["self", "context"]
    assert list(inspect.signature(MappedOperator.unmap).parameters) == ["self", "resolve"]
    assert list(inspect.signature(process_params).parameters) == ["dag", "task", "dagrun_conf", "suppress_exception"]


def test_passwords_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SECRET", '{"conn_type": "spark", "password": "tell-nobody"}')
    assert _airflow.find_connection("secret")
    assert redact("it is tell-nobody") == "it is ***"


def test_links_are_pushed_by_key_and_value() -> None:
    assert list(inspect.signature(task_runner._xcom_push_to_db).parameters) == ["ti", "key", "value"]


def test_spark_hook_has_the_attributes_that_are_used() -> None:
    hook = SparkSubmitHook()
    assert hook._submit_sp is None
    assert hook._env is None
    assert hook._connection["master"] == "local[1]"
    assert "deploy_mode" in hook._connection
    assert list(inspect.signature(hook._build_spark_submit_command).parameters) == ["application"]
    assert list(inspect.signature(hook._process_spark_submit_log).parameters) == ["itr"]
    assert (hook._is_yarn_cluster_mode, hook._yarn_application_id, hook._yarn_rm_base_url) == (False, None, None)
    assert list(inspect.signature(hook._kill_yarn_application).parameters) == ["application_id"]
    assert not inspect.signature(hook._get_yarn_rm_base_url).parameters
    assert not inspect.signature(hook._validate_yarn_track_via_rm_api_config).parameters


def test_spark_hook_knows_the_driver_by_one_of_three_names() -> None:
    hook = SparkSubmitHook()
    assert _airflow.spark_driver_id(hook) is None
    hook._driver_id = "driver-1"
    assert _airflow.spark_driver_id(hook) == "driver-1"
    hook._yarn_application_id = "application_1_2"
    assert _airflow.spark_driver_id(hook) == "application_1_2"
    hook._kubernetes_driver_pod, hook._connection["namespace"] = "job-driver", "etl"
    assert _airflow.spark_driver_id(hook) == "etl:job-driver"
    assert SparkSubmitOperator._parse_k8s_external_id("etl:job-driver") == ("etl", "job-driver")


def test_post_submit_commands_run_once(tmp_path: Path) -> None:
    hook = SparkSubmitHook(post_submit_commands=[f"sh -c 'echo ran >> {tmp_path}/runs'"])
    for _ in range(2):
        _airflow.run_post_submit_commands(hook)
    assert (tmp_path / "runs").read_text() == "ran\n"


def test_triggers_ask_for_states_and_push_xcoms_by_these_names() -> None:
    asks = inspect.signature(task_runner.RuntimeTaskInstance.get_task_states).parameters
    assert {"dag_id", "task_ids", "run_ids"} <= set(asks)
    assert {"key", "value", "dag_id", "run_id", "task_id"} <= set(inspect.signature(XCom.set).parameters)


def test_task_that_was_cleared_is_in_the_answer_about_states() -> None:
    """Without a state. A task that was deleted is not in it."""
    states = {"manual__1": {"job": None}}
    body = TaskStatesResponse(task_states=states).model_dump_json()
    answer = comms.TaskStatesResult.from_api_response(TaskStatesResponse.model_validate_json(body))
    assert comms.TaskStatesResult.model_validate(answer.model_dump()).task_states == states


@pytest.mark.parametrize(
    ("index", "answer", "state"),
    [
        (None, {"manual__1": {"job": None}}, None),
        (None, {"manual__1": {"job": "deferred"}}, "deferred"),
        (None, {}, _airflow.DELETED),
        (3, {"manual__1": {"job_3": None}}, None),
        (3, {"manual__1": {"job_30": "running"}}, _airflow.DELETED),
    ],
)
def test_state_tells_a_deleted_task_from_a_cleared_one(
    monkeypatch: pytest.MonkeyPatch, index: int | None, answer: dict[str, Any], state: str | None
) -> None:
    monkeypatch.setattr(task_runner.RuntimeTaskInstance, "get_task_states", lambda **_: answer)
    assert _airflow.task_state("etl", "manual__1", "job", index) == state


def test_secrets_in_lines_of_spark_are_masked_as_the_hook_does() -> None:
    assert _airflow.masked("db.password=tell-nobody day=1") == "db.password=****** day=1"


def test_spark_hook_arguments_are_those_of_the_parent() -> None:
    operator = SparkSubmitOperator(
        task_id="x", application="job.py", conf={"a": "1"}, name="n", jars="j.jar", verbose=True, deploy_mode="client",
        application_args=["--day", "1"], env_vars={"E": "v"}, num_executors=3, total_executor_cores=4,
        post_submit_commands=["true"],
    )  # fmt: skip
    ours, theirs = SparkSubmitHook(**_airflow.spark_hook_arguments(operator)), operator._get_hook()
    for hook in (ours, theirs):
        del hook.__dict__["_last_submit_log_lines"]  # deques are equal only if they hold something
    assert vars(ours) == vars(theirs)
    assert vars(ours)["_num_executors"] == 3
