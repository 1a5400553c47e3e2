"""Databricks' runs, as of its Jobs API 2.2: ``POST /api/2.2/jobs/runs/submit`` runs a real ``spark-submit``. Runs on Linux.

    with Host(folder) as host, Databricks(host) as databricks:
        environment["AIRFLOW_CONN_DATABRICKS_DEFAULT"] = databricks.connection

A run has one task, a ``spark_python_task`` or a ``spark_submit_task`` on a ``new_cluster``: the cluster's ``spark_conf`` are the confs, its
``spark_env_vars`` the environment. It is kinder than Databricks, which takes no ``spark.submit.pyFiles``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from werkzeug.exceptions import BadRequest, HTTPException, NotFound
from werkzeug.wrappers import Request, Response

from tests.support.services.answers import json_response
from tests.support.services.hosts import Host, Hosted
from tests.support.services.service import Service
from tests.support.services.submission import Submission, listed

Body = Mapping[str, Any]
KEPT = 100  # lines of a driver's output in the answer of get-output
LIBRARIES = {"jar": "--jars", "whl": "--py-files", "egg": "--py-files"}


@dataclass
class Run:
    number: int
    name: str
    task: str
    token: str | None
    driver: Hosted
    cancelled: bool = False

    def state(self) -> Body:
        """Return the life cycle and the result. The exit code of ``spark-submit`` decides."""
        code = self.driver.code
        if code is None:
            return {"life_cycle_state": "RUNNING", "state_message": "In run"}
        if self.cancelled:
            return {"life_cycle_state": "TERMINATED", "result_state": "CANCELED", "state_message": "Run cancelled."}
        if code:
            why = f"exit code {self.driver.shell_code}"
            return {"life_cycle_state": "TERMINATED", "result_state": "FAILED", "state_message": why}
        return {"life_cycle_state": "TERMINATED", "result_state": "SUCCESS", "state_message": ""}

    @property
    def task_run(self) -> int:
        """Return the number of the run of its one task."""
        return self.number + 1


class Databricks(Service):
    """``runs`` has those that were submitted, by their numbers."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.runs: dict[int, Run] = {}
        self._numbers = itertools.count(1001, 2)

    @property
    def connection(self) -> str:
        """Return Airflow's connection, as JSON."""
        where = {"host": "127.0.0.1", "port": self._port, "schema": "http"}
        return json.dumps({"conn_type": "databricks", **where, "password": "token-of-the-test"})

    def launches(self, request: Request) -> bool:
        return request.path.endswith("/jobs/runs/submit")

    def refused(self, status: int, text: str) -> Response:
        name = "INVALID_PARAMETER_VALUE" if status < 500 else "TEMPORARILY_UNAVAILABLE"
        return json_response({"error_code": name, "message": text}, status)

    def answer(self, request: Request) -> Response:
        try:
            return json_response(self._answer(request))
        except HTTPException as error:
            return self.refused(error.code or 500, str(error.description))

    def _answer(self, request: Request) -> Body:
        asked: Body = request.get_json(silent=True, force=True) or request.args
        match request.method, request.path.strip("/").split("/")[2:]:
            case "POST", ["jobs", "runs", "submit"]:
                return self._submit(asked)
            case "GET", ["jobs", "runs", "get"]:
                return self._view(self._find(asked))
            case "GET", ["jobs", "runs", "get-output"]:
                return self._output(self._find(asked))
            case "POST", ["jobs", "runs", "cancel"]:
                return self._cancel(self._find(asked))
        raise NotFound(f"this server has no {request.path}")

    def _submit(self, asked: Body) -> Body:
        token = asked.get("idempotency_token")
        for run in self.runs.values():
            if token and run.token == token:
                return {"run_id": run.number}
        task = _task(asked)
        submission = _submission(task)
        number = next(self._numbers)
        name, key = asked.get("run_name") or "Untitled", task.get("task_key") or "main"
        self.runs[number] = Run(number, name, key, token, self.host.submit(submission))
        return {"run_id": number}

    def _find(self, asked: Body) -> Run:
        number = int(asked["run_id"])
        for run in self.runs.values():
            if number in (run.number, run.task_run):
                return run
        raise BadRequest(f"Run {number} does not exist.")

    def _view(self, run: Run) -> Body:
        task = {"run_id": run.task_run, "task_key": run.task, "state": run.state()}
        page = f"{self.url}/#job/{run.number}/run/{run.number}"
        return {
            "run_id": run.number, "job_id": run.number, "run_name": run.name, "run_page_url": page, "state": run.state(), "tasks": [task],
        }  # fmt: skip

    def _output(self, run: Run) -> Body:
        output = {"metadata": self._view(run), "logs": "\n".join(run.driver.lines()[-KEPT:])}
        return {**output, "error": run.state()["state_message"]} if run.driver.code else output

    def _cancel(self, run: Run) -> Body:
        if run.driver.code is None:
            run.cancelled = True
            run.driver.end()
        return {}


def _task(asked: Body) -> Body:
    """Return the one task. It stands in ``tasks``, or for itself."""
    tasks: list[Body] = asked.get("tasks") or [asked]
    if len(tasks) != 1:
        raise BadRequest("this server runs one task in a run")
    return tasks[0]


def _submission(task: Body) -> Submission:
    cluster: Body = task.get("new_cluster") or {}
    environment = {name: str(value) for name, value in (cluster.get("spark_env_vars") or {}).items()}
    if words := (task.get("spark_submit_task") or {}).get("parameters"):
        return Submission.of_words(words, environment)
    python = task.get("spark_python_task")
    if not python or not cluster:
        raise BadRequest("this server runs a spark_python_task or a spark_submit_task on a new_cluster")
    libraries = [library for each in task.get("libraries") or () for library in each.items()]
    if unknown := [kind for kind, _ in libraries if kind not in LIBRARIES]:
        raise BadRequest(f"this server has no libraries of {', '.join(unknown)}")
    options = [
        word
        for option in sorted(set(LIBRARIES.values()))
        for word in listed(option, (file for kind, file in libraries if LIBRARIES[kind] == option))
    ]
    confs = {name: str(value) for name, value in (cluster.get("spark_conf") or {}).items()}
    arguments = [str(argument) for argument in python.get("parameters") or ()]
    return Submission(
        application=python["python_file"], arguments=arguments, confs=confs, options=options, environment=environment
    )
