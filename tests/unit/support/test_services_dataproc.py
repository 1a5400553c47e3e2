"""The Dataproc of the tests, by plain HTTP. A tiny script stands in for Spark; its slow tests have Airflow's operator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.services.dataproc import CLUSTER, PROJECT, REGION, Dataproc
from tests.support.services.hosts import Host
from tests.support.waiting import wait_until
from tests.unit.support.applications import FAILS, TELLS, WAITS, script


@pytest.fixture
def dataproc(host: Host) -> Iterator[Dataproc]:
    with Dataproc(host) as dataproc:
        yield dataproc


def post(dataproc: Dataproc, verb: str, body: dict[str, Any]) -> requests.Response:
    return requests.post(f"{dataproc.url}/v1/projects/{PROJECT}/regions/{REGION}/jobs{verb}", json=body, timeout=60)


def submit(dataproc: Dataproc, app: str, request_id: str = "", job_id: str = "", **more: Any) -> requests.Response:
    spark = {"mainPythonFileUri": app, "args": ["1 2"], "properties": {"spark.a": "b"}, **more}
    job = {"placement": {"clusterName": CLUSTER}, "pysparkJob": spark, "reference": {"jobId": job_id}}
    return post(dataproc, ":submit", {"job": job, "requestId": request_id})


def submitted(dataproc: Dataproc, app: str, request_id: str = "", **more: Any) -> str:
    job: str = submit(dataproc, app, request_id, **more).json()["reference"]["jobId"]
    return job


def status(dataproc: Dataproc, job: str) -> dict[str, str]:
    where = f"{dataproc.url}/v1/projects/{PROJECT}/regions/{REGION}/jobs/{job}"
    told: dict[str, str] = requests.get(where, timeout=60).json()["status"]
    return told


def test_job_is_submitted_as_it_stands(dataproc: Dataproc, host: Host, tmp_path: Path) -> None:
    job = submitted(dataproc, script(tmp_path, TELLS), pythonFileUris=["/x.zip", "/y.zip"])
    wait_until(lambda: status(dataproc, job)["state"] == "DONE")
    (driver,) = host.started
    assert driver.said().strip() == 'TELLS [["1 2"], null, null]'
    assert driver.command[2:6] == ["--py-files", "/x.zip,/y.zip", "--conf", "spark.a=b"]


def test_exit_code_decides(dataproc: Dataproc, tmp_path: Path) -> None:
    job = submitted(dataproc, script(tmp_path, FAILS))
    wait_until(lambda: status(dataproc, job)["state"] == "ERROR")
    assert status(dataproc, job)["details"] == "Job failed with exit code 3."


def test_job_that_is_cancelled_ends(dataproc: Dataproc, host: Host, tmp_path: Path) -> None:
    job = submitted(dataproc, script(tmp_path, WAITS))
    (driver,) = host.started
    driver.wait_for("HERE")
    assert status(dataproc, job)["state"] == "RUNNING"
    assert post(dataproc, f"/{job}:cancel", {}).json()["status"]["state"] == "CANCELLED"
    assert driver.left() == []


def test_request_with_the_same_id_runs_once(dataproc: Dataproc, host: Host, tmp_path: Path) -> None:
    dataproc.lose_answer()
    app = script(tmp_path, WAITS)
    with pytest.raises(requests.ConnectionError):
        submitted(dataproc, app, "mine")
    assert submitted(dataproc, app, "mine") == submitted(dataproc, app, "mine")
    assert len(host.started) == 1


def test_what_it_does_not_have_is_refused(dataproc: Dataproc, host: Host, tmp_path: Path) -> None:
    refused = [
        post(dataproc, ":submit", {"job": {"placement": {"clusterName": CLUSTER}, "sparkJob": {}}}),
        post(dataproc, ":submit", {"job": {"placement": {"clusterName": "other"}, "pysparkJob": {"mainPythonFileUri": "/x"}}}),
        post(dataproc, "/unknown:cancel", {}),
    ]  # fmt: skip
    assert [answer.status_code for answer in refused] == [400, 400, 404]
    assert not host.started
    app = script(tmp_path, TELLS)
    assert [submit(dataproc, app, job_id="mine").status_code for _ in range(2)] == [200, 409]
