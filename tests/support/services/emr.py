"""Amazon's EMR, steps and serverless: moto keeps the state, and each step or job run is a real ``spark-submit``. Runs on Linux.

    with Host(folder) as host, Emr(host) as emr:
        environment["AIRFLOW_CONN_AWS_DEFAULT"] = emr.connection
        cluster = emr.create_cluster()

moto alone runs nothing, and says of each job run that it has succeeded. States change when a request comes. A process has one of these
at a time.
"""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import boto3
from moto.core.models import DEFAULT_ACCOUNT_ID as ACCOUNT
from werkzeug.wrappers import Request, Response

from tests.support.services.answers import json_response
from tests.support.services.emr_runs import JobRuns, Steps
from tests.support.services.hosts import Host
from tests.support.services.service import Service

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

REGION = "us-east-1"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/emr"
"""A role with which a job run may work."""


class Emr(Service):
    """``steps.drivers`` and ``runs.drivers`` have what was started, by the id of the step or the job run."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        # Here, because moto reads the regions of all services at import, and pytest imports this module in each process.
        from moto.emr.models import emr_backends
        from moto.emrserverless.models import emrserverless_backends
        from moto.moto_server.werkzeug_app import create_backend_app

        clusters, applications = emr_backends[ACCOUNT][REGION], emrserverless_backends[ACCOUNT][REGION]
        clusters.reset()  # moto has one for all of this process
        applications.reset()
        self.steps, self.runs = Steps(clusters, host), JobRuns(applications, host)
        self._clients: dict[str, Any] = {}
        self._on_clusters: WSGIApplication = create_backend_app("emr")
        self._serverless: WSGIApplication = create_backend_app("emr-serverless")

    @property
    def connection(self) -> str:
        """Return Airflow's connection, as JSON."""
        extra = {"region_name": REGION, "endpoint_url": self.url}
        return json.dumps({"conn_type": "aws", "login": "tester", "password": "secret", "extra": extra})

    def create_cluster(self) -> str:
        """Return the id of a new cluster without steps."""
        instances = {"InstanceCount": 1, "MasterInstanceType": "m5.large", "KeepJobFlowAliveWhenNoSteps": True}
        asked = {
            "Name": "test",
            "ReleaseLabel": "emr-7.9.0",
            "Instances": instances,
            "JobFlowRole": "ec2",
            "ServiceRole": "emr",
        }
        cluster: str = self.client("emr").run_job_flow(**asked)["JobFlowId"]
        return cluster

    def create_application(self) -> str:
        """Return the id of a new serverless application."""
        application: str = self.client("emr-serverless").create_application(
            name="test", releaseLabel="emr-7.9.0", type="SPARK", clientToken="test"
        )["applicationId"]
        return application

    def client(self, service: str) -> Any:
        """Return a client of boto3, made once."""
        if service not in self._clients:
            session = boto3.Session(aws_access_key_id="tester", aws_secret_access_key="secret", region_name=REGION)
            self._clients[service] = session.client(service, endpoint_url=self.url)  # type: ignore[call-overload]
        return self._clients[service]

    def launches(self, request: Request) -> bool:
        runs = request.method == "POST" and request.path.endswith("/jobruns")
        return runs or _operation(request) == "AddJobFlowSteps"

    def refused(self, status: int, text: str) -> Response:
        name = "ValidationException" if status < 500 else "InternalServerException"
        response = json_response({"__type": name, "message": text, "Message": text}, status)
        response.headers["x-amzn-ErrorType"] = name
        return response

    def answer(self, request: Request) -> Response:
        self._advance()
        try:
            response = self._answer(request)
        except ValueError as error:
            return self.refused(400, str(error))
        self._advance()
        return response

    def _answer(self, request: Request) -> Response:
        body = request.get_json(silent=True, force=True) or {}
        match request.method, request.path.strip("/").split("/"):
            case "POST", ["applications", application, "jobruns"]:
                if known := self.runs.known(application, body):
                    return json_response(known)
                self.runs.check(body)
            case "DELETE", ["applications", application, "jobruns", run]:
                self.runs.cancel(run)
            case "POST", [""] if _operation(request) == "CancelSteps":
                return json_response(self.steps.cancel(body))
            case "POST", [""] if _operation(request) == "AddJobFlowSteps":
                self.steps.check(body)
        return self._moto(request)

    def _moto(self, request: Request) -> Response:
        request.environ["wsgi.input"] = io.BytesIO(request.get_data())  # it has been read
        serverless = request.path.startswith("/applications")
        return Response.from_app(self._serverless if serverless else self._on_clusters, request.environ, buffered=True)

    def _advance(self) -> None:
        self.steps.advance()
        self.runs.advance()


def _operation(request: Request) -> str:
    return request.headers.get("X-Amz-Target", "").rpartition(".")[2]
