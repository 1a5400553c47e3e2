"""An Airflow whose checkpoints are driven by tasks and taken by the test: there is no Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_checkpoint_provider.storage import open_store
from tests.support.acting import Job
from tests.support.s3server import S3Server
from tests.support.stack import Stack
from tests.support.waiting import wait_until

SECONDS = 90  # for one step


class Stage:
    """The stack, and a store in S3. The connection is in Airflow's database, as people add it."""

    def __init__(self, stack: Stack, server: S3Server) -> None:
        self.stack, self.client = stack, stack.client
        root = "s3://lifecycle/ckp"
        server.make_bucket("lifecycle")
        connection = server.connection(root)
        self.secret = connection["password"]
        data = {"connection_id": "checkpoint_default", **connection, "extra": json.dumps(connection["extra"])}
        self.client.write("POST", "/api/v2/connections", data)
        self._store = open_store(root, s3=server.settings())
        self._jobs: dict[str, Job] = {}

    def job(self, name: str) -> Job:
        """A job that runs, from its first mention to the end."""
        if name not in self._jobs:
            self._jobs[name] = Job(self._store, name)
            self._jobs[name].start()
            self._jobs[name].beat()
        return self._jobs[name]

    def run(self, dag: str, **conf: str) -> Run:
        return Run(self, dag, self.client.trigger(dag, conf))


class Run:
    """One DAG run."""

    def __init__(self, stage: Stage, dag: str, run: str) -> None:
        self.client, self.dag, self.id = stage.client, dag, run

    def wait_for(self, state: str, *tasks: str, try_number: int = 0) -> None:
        for task in tasks:
            self.client.wait_for_task(self.dag, self.id, task, {state}, try_number, SECONDS)

    def ended(self) -> tuple[str, dict[str, str | None]]:
        """How the run ended, and each of its tasks."""
        return self.client.wait_for_run(self.dag, self.id, SECONDS), self.states()

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
        self.client.clear(self.dag, self.id, *tasks)

    def log(self, task: str, try_number: int = 1) -> str:
        return "\n".join(self.client.logs(self.dag, self.id, task, try_number))

    def wait_logged(self, words: str, task: str) -> None:
        wait_until(lambda: words in self.log(task), SECONDS, lambda: self.log(task))


@pytest.fixture(scope="package")
def stage(tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("lifecycle")
    env = {
        "AIRFLOW__CORE__PARALLELISM": "6",
        "CHECKPOINT_HEARTBEAT_SECONDS": "1",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "12",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
    }
    with Stack(folder / "airflow", Path(__file__).parent / "dags", env) as stack:
        stack.client.wait_for_dag("waits")
        assert stack.client.import_errors() == {}
        yield Stage(stack, s3_server)
