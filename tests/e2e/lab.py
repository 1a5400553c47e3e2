"""A run of a job on a real Airflow, with its processes, its journal and what it leaves. Runs on Linux."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.protocol.keys import History, Keys
from airflow_checkpoint_provider.protocol.launch_records import AttemptRecord
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import LocalStore, S3Store, Store
from tests.support import processes
from tests.support.runs import Ended
from tests.support.services.livy import Livy
from tests.support.stack import Stack
from tests.support.stored import stored_stages
from tests.support.waiting import wait_until

JOBS = Path(__file__).parent / "jobs"
TASK = "job"
TRIES = 4  # at most in a test
PATIENCE = 600  # seconds for one step of a run, others working at the same time
PR_SET_CHILD_SUBREAPER = 36
RESULT = {"seen": ["one", "two", "three"], "total": sum(range(1000)) + 3 * 1000}
"""What each attempt of ``stages.py`` finds, beside its number."""
KEY_ID, SECRET, TOKEN = "AKIARECOGNISED", "a-secret-to-be-recognised", "a-token-to-be-recognised"
"""Of the connection ``in_s3``, with which the DAGs work whose ids end in ``_s3``."""


def adopt_orphans() -> None:
    """Descendants whose parent dies become this process's children, which can ask for their exit codes."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def exit_code(orphan: int) -> int:
    """Of a process that is now our child and ends by itself."""
    wait_until(lambda: not processes.alive(orphan), PATIENCE, f"process {orphan} lives on")
    return os.waitstatus_to_exitcode(os.waitpid(orphan, 0)[1])


class Lab:
    """The stack, the stores of checkpoints, a folder for each run, and a Livy.

    ``database`` is the link by which the API server reaches the database's folder: a test can take it away.
    """

    def __init__(
        self, stack: Stack, local: LocalStore, s3: S3Store, folder: Path, database: Path, livy: Livy | None = None
    ) -> None:
        self.stack, self.s3, self.database, self.livy = stack, s3, database, livy
        self._local, self._folder = local, folder
        self.writing = threading.Lock()  # two requests that write at once may lock each other out of SQLite

    def wait_until(self, ready: Callable[[], object], say: Callable[[], str]) -> None:
        """As ``waiting.wait_until``; not without Airflow."""

        def ready_or_over() -> object:
            if self.stack.ended:
                raise RuntimeError(f"Airflow has ended; see {self.stack.home}/*.log")
            return ready()

        wait_until(ready_or_over, PATIENCE, say, every=0.5)

    def start(self, dag: str, *closed: str, history: History | None = None, **conf: str) -> Run:
        """Trigger a run whose driver waits at the gates ``closed``."""
        folder = self.folder(dag)
        for try_number in range(1, TRIES + 1):
            (folder / "events" / str(try_number)).mkdir(parents=True)
        for gate in closed:
            (folder / f"closed-{gate}").touch()
        return Run(self, dag, folder, history, conf)

    def folder(self, dag: str) -> Path:
        """For one run; not there yet."""
        return self._folder / f"{dag}-{uuid.uuid4().hex[:6]}"

    def at_two(self, dag: str = "stages", *closed: str) -> Run:
        """A run whose first stage is stored and whose driver waits before the second."""
        run = self.start(dag, "two", *closed)
        run.wait_at("two")
        run.wait_stored("one")
        return run

    def journal(self, history: History) -> Journal:
        return Journal(self.store(history), Keys(history.prefix), By("test", "test", ""))

    def store(self, history: History) -> Store:
        return self.store_of(history.job)

    def store_of(self, job: str) -> Store:
        return self.s3 if "_s3." in job else self._local


class Run:
    """One DAG run with its one task."""

    def __init__(self, lab: Lab, dag: str, folder: Path, history: History | None, conf: dict[str, str]) -> None:
        self.lab, self.dag, self.folder = lab, dag, folder
        self.client = lab.stack.client
        with lab.writing:
            self.id = self.client.trigger(dag, {"folder": str(folder), **conf})
        self.history = history or History(f"{dag}.{TASK}", self.id)
        self.store = lab.store(self.history)

    # -- the job -----------------------------------------------------------------------------------------------------

    def wait_at(self, gate: str, attempt: int = 1) -> None:
        """Until the driver of that attempt waits there."""
        self.lab.wait_until((self.folder / f"at-{gate}-{attempt}").exists, self.report)

    def wait_stored(self, stage: str) -> None:
        """Until a completed checkpoint holds the stage."""
        self.lab.wait_until(lambda: stage in stored_stages(self.state), self.report)

    def open(self, gate: str) -> None:
        (self.folder / f"closed-{gate}").unlink()

    @property
    def results(self) -> list[dict[str, Any]]:
        """What each attempt found that came to the end of its ``with``."""
        path = self.folder / "results"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def computed(self, try_number: int) -> list[str]:
        """The stages that the driver of that try computed, by Spark's own record."""
        return Ended(0, "", self.folder / "events" / str(try_number)).computed

    # -- the journal -------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self.lab.journal(self.history).catch_up()

    def attempt(self, epoch: int) -> AttemptRecord:
        found = self.state.attempt(epoch)
        assert found is not None
        return found

    def wait_for(self, condition: Callable[[State], object]) -> None:
        """Until the journal says so."""
        self.lab.wait_until(lambda: condition(self.state), self.report)

    def wait_adopted(self, try_number: int) -> None:
        self.wait_for(lambda state: state.launches[-1].adopted_by == try_number)

    # -- Airflow -----------------------------------------------------------------------------------------------------

    def task(self) -> dict[str, Any]:
        return self.client.task(self.dag, self.id, TASK)

    def wait_running(self, try_number: int) -> None:
        self.client.wait_for_task(self.dag, self.id, TASK, {"running"}, try_number, PATIENCE)

    def ended(self, state: str, try_number: int) -> None:
        """Wait for the run's end, and for it to be this one."""
        found = self.client.wait_for_run(self.dag, self.id, PATIENCE)
        task = self.task()
        assert (found, task["state"], task["try_number"]) == (state, state, try_number), self.report()

    def wait_logged(self, words: str, try_number: int) -> None:
        self.wait_running(try_number)  # before, there is no log
        self.lab.wait_until(lambda: words in self.log(try_number), self.report)

    def log(self, try_number: int) -> str:
        return "\n".join(self.client.logs(self.dag, self.id, TASK, try_number))

    def xcom(self) -> Any:
        return self.client.xcom(self.dag, self.id, TASK)

    def clear(self) -> None:
        with self.lab.writing:
            self.client.clear(self.dag, self.id, TASK)

    def mark_failed(self) -> None:
        with self.lab.writing:
            self.client.set_task(self.dag, self.id, TASK, "failed")

    def report(self) -> str:
        """For the message of a failed wait."""
        task = self.task()
        last = self.log(task["try_number"])[-6000:]
        where = f"{self.dag} {self.id}: {task['state']} in try {task['try_number']}"
        return f"{where}, attempts {self.state.attempts}\n{last}"

    # -- processes ---------------------------------------------------------------------------------------------------

    def driver(self, script: Path = JOBS / "stages.py") -> int:
        """The Python process that runs the script."""
        (pid,) = (pid for pid in processes.drivers(script) if self._has(pid))
        return pid

    def jvm(self) -> int:
        """The JVM of the driver: in client mode that is what the task started."""
        (pid,) = (
            pid for pid in processes.find(self._has) if "org.apache.spark.deploy.SparkSubmit" in processes.command(pid)
        )
        return pid

    def process(self) -> int:
        """The task's own process; its parent is its supervisor."""
        pid: int = self.task()["pid"]
        return pid

    def _has(self, pid: int) -> bool:
        return str(self.folder) in processes.command(pid)


class Look:
    """One run of the task of ``dags/look_up.py``: it waits for ``go``, then looks up."""

    def __init__(self, lab: Lab, conn_id: str) -> None:
        self.folder = folder = lab.folder("look_up")
        folder.mkdir(parents=True)
        with lab.writing:
            lab.stack.client.trigger("look_up", {"conn_id": conn_id, "folder": str(folder)})
        wait_until((folder / "ready").exists, PATIENCE, "the task did not start")

    def answer(self) -> str:
        (self.folder / "go").touch()
        wait_until((self.folder / "answer").exists, PATIENCE, "the task did not answer")
        return (self.folder / "answer").read_text()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def wait_gone(pid: int) -> None:
    wait_until(lambda: not processes.alive(pid), say=lambda: f"process {pid} lives on: {processes.command(pid)}")
