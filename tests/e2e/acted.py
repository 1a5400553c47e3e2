"""Runs of DAGs that drive the checkpoints of a job, which a test acts: there is no Spark. Runs on Linux."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.lab import PATIENCE, Lab
from tests.support.acting import Job


def running_job(lab: Lab, name: str) -> Job:
    """Return a job that runs from now on; its history is in S3. Each test has a job, and a DAG, of its own."""
    job = Job(lab.s3, name)
    job.start()
    job.beat()
    return job


class DrivenRun:
    """One run of a DAG of ``dags/driven.py``."""

    def __init__(self, lab: Lab, dag: str, **conf: str) -> None:
        self.lab, self.client, self.dag = lab, lab.stack.client, dag
        with lab.writing:
            self.id = self.client.trigger(dag, conf)

    def wait_for(self, state: str, *tasks: str, try_number: int = 0) -> None:
        for task in tasks:
            self.client.wait_for_task(self.dag, self.id, task, {state}, try_number, PATIENCE)

    def ended(self) -> tuple[str, dict[str, str | None]]:
        """How the run ended, and each of its tasks."""
        return self.client.wait_for_run(self.dag, self.id, PATIENCE), self.states()

    def states(self) -> dict[str, str | None]:
        return self.client.states(self.dag, self.id)

    def asked(self, task: str = "trigger") -> dict[str, Any]:
        """The trigger's XCom."""
        self.wait_for("success", task)
        answer: dict[str, Any] = self.xcom(task)
        return answer

    def xcom(self, task: str) -> Any:
        found = self.client.xcom(self.dag, self.id, task)
        return json.loads(found) if isinstance(found, str) else found

    def clear(self, *tasks: str) -> None:
        with self.lab.writing:
            self.client.clear(self.dag, self.id, *tasks)

    def log(self, task: str, try_number: int = 1) -> str:
        return "\n".join(self.client.logs(self.dag, self.id, task, try_number))
