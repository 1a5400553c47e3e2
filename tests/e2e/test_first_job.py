"""The page for new users: each of its commands runs, and its job survives both kills. Its installation: test_python_releases.py."""

from __future__ import annotations

import re
import runpy
import shlex
import signal
from pathlib import Path

import pyarrow.parquet
import pytest

from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator
from tests.support.first_job import PAGE, PATIENCE, Reader, blocks, read
from tests.support.processes import free_port
from tests.support.waiting import wait_until

SCRIPT = "jobs/after.py"
(COMPLETED,) = set(re.findall(r"`(chk-1 completed [^`]+)`", PAGE))
(READY,) = re.findall(r"`(Airflow is \w+)`", PAGE)
GET = "airflow connections get checkpoint_default"


class JobReader(Reader):
    """The reader of docs/start/first-job.md."""

    def task_log(self, number: int) -> str:
        """Return the log of a try of the page's task."""
        logs = self.folder.glob(f"airflow/logs/dag_id=first/**/attempt={number}.log")
        return "".join(map(read, logs))

    def totals(self) -> dict[int, int]:
        rows = pyarrow.parquet.read_table(self.folder / "totals").to_pylist()
        return {row["customer"]: row["orders"] for row in rows}


@pytest.fixture
def reader(tmp_path: Path) -> JobReader:
    return JobReader(tmp_path, SCRIPT)


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


def test_java_of_the_page_is_here(reader: JobReader) -> None:
    java, _ = blocks(1)
    assert "version" in reader.run(java)


@pytest.mark.slow  # test_example_dag.py kills a driver, and compares with the undisturbed result
@pytest.mark.timeout(1800)
def test_plain_job_has_the_same_result(reader: JobReader) -> None:
    reader.run("sed -i 's/sleep(60)/sleep(0)/' jobs/before.py && python jobs/before.py")
    assert reader.totals() == dict.fromkeys(range(100), 100)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_job_continues_with_the_lines_that_the_page_shows(reader: JobReader) -> None:
    start, kill, look = blocks(3)
    (shown,) = blocks(3, "text")
    reader.run("sed -i 's/sleep(60)/sleep(20)/' jobs/after.py")  # a person needs longer to kill it
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


def test_connections_lead_to_the_folder_and_to_the_bucket(reader: JobReader, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, storage, in_s3 = blocks(4)
    (reader.folder / "lake").mkdir()
    roots = []
    for commands in (storage, in_s3):
        *_, connection = shlex.split(commands.replace("$PWD", str(reader.folder)))
        monkeypatch.setenv("AIRFLOW_CONN_CHECKPOINT_DEFAULT", connection)
        roots.append(CheckpointStorageHook().get_store().uri)
    assert roots == [f"file://{reader.folder}/lake", "s3://lake/checkpoints"]


def test_dag_submits_the_script_of_the_page(reader: JobReader) -> None:
    dag = runpy.run_path(str(reader.folder / "airflow" / "dags" / "first.py"))["dag"]
    (task,) = dag.tasks
    assert isinstance(task, CheckpointedSparkSubmitOperator)
    assert Path(task.application) == reader.folder / SCRIPT


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_task_continues_in_airflow(reader: JobReader) -> None:
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
