"""What EMR does with steps and job runs: it starts a driver, and its exit code decides the state. Runs on Linux."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moto.core.utils import utcnow

from tests.support.services.hosts import Host, Hosted
from tests.support.services.submission import ON_YARN, Submission

if TYPE_CHECKING:
    from moto.emr.models import ElasticMapReduceBackend, Step
    from moto.emrserverless.models import EMRServerlessBackend, JobRun

SERVERLESS = "spark.emr-serverless.driverEnv."
"""Begins the names of confs that are variables of a serverless driver."""
Body = Mapping[str, Any]


class Steps:
    """The steps of a cluster run one after the other, as on a cluster whose step concurrency is one."""

    def __init__(self, backend: ElasticMapReduceBackend, host: Host) -> None:
        self._backend, self._host = backend, host
        self.drivers: dict[str, Hosted] = {}

    def check(self, body: Body) -> None:
        """Raise ``ValueError`` for a step that this server cannot run."""
        for step in body["Steps"]:
            _words(step["HadoopJarStep"])

    def advance(self) -> None:
        """Write how drivers have ended, and start the next step of each cluster."""
        for cluster in self._backend.clusters.values():
            for step in cluster.steps:
                self._advance(step, cluster.steps)

    def _advance(self, step: Step, steps: list[Step]) -> None:
        driver = self.drivers.get(step.id)
        if driver is not None and step.state == "RUNNING" and driver.code is not None:
            _end(step, "FAILED" if driver.code else "COMPLETED", f"exit code {driver.shell_code}")
            if driver.code and step.action_on_failure != "CONTINUE":
                for other in steps:
                    if other.id not in self.drivers and other.state in ("PENDING", "RUNNING"):
                        _end(other, "CANCELLED", f"step {step.id} failed")
        elif driver is None and step.state in ("PENDING", "RUNNING"):
            busy = any(other.state == "RUNNING" and other.id in self.drivers for other in steps)
            step.state = "PENDING" if busy else "RUNNING"
            if not busy:
                step.start_date_time = utcnow()
                self.drivers[step.id] = self._host.submit(_words(step.hadoop_jar_step))

    def cancel(self, body: Body) -> Body:
        """Do what moto lacks: ``CancelSteps``."""
        steps = {step.id: step for step in self._backend.clusters[body["ClusterId"]].steps}
        answers = [{"StepId": asked, "Status": self._cancel(steps[asked])} for asked in body["StepIds"]]
        return {"CancelStepsInfoList": answers}

    def _cancel(self, step: Step) -> str:
        if step.state not in ("PENDING", "RUNNING"):
            return "FAILED"
        if driver := self.drivers.get(step.id):
            driver.end()
        _end(step, "CANCELLED", "cancelled by user")
        return "SUBMITTED"


def _end(step: Step, state: str, reason: str) -> None:
    vars(step).update(state=state, end_date_time=utcnow(), last_state_change_reason=reason)


def _words(jar_step: Body) -> Submission:
    words = list(jar_step.get("Args") or ())
    if not jar_step.get("Jar", "").endswith("command-runner.jar") or words[:1] != ["spark-submit"]:
        raise ValueError("this server runs steps of command-runner.jar with spark-submit")
    asked = Submission.of_words(words[1:])
    return asked.with_variables_of(ON_YARN) if asked.in_cluster_mode else asked


class JobRuns:
    """Job runs of serverless applications run at once."""

    def __init__(self, backend: EMRServerlessBackend, host: Host) -> None:
        self._backend, self._host = backend, host
        self.drivers: dict[str, Hosted] = {}

    def check(self, body: Body) -> None:
        """Raise ``ValueError`` for a job run that this server cannot run."""
        _submission(body["jobDriver"], body.get("configurationOverrides"))

    def known(self, application: str, body: Body) -> Body | None:
        """Return the answer to a request that came before with the same token, as the service does. moto would run it twice."""
        for run in self._backend.job_runs.get(application, ()):
            if run.client_token == body["clientToken"]:
                return {"applicationId": application, "jobRunId": run.id, "arn": run.arn}
        return None

    def advance(self) -> None:
        """Start what is new, and write how drivers have ended."""
        for runs in self._backend.job_runs.values():
            for run in runs:
                self._advance(run)

    def _advance(self, run: JobRun) -> None:
        driver = self.drivers.get(run.id)
        if driver is None:
            self.drivers[run.id] = driver = self._host.submit(_submission(run.job_driver, run.configuration_overrides))
        if run.state == "CANCELLED":
            return
        code = driver.code
        run.state = "RUNNING" if code is None else "FAILED" if code else "SUCCESS"
        run.state_details = "" if code is None else f"exit code {driver.shell_code}"

    def cancel(self, run: str) -> None:
        """End the driver. moto writes the state."""
        if driver := self.drivers.get(run):
            driver.end()


def _submission(job_driver: Any, overrides: Any) -> Submission:
    """Return what a job run asks for. Its parameters win over its application configuration."""
    if "sparkSubmit" not in (job_driver or {}):
        raise ValueError("this server runs jobs of sparkSubmit")
    asked: dict[str, Any] = job_driver["sparkSubmit"]
    words = shlex.split(asked.get("sparkSubmitParameters") or "")
    said = Submission.of_words([*words, asked["entryPoint"], *(asked.get("entryPointArguments") or ())])
    confs = dict[str, str]()
    for configuration in (overrides or {}).get("applicationConfiguration") or ():
        if configuration["classification"] == "spark-defaults":
            confs |= configuration.get("properties") or {}
    return replace(said, confs={**confs, **said.confs}).with_variables_of(SERVERLESS)
