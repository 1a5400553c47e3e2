"""Apache Livy's batches, as of Livy 0.9: ``POST /batches`` runs a real ``spark-submit``. Runs on Linux.

    with Host(folder) as host, Livy(host) as livy:
        monkeypatch.setenv("AIRFLOW_CONN_LIVY_DEFAULT", livy.connection)

Its drivers have the variables of YARN's cluster mode. It is kinder than Livy in what it does not check: users, and the folders of
local files that Livy may submit.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from werkzeug.exceptions import BadRequest, HTTPException, NotFound
from werkzeug.wrappers import Request, Response

from tests.support.services.answers import json_response
from tests.support.services.hosts import Host, Hosted
from tests.support.services.service import Service
from tests.support.services.submission import ON_YARN, Submission, given, listed

KEPT = 200  # lines of a driver's output that Livy keeps, as by default
BLACKLIST = ("spark.master", "spark.submit.deployMode")
LISTS = {"jars": "spark.jars", "files": "spark.files", "archives": "spark.archives", "pyFiles": "spark.submit.pyFiles"}
"""The fields that Livy merges with the conf of the same meaning, in front of it."""
SIZES = {
    "driverMemory": "spark.driver.memory", "driverCores": "spark.driver.cores", "executorMemory": "spark.executor.memory",
    "executorCores": "spark.executor.cores", "numExecutors": "spark.executor.instances",
}  # fmt: skip


@dataclass
class Batch:
    number: int
    name: str | None
    proxy_user: str | None
    driver: Hosted
    killed: bool = False

    @property
    def state(self) -> str:
        """Return ``running``, ``success``, ``dead`` or ``killed``. The exit code of ``spark-submit`` decides."""
        code = self.driver.code
        if code is None:
            return "running"
        return "killed" if self.killed else "dead" if code else "success"

    def log(self) -> list[str]:
        """Return the last lines. Livy reads both streams from one pipe, and names both."""
        return ["stdout: ", *self.driver.lines()[-KEPT:], "\nstderr: "]

    def view(self, state: str | None = None) -> dict[str, Any]:
        """Return what Livy tells of a batch. Without a cluster manager there is no id of an application."""
        nothing = {"driverLogUrl": None, "sparkUiUrl": None, "executorLogUrls": None}
        return {
            "id": self.number, "name": self.name, "owner": None, "proxyUser": self.proxy_user, "state": state or self.state,
            "appId": None, "appInfo": nothing, "log": self.log()[-10:],
        }  # fmt: skip


class Livy(Service):
    """``batches`` has those that Livy knows, by their numbers."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.forget()

    @property
    def connection(self) -> str:
        """Return the URI of Airflow's connection."""
        return f"livy://127.0.0.1:{self._port}"

    def forget(self) -> None:
        """Know nothing any more, as a Livy that was started anew without recovery. The numbers of batches begin anew, too."""
        self.batches: dict[int, Batch] = {}
        self._numbers = itertools.count()

    def kill_application(self, number: int) -> None:
        """End a driver as ``yarn application -kill`` does: Livy hears of it from the cluster manager."""
        self.batches[number].killed = True
        self.batches[number].driver.end()

    def launches(self, request: Request) -> bool:
        return request.method == "POST"

    def refused(self, status: int, text: str) -> Response:
        return json_response({"msg": text}, status)

    def answer(self, request: Request) -> Response:
        try:
            return self._answer(request)
        except HTTPException as error:
            return self.refused(error.code or 500, str(error.description))

    def _answer(self, request: Request) -> Response:
        match request.method, request.path.strip("/").split("/"):
            case "POST", ["batches"]:
                return self._create(request.get_json())
            case "GET", ["batches"]:
                first, size = _number(request, "from", 0), _number(request, "size", 100)
                views = [batch.view() for batch in self.batches.values()][first : first + size]
                return json_response({"from": first, "total": len(self.batches), "sessions": views})
            case "GET", ["batches", batch]:
                return json_response(self._find(batch).view())
            case "GET", ["batches", batch, "state"]:
                found = self._find(batch)
                return json_response({"id": found.number, "state": found.state})
            case "GET", ["batches", batch, "log"]:
                return self._log(request, self._find(batch))
            case "DELETE", ["batches", batch]:
                return self._delete(self._find(batch))
        raise NotFound("no such place")

    def _create(self, body: Mapping[str, Any]) -> Response:
        name = body.get("name")
        if name is not None and (name.isdigit() or any(batch.name == name for batch in self.batches.values())):
            why = f"Invalid session name: {name}" if name.isdigit() else f"Duplicate session name: Some({name})"
            raise BadRequest(f"Rejected, Reason: {why}")
        submission = _submission(body)
        number = next(self._numbers)
        self.batches[number] = batch = Batch(number, name, body.get("proxyUser"), self.host.submit(submission))
        return json_response(batch.view("starting"), 201)

    def _find(self, named: str) -> Batch:
        for batch in self.batches.values():
            if named == (str(batch.number) if named.isdigit() else batch.name):
                return batch
        raise NotFound(f"Session '{named}' not found.")

    def _log(self, request: Request, batch: Batch) -> Response:
        lines = batch.log()
        size, first = _number(request, "size", 100), _number(request, "from", -1)
        size = len(lines) if size < 0 else size
        first = max(0, len(lines) - size) if first < 0 else first
        shown = lines[first : first + size]
        return json_response({"id": batch.number, "from": first, "total": len(lines), "log": shown})

    def _delete(self, batch: Batch) -> Response:
        """End the driver, and forget the batch and its name: afterwards Livy answers 404, not ``killed``."""
        batch.driver.end()
        del self.batches[batch.number]
        return json_response({"msg": "deleted"})


def _submission(body: Mapping[str, Any]) -> Submission:
    """Return what Livy submits. Raise ``BadRequest`` for what it refuses."""
    if not body.get("file"):
        raise BadRequest("Rejected, Reason: requirement failed: File is required.")
    confs = {name: str(value) for name, value in (body.get("conf") or {}).items()}
    if refused := [name for name in BLACKLIST if name in confs]:
        raise BadRequest(f"Rejected, Reason: Blacklisted configuration values in session config: {', '.join(refused)}")
    for name, conf in LISTS.items():
        if both := [
            _resolved(uri)
            for uri in [*(body.get(name) or ()), *confs.get(conf, "").replace(" ", ",").split(",")]
            if uri
        ]:
            confs[conf] = ",".join(both)
    confs |= {conf: str(body[name]) for name, conf in SIZES.items() if body.get(name) is not None}
    options = [
        *given("--class", body.get("className")),
        *given("--queue", body.get("queue")),
        *given("--name", body.get("name")),
    ]
    py_files = listed("--py-files", filter(None, [confs.pop(LISTS["pyFiles"], "")]))
    arguments: Sequence[str] = body.get("args") or ()
    asked = Submission(
        application=_resolved(body["file"]), arguments=arguments, confs=confs, options=[*options, *py_files]
    )
    return asked.with_variables_of(ON_YARN)


def _resolved(uri: str) -> str:
    """Return the path itself where Livy would put the default file system in front, which is this machine's."""
    if ":" not in uri and not uri.startswith("/"):
        raise BadRequest(f"Rejected, Reason: requirement failed: Path '{uri}' is not absolute.")
    return uri


def _number(request: Request, name: str, default: int) -> int:
    return request.args.get(name, default, type=int)
