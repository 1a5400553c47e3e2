"""Jobs of Spark that Airflow's own operators start in Kubernetes. Runs on Linux."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.integration.services.telling import ARGUMENTS, CONF, archive, check, script
from tests.support.providers import Environment
from tests.support.services.hosts import Host
from tests.support.services.kubernetes import Kubernetes
from tests.support.waiting import wait_until

# test_services_kubernetes.py starts the same without the provider
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
OPERATORS = "airflow.providers.cncf.kubernetes.operators"
SPARK, POD = f"{OPERATORS}.spark_kubernetes:SparkKubernetesOperator", f"{OPERATORS}.pod:KubernetesPodOperator"
SECRETS = "api/v1/namespaces/default/secrets"
WAITS = "import subprocess; print('HERE\\nwaits', flush=True); subprocess.run(['sleep', '600'])"
"""The operator logs a line when it has read the next one."""


@pytest.fixture
def kubernetes(host: Host) -> Iterator[Kubernetes]:
    with Kubernetes(host) as kubernetes:
        yield kubernetes


def variables(kubernetes: Kubernetes) -> dict[str, str]:
    return {"AIRFLOW_CONN_KUBERNETES_DEFAULT": kubernetes.connection}


def keep_secret(kubernetes: Kubernetes) -> None:
    body = {"metadata": {"name": "keys"}, "stringData": {"key": "hush"}}
    requests.post(f"{kubernetes.url}/{SECRETS}", json=body, timeout=60).raise_for_status()


def application(app: str, **driver: Any) -> dict[str, Any]:
    """Return the arguments of ``SparkKubernetesOperator``."""
    spec = {
        "type": "Python", "mode": "cluster", "image": "none", "mainApplicationFile": app, "arguments": ARGUMENTS,
        "sparkConf": {"spark.my.conf": CONF}, "deps": {"pyFiles": [archive()]}, "driver": {"cores": 1, **driver},
        "executor": {"instances": 1},
    }  # fmt: skip
    body = {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": {"name": "job"},
        "spec": spec,
    }
    return {"namespace": "default", "template_spec": body}


def test_spark_application_is_a_real_spark_submit(
    kubernetes: Kubernetes, cncf_kubernetes: Environment, tmp_path: Path
) -> None:
    keep_secret(kubernetes)
    refers = {"SECRET": {"name": "keys", "key": "key"}}
    asked = application(f"local://{script(tmp_path)}", env=[{"name": "A", "value": "1"}], envSecretKeyRefs=refers)
    task = cncf_kubernetes.run(SPARK, asked, variables(kubernetes))
    assert task.code == 0, task.log
    (driver,) = kubernetes.host.started
    check(driver, ["1", "hush"])
    assert "RESULT" in task.log, "the operator follows the log"


def test_pod_with_a_real_spark_submit(kubernetes: Kubernetes, cncf_kubernetes: Environment, tmp_path: Path) -> None:
    words = [
        "--master",
        "local[2]",
        "--conf",
        f"spark.my.conf={CONF}",
        "--py-files",
        archive(),
        script(tmp_path),
        *ARGUMENTS,
    ]
    asked = {
        "name": "driver",
        "namespace": "default",
        "image": "none",
        "cmds": ["spark-submit"],
        "arguments": words,
        "env_vars": {"A": "1"},
    }
    task = cncf_kubernetes.run(POD, asked, variables(kubernetes))
    assert task.code == 0, task.log
    (driver,) = kubernetes.host.started
    check(driver, ["1", None])
    assert "RESULT" in task.log


@pytest.fixture
def waiting(tiny_host: Host) -> Iterator[Kubernetes]:
    """Yield a Kubernetes whose drivers are a script without Spark."""
    with Kubernetes(tiny_host) as kubernetes:
        yield kubernetes


def waits(folder: Path) -> dict[str, Any]:
    file = folder / "waits.py"
    file.write_text(WAITS)
    return application(str(file))


def wait_for_driver(kubernetes: Kubernetes, log: Path) -> None:
    wait_until(lambda: kubernetes.host.started, 300, log.read_text)
    kubernetes.host.started[0].wait_for("HERE")


def test_killed_driver_fails_the_task(waiting: Kubernetes, cncf_kubernetes: Environment, tmp_path: Path) -> None:
    log = tmp_path / "task"
    with cncf_kubernetes.running(SPARK, waits(tmp_path), variables(waiting), log) as task:
        wait_for_driver(waiting, log)
        waiting.host.started[0].kill()
        assert task.wait(300) == 1, log.read_text()
    assert "'exit_code': 137" in log.read_text()


def test_killed_task_ends_its_driver(waiting: Kubernetes, cncf_kubernetes: Environment, tmp_path: Path) -> None:
    log = tmp_path / "task"
    with cncf_kubernetes.running(SPARK, waits(tmp_path), variables(waiting), log) as task:
        wait_for_driver(waiting, log)
        wait_until(lambda: "HERE" in log.read_text(), 300, log.read_text)
        task.send_signal(signal.SIGTERM)
        assert task.wait(300) == 143, log.read_text()
    wait_until(lambda: not waiting.host.started[0].left())


def test_next_try_finds_the_driver_of_a_lost_worker(
    waiting: Kubernetes, cncf_kubernetes: Environment, tmp_path: Path
) -> None:
    log, again = tmp_path / "task", tmp_path / "again"
    with cncf_kubernetes.running(SPARK, waits(tmp_path), variables(waiting), log) as task:
        wait_for_driver(waiting, log)
        task.kill()
        task.wait(60)
    with cncf_kubernetes.running(SPARK, waits(tmp_path), variables(waiting), again, try_number=2):
        wait_until(lambda: "HERE" in again.read_text(), 300, again.read_text)
    assert len(waiting.host.started) == 1
