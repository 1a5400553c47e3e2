"""A shell command that is a Spark driver: it finds its launch in a variable, and its retry continues. Runs on Linux."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException

from airflow_checkpoint_provider.coordinator.liveness import VARIABLE
from airflow_checkpoint_provider.operators.bash import CheckpointedBashOperator
from tests.e2e.lab import JOBS, RESULT
from tests.support import processes
from tests.support.drivers import fast_confs
from tests.support.providers import Environment
from tests.support.state_store import TaskStateStore
from tests.support.waiting import wait_until
from tests.unit.operators.submissions import DagRun, TaskInstance

pytestmark = [
    pytest.mark.slow,  # test_mixin.py and test_hand_over.py show the parts; test_example_dag.py kills a driver
    pytest.mark.timeout(900),
]
OPERATOR = "airflow_checkpoint_provider.operators.bash:CheckpointedBashOperator"
SCRIPT = JOBS / "stages.py"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    storage = {"conn_type": "checkpoint_storage", "extra": {"root": str(tmp_path / "checkpoints")}}
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", json.dumps(storage))
    monkeypatch.setenv(VARIABLE, "1")
    return tmp_path


def command(folder: Path) -> str:
    confs = [word for name, value in fast_confs(folder).items() for word in ("--conf", f"{name}={value}")]
    words = ["spark-submit", "--master", "local[1]", *confs]
    return f'{shlex.join(words)} --py-files "$CHECKPOINT_ARCHIVE" {SCRIPT} {folder}'


class Task:
    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.state_store, self.options = folder, TaskStateStore(), options

    def run(self, try_number: int = 1) -> Any:
        with DAG("etl", schedule=None):
            task = CheckpointedBashOperator(task_id="job", bash_command=command(self.folder), retries=2, **self.options)
        ti = TaskInstance(try_number=try_number)
        return task.execute({"ti": ti, "dag_run": DagRun(), "task_state_store": self.state_store, "task_instance": ti})


@contextmanager
def killed_at(folder: Path, gate: str) -> Iterator[None]:
    """Kill the driver that waits at a gate, and open the gate."""
    (folder / f"closed-{gate}").touch()

    def kill() -> None:
        wait_until((folder / f"at-{gate}-1").exists, 300, "no driver comes to the gate")
        (driver,) = processes.drivers(SCRIPT)
        os.kill(driver, signal.SIGKILL)
        (folder / f"closed-{gate}").unlink()

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    yield
    thread.join(60)


@contextmanager
def worker(folder: Path, bash_command: str, try_number: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a try as a process of its own."""
    asked = {"bash_command": bash_command, "retries": 2}
    variables, log = {"TASK_STATE": str(folder / "task-state")}, folder / f"try-{try_number}"
    with Environment(sys.executable).running(OPERATOR, asked, variables, log, try_number=try_number) as process:
        yield process


def worker_at(folder: Path, gate: str, sig: signal.Signals) -> None:
    """Run the first try until its driver waits at a gate, and end its worker. The gate stays closed."""
    (folder / f"closed-{gate}").touch()
    with worker(folder, command(folder), 1) as process:
        wait_until((folder / f"at-{gate}-1").exists, 300, (folder / "try-1").read_text)
        process.send_signal(sig)
        process.wait(300)


def finished(folder: Path) -> str:
    """Return the log of the second try, which succeeds."""
    with worker(folder, command(folder), 2) as process:
        assert process.wait(300) == 0, (folder / "try-2").read_text()
    return (folder / "try-2").read_text()


def results(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "results").read_text().splitlines()]


def test_retry_of_a_killed_driver_continues(folder: Path) -> None:
    task = Task(folder)
    with killed_at(folder, "three"), pytest.raises(AirflowException, match="attempt 1 failed"):
        task.run()
    ended = task.run(try_number=2)
    assert (ended["attempts"], ended["ended"]) == (2, "finished")
    assert results(folder) == [{"attempt": 2, **RESULT}]


def test_driver_of_a_lost_worker_is_followed(folder: Path) -> None:
    """The driver outlives the process of its task, as it has a session of its own."""
    worker_at(folder, "three", signal.SIGKILL)
    again = folder / "try-2"
    with worker(folder, command(folder), 2) as process:
        wait_until(lambda: "[CKP110]" in again.read_text(), 300, again.read_text)
        (folder / "closed-three").unlink()
        assert process.wait(300) == 0, again.read_text()
    assert results(folder) == [{"attempt": 1, **RESULT}]


def test_clear_ends_the_driver_and_the_next_try_continues(folder: Path) -> None:
    worker_at(folder, "three", signal.SIGTERM)
    wait_until(lambda: not processes.job(str(SCRIPT), folder), 300, (folder / "try-1").read_text)
    (folder / "closed-three").unlink()
    log = finished(folder)
    assert log.count(": reused, ") == 2, log
    assert results(folder) == [{"attempt": 2, **RESULT}]


def test_command_that_starts_no_driver_is_no_attempt(folder: Path) -> None:
    with worker(folder, f"echo refused; exit 1; {command(folder)}", 1) as process:
        assert process.wait(300) == 1, (folder / "try-1").read_text()
    log = finished(folder)
    assert results(folder) == [{"attempt": 1, **RESULT}], log


def test_driver_that_finished_after_its_worker_was_lost_is_not_started_again(folder: Path) -> None:
    worker_at(folder, "end", signal.SIGKILL)
    (folder / "closed-end").unlink()
    assert "[CKP111]" in finished(folder)
    assert results(folder) == [{"attempt": 1, **RESULT}]
