"""The Databricks of the tests, by plain HTTP. A tiny script stands in for Spark; its slow tests have Airflow's operator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.services.databricks import Databricks
from tests.support.services.hosts import Host
from tests.support.waiting import wait_until
from tests.unit.support.applications import FAILS, TELLS, WAITS, script


@pytest.fixture
def databricks(host: Host) -> Iterator[Databricks]:
    with Databricks(host) as databricks:
        yield databricks


def post(databricks: Databricks, verb: str, body: dict[str, Any]) -> requests.Response:
    return requests.post(f"{databricks.url}/api/2.2/jobs/runs/{verb}", json=body, timeout=60)


def run(databricks: Databricks, app: str, **more: Any) -> int:
    python = {"python_file": app, "parameters": ["1 2"]}
    cluster = {"spark_conf": {"spark.a": "b"}, "spark_env_vars": {"A": "there"}}
    answer = post(databricks, "submit", {"spark_python_task": python, "new_cluster": cluster, **more})
    number: int = answer.json()["run_id"]
    return number


def get(databricks: Databricks, number: int, verb: str = "get") -> Any:
    return requests.get(f"{databricks.url}/api/2.2/jobs/runs/{verb}", params={"run_id": number}, timeout=60).json()


def result(databricks: Databricks, number: int) -> str | None:
    told: str | None = get(databricks, number)["state"].get("result_state")
    return told


def test_run_is_submitted_as_it_stands(databricks: Databricks, host: Host, tmp_path: Path) -> None:
    app = script(tmp_path, TELLS)
    number = run(databricks, app, libraries=[{"whl": "/x.whl"}])
    wait_until(lambda: result(databricks, number) == "SUCCESS")
    (driver,) = host.started
    assert driver.said().strip() == 'TELLS [["1 2"], "there", null]'
    assert driver.command[2:6] == ["--py-files", "/x.whl", "--conf", "spark.a=b"]
    assert "TELLS" in get(databricks, number, "get-output")["logs"]


def test_exit_code_decides(databricks: Databricks, tmp_path: Path) -> None:
    number = run(databricks, script(tmp_path, FAILS))
    wait_until(lambda: result(databricks, number) == "FAILED")
    (task,) = get(databricks, number)["tasks"]
    assert get(databricks, task["run_id"], "get-output")["error"] == "exit code 3"


def test_run_that_is_cancelled_ends(databricks: Databricks, host: Host, tmp_path: Path) -> None:
    number = run(databricks, script(tmp_path, WAITS))
    (driver,) = host.started
    driver.wait_for("HERE")
    assert get(databricks, number)["state"]["life_cycle_state"] == "RUNNING"
    assert post(databricks, "cancel", {"run_id": number}).status_code == 200
    assert (result(databricks, number), driver.left()) == ("CANCELED", [])


def test_run_with_the_same_token_runs_once(databricks: Databricks, host: Host, tmp_path: Path) -> None:
    databricks.lose_answer()
    app = script(tmp_path, WAITS)
    with pytest.raises(requests.ConnectionError):
        run(databricks, app, idempotency_token="mine")
    assert run(databricks, app, idempotency_token="mine") == run(databricks, app, idempotency_token="mine")
    assert len(host.started) == 1


def test_what_it_does_not_have_is_refused(databricks: Databricks, host: Host) -> None:
    refused = [
        post(databricks, "submit", {"notebook_task": {}}),
        post(databricks, "submit", {"tasks": [{}, {}]}),
        post(databricks, "submit", {"spark_python_task": {"python_file": "/x"}, "new_cluster": {"spark_conf": {}}, "libraries": [{"pypi": {}}]}),
    ]  # fmt: skip
    assert [answer.status_code for answer in refused] == [400, 400, 400]
    assert not host.started
