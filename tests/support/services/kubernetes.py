"""The part of Kubernetes' API that Airflow's operators need, with the Spark operator in it. Runs on Linux.

    with Host(folder) as host, Kubernetes(host) as kubernetes:
        environment["AIRFLOW_CONN_KUBERNETES_DEFAULT"] = kubernetes.connection

A pod runs its container's command as a process, a ``SparkApplication`` runs ``spark-submit``. Secrets and ConfigMaps are kept. A driver
runs at once: nothing is scheduled, no image is pulled, and no events are told.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

from werkzeug.wrappers import Request, Response

from tests.support.services import spark_applications
from tests.support.services.answers import json_response
from tests.support.services.hosts import Host
from tests.support.services.kubernetes_objects import (
    ApiError,
    Object,
    Objects,
    merged,
    now,
    selects_fields,
    selects_labels,
    with_data,
)
from tests.support.services.kubernetes_pods import GRACE, RunningPod, start_pod
from tests.support.services.service import Service

APPLICATIONS, CORE = "sparkapplications", ("pods", "secrets", "configmaps", "events")
KINDS = {
    "pods": "Pod",
    "secrets": "Secret",
    "configmaps": "ConfigMap",
    "events": "Event",
    APPLICATIONS: "SparkApplication",
}
VERSIONS = {APPLICATIONS: "sparkoperator.k8s.io/v1beta2"}
Place = tuple[str, str]
"""A namespace, and the name of a pod in it."""


class Kubernetes(Service):
    """``running`` has the pods whose processes were started, by namespace and name."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.objects = Objects()
        self.running: dict[Place, RunningPod] = {}

    @property
    def kube_config(self) -> Object:
        """Return a kubeconfig that leads here."""
        cluster = {"name": "test", "cluster": {"server": self.url}}
        context = {"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "default"}}
        users = [{"name": "test", "user": {"token": "of-the-test"}}]
        return {
            "apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context], "users": users,
            "current-context": "test",
        }  # fmt: skip

    @property
    def connection(self) -> str:
        """Return Airflow's connection, as JSON."""
        extra = {"kube_config": json.dumps(self.kube_config), "namespace": "default"}
        return json.dumps({"conn_type": "kubernetes", "extra": extra})

    def launches(self, request: Request) -> bool:
        return request.method == "POST" and request.path.rstrip("/").rsplit("/", 1)[-1] in ("pods", APPLICATIONS)

    def refused(self, status: int, text: str) -> Response:
        return json_response(ApiError(status, "Forbidden" if status < 500 else "InternalError", text).body(), status)

    def answer(self, request: Request) -> Response:
        try:
            self._observe()
            return self._answer(request)
        except ApiError as error:
            return json_response(error.body(), error.code)

    def _answer(self, request: Request) -> Response:
        match request.path.strip("/").split("/"):
            case ["version"]:
                return json_response({"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
            case ["api", "v1", "namespaces", namespace, "pods", name, "log"]:
                return self._log(request, namespace, name)
            case ["api", "v1", "namespaces", namespace, plural, *rest] if plural in CORE:
                return self._resource(request, plural, namespace, rest)
            case ["apis", "sparkoperator.k8s.io", "v1beta2", "namespaces", namespace, plural, *rest] if (
                plural == APPLICATIONS
            ):
                return self._resource(request, plural, namespace, rest)
        raise ApiError(404, "NotFound", f"this server has no {request.path}")

    def _resource(self, request: Request, plural: str, namespace: str, rest: list[str]) -> Response:
        match request.method, rest:
            case "GET", []:
                return json_response(self._list(request, plural, namespace))
            case "POST", []:
                return json_response(self._create(plural, namespace, request.get_json()), 201)
            case "GET", [name] | [name, "status"]:
                return json_response(self.objects.read(plural, namespace, name))
            case "PATCH", [name]:
                body = self.objects.read(plural, namespace, name)
                body.update(merged(body, request.get_json(force=True)))
                self.objects.touch(body)
                return json_response(body)
            case "DELETE", [name]:
                return json_response(self._delete(request, plural, namespace, name))
        raise ApiError(405, "MethodNotAllowed", f"{request.method} {request.path}")

    # -- what the controllers do -------------------------------------------------------------------------------------

    def _create(self, plural: str, namespace: str, body: Object) -> Object:
        body = {"apiVersion": VERSIONS.get(plural, "v1"), "kind": KINDS[plural], **body}
        if plural == APPLICATIONS:
            spark_applications.check(body)
        made = self.objects.create(plural, namespace, with_data(body) if plural == "secrets" else body)
        try:
            if plural == "pods":
                self._starts(made, lambda: start_pod(made, self.host, self.objects))
            elif plural == APPLICATIONS:
                self._submit(namespace, made)
        except ApiError:
            self.objects.remove(plural, namespace, made["metadata"]["name"])
            raise
        return made

    def _submit(self, namespace: str, application: Object) -> None:
        """Do what the Spark operator does when it sees a new application. It has no status yet."""
        pod = self.objects.create("pods", namespace, spark_applications.driver_pod(application))
        try:
            asked = spark_applications.submission(application, pod, self.objects)
        except ApiError:
            self.objects.remove("pods", namespace, pod["metadata"]["name"])
            raise
        self._starts(pod, lambda: RunningPod(self.host.submit(asked)))

    def _starts(self, pod: Object, start: Callable[[], RunningPod]) -> None:
        running = start()
        self.running[pod["metadata"]["namespace"], pod["metadata"]["name"]] = running
        pod["status"] = running.status(pod)

    def _observe(self) -> None:
        """Write what has become of each process into the status of its pod, and of its application."""
        for (namespace, name), running in self.running.items():
            if pod := self.objects.find("pods", namespace, name):
                pod["status"] = running.status(pod)
            if application := self.objects.find(APPLICATIONS, namespace, name.removesuffix("-driver")):
                application["status"] = spark_applications.status(application, running)

    def _delete(self, request: Request, plural: str, namespace: str, name: str) -> Object:
        """Delete an object; the driver of an application goes with it. A pod stays until its process has ended."""
        body = self.objects.read(plural, namespace, name)
        pod_name = f"{name}-driver" if plural == APPLICATIONS else name
        if plural != "pods":
            self.objects.remove(plural, namespace, name)
        if plural in ("pods", APPLICATIONS) and (pod := self.objects.find("pods", namespace, pod_name)):
            pod["metadata"].setdefault("deletionTimestamp", now())
            place = (namespace, pod_name)
            Thread(target=self._end, args=(place, self.running[place], _grace(request)), daemon=True).start()
        return body

    def _end(self, place: Place, running: RunningPod, grace: float) -> None:
        running.end(grace)
        with self._one_at_a_time:
            self.objects.remove("pods", *place)

    # -- lists and logs ----------------------------------------------------------------------------------------------

    def _list(self, request: Request, plural: str, namespace: str) -> Object:
        if _true(request.args.get("watch")):
            raise ApiError(400, "BadRequest", "this server tells no changes: ask again")
        labels = selects_labels(request.args.get("labelSelector", ""))
        fields = selects_fields(request.args.get("fieldSelector", ""))
        items = [body for body in self.objects.listed(plural, namespace) if labels(body) and fields(body)]
        version = {"resourceVersion": str(len(self.requests))}
        return {
            "kind": f"{KINDS[plural]}List",
            "apiVersion": VERSIONS.get(plural, "v1"),
            "metadata": version,
            "items": items,
        }

    def _log(self, request: Request, namespace: str, name: str) -> Response:
        self.objects.read("pods", namespace, name)
        running, asked = self.running[namespace, name], request.args
        since = time.time() - float(asked["sinceSeconds"]) if "sinceSeconds" in asked else 0.0
        lines = running.follow(
            lambda: not self.listens,
            follow=_true(asked.get("follow")),
            since=since,
            timestamps=_true(asked.get("timestamps")),
        )
        if "tailLines" in asked:
            lines = iter(list(lines)[-int(asked["tailLines"]) :])
        return Response(_encoded(lines), content_type="text/plain; charset=utf-8")


def _encoded(lines: Iterator[str]) -> Iterator[bytes]:
    return (line.encode() for line in lines)


def _true(value: str | None) -> bool:
    return (value or "").lower() == "true"


def _grace(request: Request) -> float:
    body: Any = request.get_json(silent=True, force=True) or {}
    asked = request.args.get("gracePeriodSeconds", body.get("gracePeriodSeconds"))
    return GRACE if asked is None else float(asked)
