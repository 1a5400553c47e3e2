"""What may happen to a checkpointed task, whatever service runs its driver. Runs on Linux.

The task is a process, in an environment that has the provider of the service; the service runs real drivers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

from airflow_checkpoint_provider.coordinator.coordinator import open_history
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import LocalStore
from tests.e2e.lab import JOBS
from tests.support.providers import Environment
from tests.support.providers import Task as EndedTask
from tests.support.services.service import Service
from tests.support.stored import stored_stages
from tests.support.task_process import RUN
from tests.support.waiting import wait_until

SCRIPT = str(JOBS / "stages.py")
STAGES = ["one", "two", "three", "four", "five"]
PATIENCE = 400  # seconds for one step of a task


@dataclass
class CheckpointedTask:
    """``operator`` is ``module:Class``. ``arguments`` submit ``SCRIPT`` with the words of ``words``. ``cancels`` matches the
    request by which the service ends a driver, method and path. ``refusal`` is the status of a launch that the service refuses, after which
    the client of the operator does not ask again by itself."""

    environment: Environment
    service: Service
    operator: str
    arguments: Mapping[str, Any]
    variables: Mapping[str, str]
    folder: Path
    cancels: str = "POST .*cancel"
    refusal: int = 500

    def run(self, try_number: int) -> EndedTask:
        return self.environment.run(self.operator, self._arguments, self._variables, try_number=try_number)

    @contextmanager
    def running(self, try_number: int) -> Iterator[Popen[bytes]]:
        log = self.folder / f"try-{try_number}"
        with self.environment.running(
            self.operator, self._arguments, self._variables, log, try_number=try_number
        ) as process:
            yield process

    def log(self, try_number: int) -> str:
        return (self.folder / f"try-{try_number}").read_text(errors="replace")

    @property
    def _arguments(self) -> dict[str, Any]:
        return {"retries": 3, "checkpoint_conn_id": "with_code", **self.arguments}

    @property
    def _variables(self) -> dict[str, str]:
        for name in ("checkpoints", "code"):
            (self.folder / name).mkdir(mode=0o755, exist_ok=True)
        extra = {"root": str(self.folder / "checkpoints"), "code": str(self.folder / "code")}
        return {
            "AIRFLOW_CONN_WITH_CODE": json.dumps({"conn_type": "checkpoint_storage", "extra": extra}),
            "CHECKPOINT_HEARTBEAT_SECONDS": "1",
            "TASK_STATE": str(self.folder / "task-state"),
            **self.variables,
        }

    # -- the job -----------------------------------------------------------------------------------------------------

    def close(self, gate: str) -> None:
        (self.folder / f"closed-{gate}").touch()

    def open(self, gate: str) -> None:
        (self.folder / f"closed-{gate}").unlink()

    def wait_at(self, gate: str, attempt: int = 1) -> None:
        wait_until((self.folder / f"at-{gate}-{attempt}").exists, PATIENCE, lambda: self.log(1))

    def wait_stored(self, stage: str) -> None:
        wait_until(lambda: stage in stored_stages(self.state), PATIENCE, lambda: self.log(1))

    @property
    def results(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "results").read_text().splitlines()]

    @property
    def state(self) -> State:
        store = LocalStore(str(self.folder / "checkpoints"))
        return open_history(store, History("services.submit", RUN).prefix).journal.catch_up()

    @property
    def drivers(self) -> int:
        return len(self.service.host.started)

    def reused(self, driver: int) -> list[str]:
        """Return the stages that a driver has not computed again."""
        said = self.service.host.started[driver].said()
        return [name for name in STAGES if f"stage '{name}': reused" in said]


Event = Callable[[CheckpointedTask], None]


def words(folder: Path) -> list[str]:
    """Return the arguments of the script."""
    return [str(folder), "--stages", *STAGES]


def killed_in_stage_three(task: CheckpointedTask) -> None:
    task.service.host.crash_next("kill", "stage/three/rows-written")
    first = task.run(1)
    assert first.code == 1, first.log
    second = task.run(2)
    assert second.code == 0, second.log
    assert (second.result["attempts"], second.result["ended"]) == (2, "finished")
    assert task.reused(1) == ["one", "two"]
    assert [(found["attempt"], found["seen"]) for found in task.results] == [(2, STAGES)]
    assert "[CKP101]" in second.log


def killed_before_stage_three(task: CheckpointedTask) -> None:
    """As the last one, for a service whose drivers are no submissions."""
    task.close("three")
    with task.running(1) as process:
        task.wait_at("three")
        task.wait_stored("two")
        task.service.host.started[0].kill()
        assert process.wait(PATIENCE) == 1, task.log(1)
    task.open("three")
    second = task.run(2)
    assert second.code == 0, second.log
    assert task.reused(1) == ["one", "two"]
    assert [(found["attempt"], found["seen"]) for found in task.results] == [(2, STAGES)]


def worker_lost_while_its_driver_lives(task: CheckpointedTask) -> None:
    task.close("three")
    with task.running(1) as process:
        task.wait_at("three")
        process.kill()
        process.wait(60)
    with task.running(2) as process:
        wait_until(lambda: "[CKP110]" in task.log(2), PATIENCE, lambda: task.log(2))
        task.open("three")
        assert process.wait(PATIENCE) == 0, task.log(2)
    assert task.drivers == 1
    assert [(found["attempt"], found["seen"]) for found in task.results] == [(1, STAGES)]


def adopted_and_killed(task: CheckpointedTask) -> None:
    """The service is asked to end the driver of a lost worker, too."""
    task.close("three")
    with task.running(1) as process:
        task.wait_at("three")
        process.kill()
        process.wait(60)
    with task.running(2) as process:
        wait_until(lambda: "[CKP110]" in task.log(2), PATIENCE, lambda: task.log(2))
        process.terminate()
        process.wait(PATIENCE)
        requests = [" ".join(request) for request in task.service.requests]
        assert any(re.fullmatch(task.cancels, request) for request in requests), task.log(2)
    wait_until(lambda: not task.service.host.started[0].left(), PATIENCE, lambda: task.log(2))


def cleared_while_running(task: CheckpointedTask) -> None:
    """SIGTERM is what a clear sends, or whoever marks the task as failed."""
    task.close("three")
    with task.running(1) as process:
        task.wait_at("three")
        process.terminate()
        process.wait(PATIENCE)
    wait_until(lambda: not task.service.host.started[0].left(), PATIENCE, lambda: task.log(1))
    task.open("three")
    second = task.run(2)
    assert second.code == 0, second.log
    assert task.reused(1) == ["one", "two"]
    assert [(found["attempt"], found["seen"]) for found in task.results] == [(2, STAGES)]


def refused_launch(task: CheckpointedTask) -> None:
    task.service.refuse_launch(task.refusal)
    first = task.run(1)
    assert first.code == 1, first.log
    assert task.drivers == 0
    second = task.run(2)
    assert second.code == 0, second.log
    assert task.results[0]["seen"] == STAGES
    assert second.result["attempts"] == 1


def finished_before_the_worker_was_lost(task: CheckpointedTask) -> None:
    task.close("end")
    with task.running(1) as process:
        task.wait_at("end")
        process.kill()
        process.wait(60)
    task.open("end")
    second = task.run(2)
    assert second.code == 0, second.log
    assert "[CKP111]" in second.log
    assert task.drivers == 1


STEPS = (
    killed_in_stage_three, worker_lost_while_its_driver_lives, cleared_while_running, refused_launch, finished_before_the_worker_was_lost,
)  # fmt: skip
ALL = (*STEPS, adopted_and_killed)
TRIED: Mapping[str, Sequence[Event]] = {
    "`SparkApplication`": ALL,
    "EMR steps": STEPS,
    "a pod": (killed_before_stage_three, *ALL[1:]),
    "EMR Serverless": ALL,
    "Dataproc": ALL,
    "Databricks": ALL,
}
"""The events of each operator, as docs/orchestrate/any-operator.md names it."""
