"""The page for new users: each of its commands runs, and its job survives both kills. Its installation: test_python_releases.py."""

from __future__ import annotations

import re
import runpy
import shlex
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow.parquet
import pytest

from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator
from tests.support.drivers import environment, fast_confs
from tests.support.first_job import PAGE, blocks, save_files
from tests.support.processes import free_port, send
from tests.support.stack import MARK, Part
from tests.support.waiting import wait_until

PATIENCE = 400  # seconds for one driver, or for the start of Airflow; each takes half a minute on an idle machine
SCRIPT = "jobs/after.py"
(COMPLETED,) = set(re.findall(r"`(chk-1 completed [^`]+)`", PAGE))
(READY,) = re.findall(r"`(Airflow is \w+)`", PAGE)
GET = "airflow connections get checkpoint_default"


class Reader:
    """A reader of the page, in a folder with the files to save. The script has its whole path, so that no other job is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        save_files(folder)
        confs = " ".join(f"--conf {name}={value}" for name, value in fast_confs(folder).items())
        self.env = environment(PYSPARK_SUBMIT_ARGS=f"{confs} pyspark-shell", CHECKPOINT_HEARTBEAT_SECONDS="1")

    def run(self, commands: str) -> str:
        """Run commands of the page, and return their output."""
        done = subprocess.run(  # by stdin: pgrep would find the command among the arguments
            ["bash", "-e"], input=self._mine(commands), cwd=self.folder, env=self.env, capture_output=True,
            text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    @contextmanager
    def started(self, commands: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Start commands of the page in another terminal. Nothing that they started is left afterwards."""
        mark = uuid.uuid4().hex
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-ec", self._mine(commands)], cwd=self.folder, env={**self.env, MARK: mark},
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        part = Part(mark, process)

        def swept() -> bool:  # a process may start another one while we look
            send(part.all_pids(), signal.SIGKILL)
            return not part.all_pids()

        try:
            yield process
        finally:
            wait_until(swept, say=lambda: f"{commands} left {part.all_pids()}")
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)

    def task_log(self, number: int) -> str:
        """Return the log of a try of the page's task."""
        logs = self.folder.glob(f"airflow/logs/dag_id=first/**/attempt={number}.log")
        return "".join(map(read, logs))

    def totals(self) -> dict[int, int]:
        rows = pyarrow.parquet.read_table(self.folder / "totals").to_pylist()
        return {row["customer"]: row["orders"] for row in rows}

    def _mine(self, commands: str) -> str:
        return commands.replace(SCRIPT, f"{self.folder}/{SCRIPT}")


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


def on_free_ports() -> dict[str, str]:
    """Return settings that the page's reader does not need: another Airflow may run on this machine."""
    port = free_port()
    return {
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
    }


def read(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""


def test_java_of_the_page_is_here(reader: Reader) -> None:
    java, _ = blocks(1)
    assert "version" in reader.run(java)


@pytest.mark.timeout(1800)
def test_plain_job_has_the_same_result(reader: Reader) -> None:
    reader.run("sed -i 's/sleep(60)/sleep(0)/' jobs/before.py && python jobs/before.py")
    assert reader.totals() == dict.fromkeys(range(100), 100)


@pytest.mark.timeout(1800)
def test_killed_job_continues_with_the_lines_that_the_page_shows(reader: Reader) -> None:
    start, kill, look = blocks(3)
    (shown,) = blocks(3, "text")
    log = reader.folder / "log"
    with reader.started(f"exec {start}", log) as process:
        wait_until(lambda: COMPLETED in read(log), PATIENCE, lambda: read(log))
        reader.run(kill)
        assert process.wait(60) == -signal.SIGKILL

    again = reader.run(start)
    for line in shown.splitlines():
        assert line in again
    assert reader.totals() == dict.fromkeys(range(100), 100)
    told = reader.run(look)
    assert "FINISHED in 2 attempts" in told
    assert "attempt 1" in told


def test_both_terminals_have_the_same_settings() -> None:
    first, second = (re.findall(r"^export .*", commands, re.MULTILINE) for commands in blocks(4)[:2])
    assert first == second != []


def test_connections_lead_to_the_folder_and_to_the_bucket(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, storage, in_s3 = blocks(4)
    (reader.folder / "lake").mkdir()
    roots = []
    for commands in (storage, in_s3):
        *_, connection = shlex.split(commands.replace("$PWD", str(reader.folder)))
        monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", connection)
        roots.append(CheckpointStorageHook().get_store().uri)
    assert roots == [f"file://{reader.folder}/lake", "s3://lake/checkpoints"]


def test_dag_submits_the_script_of_the_page(reader: Reader) -> None:
    dag = runpy.run_path(str(reader.folder / "airflow" / "dags" / "first.py"))["dag"]
    (task,) = dag.tasks
    assert isinstance(task, CheckpointedSparkSubmitOperator)
    assert Path(task.application) == reader.folder / SCRIPT


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_task_continues_in_airflow(reader: Reader) -> None:
    standalone, spark, storage, in_s3 = blocks(4)
    start, kill = blocks(5)
    reader.env |= on_free_ports()
    log = reader.folder / "standalone.log"
    with reader.started(standalone, log):
        wait_until(lambda: READY in read(log), PATIENCE, lambda: read(log))
        assert "Password for user 'admin'" in read(log)
        reader.env["AIRFLOW_HOME"] = f"{reader.folder}/airflow"
        assert "s3://lake/checkpoints" in reader.run(f"{in_s3}{GET}\nairflow connections delete checkpoint_default")
        reader.run(spark + storage + start)
        wait_until(lambda: COMPLETED in reader.task_log(1), PATIENCE, lambda: f"{reader.task_log(1)}\n{read(log)}")
        reader.run(kill)
        wait_until(lambda: "[CKP202]" in reader.task_log(2), PATIENCE, lambda: f"{reader.task_log(2)}\n{read(log)}")

        wait_until(lambda: len(reader.totals()) == 100, say=lambda: reader.task_log(2))
        assert reader.totals() == dict.fromkeys(range(100), 100)
        assert "attempt 1 failed (exit code 137: SIGKILL)" in reader.task_log(1)
        for word in ("RESTORE", "event       retry: attempt 1", "Stored: ", "stage 'orders': reused"):
            assert word in reader.task_log(2)
        show, story = re.findall(r"^\| `(airflow checkpoints .*?)` \|", PAGE, re.MULTILINE)
        assert "FINISHED in 2 attempts" in reader.run(show)
        assert "retry: attempt 1" in reader.run(story)
