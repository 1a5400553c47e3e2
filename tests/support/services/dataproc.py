"""Google's Dataproc, as of its REST API v1: ``jobs:submit`` runs a real ``spark-submit``. Runs on Linux.

    with Host(folder) as host, Dataproc(host) as dataproc:
        environment |= dataproc.variables

Airflow's hook speaks gRPC, and this server HTTP: ``dataproc_client.py`` gives the hook Google's own client with its other transport. A job
is a ``pyspark_job``; its properties are the confs. The job ends as its driver does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from werkzeug.exceptions import BadRequest, Conflict, HTTPException, NotFound
from werkzeug.wrappers import Request, Response

from tests.support.services.answers import json_response
from tests.support.services.hosts import Host, Hosted
from tests.support.services.service import Service
from tests.support.services.submission import Submission, listed

Body = Mapping[str, Any]
URL = "DATAPROC_URL"
"""The variable of a task's environment that names this server."""
PROJECT, REGION, CLUSTER = "tests", "europe-west1", "etl"
LISTS = {
    "pythonFileUris": "--py-files", "jarFileUris": "--jars", "fileUris": "--files", "archiveUris": "--archives",
}  # fmt: skip
STATUS = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND", 409: "ALREADY_EXISTS", 500: "INTERNAL", 503: "UNAVAILABLE"}


@dataclass
class DataprocJob:
    asked: Body
    token: str
    driver: Hosted
    cancelled: bool = False

    def status(self) -> Body:
        """Return the state. The exit code of ``spark-submit`` decides."""
        code = self.driver.code
        if code is None:
            return {"state": "RUNNING"}
        if self.cancelled:
            return {"state": "CANCELLED", "details": "Job cancelled by the test's user."}
        if code:
            return {"state": "ERROR", "details": f"Job failed with exit code {self.driver.shell_code}."}
        return {"state": "DONE"}


class Dataproc(Service):
    """``jobs`` has those that were submitted, by their ids."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.jobs: dict[str, DataprocJob] = {}

    @property
    def variables(self) -> dict[str, str]:
        """Return Airflow's connection, and where the client finds this server."""
        connection = {"conn_type": "google_cloud_platform", "extra": {"project": PROJECT}}
        return {"AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT": json.dumps(connection), URL: self.url}

    def launches(self, request: Request) -> bool:
        return request.path.endswith("/jobs:submit")

    def refused(self, status: int, text: str) -> Response:
        error = {"code": status, "message": text, "status": STATUS.get(status, "UNKNOWN")}
        return json_response({"error": error}, status)

    def answer(self, request: Request) -> Response:
        try:
            return json_response(self._answer(request))
        except HTTPException as error:
            return self.refused(error.code or 500, str(error.description))

    def _answer(self, request: Request) -> Body:
        place, _, rest = request.path.strip("/").partition("/jobs")
        if place != f"v1/projects/{PROJECT}/regions/{REGION}":
            raise NotFound(f"this server has no {request.path}")
        match request.method, rest.strip("/").split(":"):
            case "POST", ["", "submit"]:
                return self._submit(request.get_json(force=True))
            case "GET", [job]:
                return self._view(job)
            case "POST", [job, "cancel"]:
                return self._cancel(job)
        raise NotFound(f"this server has no {request.path}")

    def _submit(self, asked: Body) -> Body:
        token = asked.get("requestId") or ""
        for name, known in self.jobs.items():
            if token and known.token == token:
                return self._view(name)
        job: Body = asked["job"]
        name = (job.get("reference") or {}).get("jobId") or str(uuid4())
        if name in self.jobs:
            raise Conflict(f"Already exists: Job {name}")
        self.jobs[name] = DataprocJob(job, token, self.host.submit(_submission(job)))
        return self._view(name)

    def _find(self, name: str) -> DataprocJob:
        if name not in self.jobs:
            raise NotFound(f"Not found: Job {name}")
        return self.jobs[name]

    def _view(self, name: str) -> Body:
        job = self._find(name)
        return {**job.asked, "reference": {"projectId": PROJECT, "jobId": name}, "status": job.status()}

    def _cancel(self, name: str) -> Body:
        job = self._find(name)
        if job.driver.code is None:
            job.cancelled = True
            job.driver.end()
        return self._view(name)


def _submission(job: Body) -> Submission:
    python: Body = job.get("pysparkJob") or {}
    if (job.get("placement") or {}).get("clusterName") != CLUSTER or not python.get("mainPythonFileUri"):
        raise BadRequest(f"this server runs a pyspark_job on the cluster {CLUSTER}")
    options = [word for field, option in LISTS.items() for word in listed(option, python.get(field))]
    return Submission(
        application=python["mainPythonFileUri"],
        arguments=python.get("args") or (),
        confs=python.get("properties") or {},
        options=options,
    )
