"""Jobs of Spark that Airflow's own operator runs in Databricks. Runs on Linux."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.services.telling import ARGUMENTS, CONF, archive, check, script
from tests.support.providers import Environment
from tests.support.services.databricks import Databricks
from tests.support.services.hosts import Host
from tests.support.waiting import wait_until

# test_services_databricks.py starts the same without the provider
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
SUBMIT = "airflow.providers.databricks.operators.databricks:DatabricksSubmitRunOperator"


@pytest.fixture
def service(host: Host) -> Iterator[Databricks]:
    with Databricks(host) as service:
        yield service


def variables(service: Databricks) -> dict[str, str]:
    return {"AIRFLOW_CONN_DATABRICKS_DEFAULT": service.connection}


def run(app: str, **more: Any) -> dict[str, Any]:
    cluster = {"spark_conf": {"spark.my.conf": CONF}, "spark_env_vars": {"A": "1"}}
    python = {"python_file": app, "parameters": ARGUMENTS}
    return {"spark_python_task": python, "new_cluster": cluster, "polling_period_seconds": 1, **more}


def test_run_is_a_real_spark_submit(service: Databricks, databricks: Environment, tmp_path: Path) -> None:
    task = databricks.run(SUBMIT, run(script(tmp_path), libraries=[{"egg": archive()}]), variables(service))
    assert task.code == 0, task.log
    (driver,) = service.host.started
    check(driver, ["1", None])


@pytest.fixture
def waiting(tiny_host: Host) -> Iterator[Databricks]:
    """Yield a Databricks whose drivers are a script without Spark."""
    with Databricks(tiny_host) as service:
        yield service


def test_killed_driver_fails_the_task(waiting: Databricks, databricks: Environment, app: str, tmp_path: Path) -> None:
    log = tmp_path / "task"
    with databricks.running(SUBMIT, run(app), variables(waiting), log) as task:
        wait_until(lambda: waiting.host.started, 300, log.read_text)
        waiting.host.started[0].kill()
        assert task.wait(300) == 1, log.read_text()
    assert "exit code 137" in log.read_text()


def test_killed_task_cancels_its_run(waiting: Databricks, databricks: Environment, app: str, tmp_path: Path) -> None:
    log = tmp_path / "task"
    with databricks.running(SUBMIT, run(app), variables(waiting), log) as task:
        wait_until(lambda: "in run state" in log.read_text(), 300, log.read_text)
        task.send_signal(signal.SIGTERM)
        assert task.wait(300) == 143, log.read_text()
    (driver,) = waiting.host.started
    assert driver.left() == []
