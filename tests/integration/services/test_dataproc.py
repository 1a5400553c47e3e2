"""Jobs of Spark that Airflow's own operator submits to Dataproc. Google's client speaks HTTP here, and gRPC to Google. Runs on Linux."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.services.telling import ARGUMENTS, CONF, archive, check, script
from tests.support.providers import Environment
from tests.support.services.dataproc import CLUSTER, PROJECT, REGION, Dataproc
from tests.support.services.hosts import Host
from tests.support.waiting import wait_until

# test_services_dataproc.py starts the same without the provider
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
SUBMIT = "tests.support.services.dataproc_client:DataprocSubmitJobOperator"


def asked(app: str, **more: Any) -> dict[str, Any]:
    spark = {"main_python_file_uri": app, "args": ARGUMENTS, "properties": {"spark.my.conf": CONF}, **more}
    job = {"placement": {"cluster_name": CLUSTER}, "pyspark_job": spark}
    return {"project_id": PROJECT, "region": REGION, "job": job}


def test_job_is_a_real_spark_submit(host: Host, google: Environment, tmp_path: Path) -> None:
    with Dataproc(host) as service:
        task = google.run(SUBMIT, asked(script(tmp_path), python_file_uris=[archive()]), service.variables)
        assert task.code == 0, task.log
        assert [task.result] == list(service.jobs)
        (driver,) = host.started
        check(driver, [None, None])


@pytest.fixture
def waiting(tiny_host: Host) -> Iterator[Dataproc]:
    """Yield a Dataproc whose drivers are a script without Spark."""
    with Dataproc(tiny_host) as service:
        yield service


def test_killed_driver_fails_the_task(waiting: Dataproc, google: Environment, app: str, tmp_path: Path) -> None:
    log = tmp_path / "task"
    with google.running(SUBMIT, asked(app), waiting.variables, log) as task:
        wait_until(lambda: waiting.host.started, 300, log.read_text)
        waiting.host.started[0].kill()
        assert task.wait(300) == 1, log.read_text()
    assert "exit code 137" in log.read_text()


def test_killed_task_cancels_its_job(waiting: Dataproc, google: Environment, app: str, tmp_path: Path) -> None:
    log = tmp_path / "task"
    with google.running(SUBMIT, asked(app), waiting.variables, log) as task:
        wait_until(lambda: "to complete" in log.read_text(), 300, log.read_text)
        task.send_signal(signal.SIGTERM)
        assert task.wait(300) == 143, log.read_text()
    (driver,) = waiting.host.started
    assert driver.left() == []
