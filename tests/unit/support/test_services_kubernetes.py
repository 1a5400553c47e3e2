"""The Kubernetes of the tests, by plain HTTP. A tiny script stands in for Spark; its slow tests have Airflow's operators."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.services.hosts import Host
from tests.support.services.kubernetes import Kubernetes
from tests.support.waiting import wait_until
from tests.unit.support.applications import FAILS, TELLS, WAITS, script

PODS, SECRETS = ("api/v1/namespaces/default/" + plural for plural in ("pods", "secrets"))
APPLICATIONS = "apis/sparkoperator.k8s.io/v1beta2/namespaces/default/sparkapplications"


@pytest.fixture
def kubernetes(host: Host) -> Iterator[Kubernetes]:
    with Kubernetes(host) as kubernetes:
        yield kubernetes


class Client:
    def __init__(self, kubernetes: Kubernetes) -> None:
        self._url = kubernetes.url

    def call(self, method: str, path: str, body: Any = None, **parameters: Any) -> requests.Response:
        return requests.request(method, f"{self._url}/{path}", json=body, params=parameters, timeout=60)

    def create(self, path: str, body: Any) -> requests.Response:
        return self.call("POST", path, body)

    def phase(self, pod: str) -> str:
        told: str = self.call("GET", f"{PODS}/{pod}").json()["status"]["phase"]
        return told


@pytest.fixture
def client(kubernetes: Kubernetes) -> Client:
    return Client(kubernetes)


def pod(name: str, *command: str, labels: dict[str, str] | None = None, **container: Any) -> dict[str, Any]:
    base = {"name": "base", "image": "none", "command": list(command), **container}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": {"containers": [base]}}


def application(app: str, driver: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"name": "job", "labels": {"a": "1"}}
    whole = {"type": "Python", "mainApplicationFile": app, "driver": driver or {}, "executor": {}, **spec}
    return {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": metadata,
        "spec": whole,
    }


def test_pod_runs_its_command_with_its_variables(client: Client, host: Host, tmp_path: Path) -> None:
    client.create(SECRETS, {"metadata": {"name": "keys"}, "stringData": {"key": "hush"}})
    refers = {"secretKeyRef": {"name": "keys", "key": "key"}}
    variables = [{"name": "A", "value": "1"}, {"name": "SECRET", "valueFrom": refers}]
    asked = pod("one", "python3", script(tmp_path, TELLS), args=["$(A) $(B)"], env=variables)
    assert client.create(PODS, asked).status_code == 201
    wait_until(lambda: client.phase("one") == "Succeeded")
    assert client.call("GET", f"{PODS}/one/log").text.strip() == 'TELLS [["1 $(B)"], "1", "hush"]'


def test_pod_fails_with_its_command(client: Client, tmp_path: Path) -> None:
    client.create(PODS, pod("fails", "python3", script(tmp_path, FAILS)))
    client.create(PODS, pod("nothing", "no-such-program"))
    for name, code in (("fails", 3), ("nothing", 128)):
        wait_until(lambda name=name: client.phase(name) == "Failed")  # type: ignore[misc]
        (status,) = client.call("GET", f"{PODS}/{name}").json()["status"]["containerStatuses"]
        assert status["state"]["terminated"]["exitCode"] == code


def test_pod_is_there_until_its_process_has_ended(client: Client, host: Host, tmp_path: Path) -> None:
    client.create(PODS, pod("waits", "python3", script(tmp_path, WAITS)))
    (driver,) = host.started
    driver.wait_for("HERE")
    client.call("DELETE", f"{PODS}/waits", gracePeriodSeconds=1)
    wait_until(lambda: client.call("GET", f"{PODS}/waits").status_code == 404)
    assert driver.left() == []


def test_log_is_followed_until_the_process_ends(client: Client, host: Host) -> None:
    client.create(PODS, pod("talks", "sh", "-c", "echo one; sleep 1; echo two"))
    followed = client.call("GET", f"{PODS}/talks/log", follow="true", timestamps="true").text.splitlines()
    assert [line.split()[1] for line in followed] == ["one", "two"]
    assert followed[0] < followed[1]
    assert client.call("GET", f"{PODS}/talks/log", tailLines=1).text == "two\n"


def test_pods_are_selected(client: Client) -> None:
    for name, labels in (("a", {"task": "x"}), ("b", {"task": "x", "checked": "True"}), ("c", {"task": "y"})):
        client.create(PODS, pod(name, "true", labels=labels))

    def names(**selectors: str) -> list[str]:
        return [item["metadata"]["name"] for item in client.call("GET", PODS, **selectors).json()["items"]]

    assert names(labelSelector="task=x,checked!=True") == names(labelSelector="task=x,!checked") == ["a"]
    client.call("PATCH", f"{PODS}/a", {"metadata": {"labels": {"checked": "True"}}})
    assert names(labelSelector="task==x,checked") == ["a", "b"]
    wait_until(lambda: not names(fieldSelector="status.phase!=Succeeded"))


def test_application_is_submitted_as_it_stands(client: Client, host: Host, tmp_path: Path) -> None:
    client.create(SECRETS, {"metadata": {"name": "keys"}, "stringData": {"key": "hush"}})
    app = script(tmp_path, TELLS)
    driver = {
        "memory": "1g",
        "env": [{"name": "A", "value": "1"}],
        "envSecretKeyRefs": {"SECRET": {"name": "keys", "key": "key"}},
    }
    asked = application(
        app,
        {**driver, "labels": {"try": "1"}},
        sparkConf={"spark.a": "x=1"},
        arguments=["1 2"],
        deps={"pyFiles": ["/x.zip", "/y.py"]},
    )
    assert client.create(APPLICATIONS, asked).status_code == 201
    pods = client.call("GET", PODS, labelSelector="try=1,spark-role=driver").json()["items"]
    assert [found["metadata"]["name"] for found in pods] == ["job-driver"]
    wait_until(lambda: client.phase("job-driver") == "Succeeded")
    told = client.call("GET", f"{APPLICATIONS}/job/status").json()["status"]["applicationState"]
    assert told == {"state": "COMPLETED"}
    (started,) = host.started
    assert started.said().strip() == 'TELLS [["1 2"], "1", "hush"]'
    assert "hush" not in " ".join(started.command)
    assert started.command[2:] == [
        "--name", "job", "--py-files", "/x.zip,/y.py", "--conf", "spark.a=x=1", "--conf", "spark.driver.memory=1g",
        "--master", "local[2]", "--deploy-mode", "client", app, "1 2",
    ]  # fmt: skip


def test_application_fails_and_its_name_is_taken(client: Client, host: Host, tmp_path: Path) -> None:
    client.create(APPLICATIONS, application(script(tmp_path, WAITS)))
    taken = client.create(APPLICATIONS, application(script(tmp_path, WAITS)))
    assert (taken.status_code, taken.json()["reason"], len(host.started)) == (409, "AlreadyExists", 1)
    host.started[0].kill()
    wait_until(lambda: client.phase("job-driver") == "Failed")
    told = client.call("GET", f"{APPLICATIONS}/job").json()["status"]["applicationState"]
    assert told == {"state": "FAILED", "errorMessage": "driver container failed with ExitCode: 137, Reason: Error"}


def test_deleted_application_takes_its_driver_along(client: Client, host: Host, tmp_path: Path) -> None:
    client.create(APPLICATIONS, application(script(tmp_path, WAITS)))
    host.started[0].wait_for("HERE")
    client.call("DELETE", f"{APPLICATIONS}/job")
    wait_until(lambda: client.call("GET", f"{PODS}/job-driver").status_code == 404)
    assert host.started[0].left() == []


def test_launches_are_refused_and_lost(kubernetes: Kubernetes, client: Client, host: Host, tmp_path: Path) -> None:
    asked = application(script(tmp_path, WAITS))
    kubernetes.refuse_launch(500)
    assert client.create(SECRETS, {"metadata": {"name": "keys"}}).status_code == 201  # it is not a launch
    assert (client.create(APPLICATIONS, asked).json()["reason"], host.started) == ("InternalError", [])
    kubernetes.lose_answer()
    with pytest.raises(requests.ConnectionError):
        client.create(APPLICATIONS, asked)
    assert (client.phase("job-driver"), len(host.started)) == ("Running", 1)


def test_what_it_does_not_have_is_refused(client: Client, host: Host) -> None:
    refers = {"secretKeyRef": {"name": "absent", "key": "key"}}
    refused = [
        client.create(PODS, {"metadata": {"name": "two"}, "spec": {"containers": [{}, {}]}}),
        client.create(PODS, pod("image")),
        client.create(PODS, pod("absent", "true", env=[{"name": "A", "valueFrom": refers}])),
        client.create(APPLICATIONS, application("/x", restartPolicy={"type": "Always"})),
        client.create(APPLICATIONS, application("/x", {"envSecretKeyRefs": {"A": {"name": "absent", "key": "key"}}})),
        client.call("GET", PODS, labelSelector="a in (b,c)"),
        client.call("GET", PODS, watch="true"),
    ]
    assert [answer.status_code for answer in refused] == [422, 422, 404, 422, 404, 400, 400]
    assert not host.started
    assert not client.call("GET", PODS).json()["items"]
