"""The page "From your operator to checkpoints": its commands and its changes of a DAG are run as they stand. Runs on Linux.

The bucket of the page is a folder here, and the script a local one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator

from airflow_checkpoint_provider.operators.hand_over import HandOver
from tests.integration.services import checkpointed
from tests.support.drivers import ROOT
from tests.support.providers import Environment
from tests.support.services.hosts import Host
from tests.support.services.kubernetes import Kubernetes
from tests.support.services.livy import Livy

PAGE = (ROOT / "docs" / "orchestrate" / "any-operator.md").read_text()
COMMAND, DIFFS, EXAMPLE, LINEAGE = (
    [dedent(block) for block in re.findall(rf"^ *```{language}\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL)]
    for language in ("sh", "diff", "python", "yaml")
)
slow = pytest.mark.slow  # test_mixin.py kills such a driver, without the page
SCRIPT = """
import sys
from airflow_checkpoint_provider.spark import CheckpointedJob

with CheckpointedJob() as job:
    for name in ("clean", "delays"):
        rows = job.stage(name, job.spark.range(10))
    print("DAY", sys.argv[1:], rows.count())
"""
APPLICATION = """
apiVersion: sparkoperator.k8s.io/v1beta2
kind: SparkApplication
metadata: {{name: delays}}
spec:
  type: Python
  mode: cluster
  image: none
  mainApplicationFile: local://{script}
  arguments: ["--day", "{{{{ ds }}}}"]
  driver: {{cores: 1}}
  executor: {{instances: 1}}
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with Host(tmp_path / "host", variables={"CHECKPOINT_HEARTBEAT_SECONDS": "1"}) as host:
        yield host


def script(folder: Path) -> Path:
    file = folder / "delays.py"
    file.write_text(SCRIPT)
    return file


def changed(diff: str, sign: str) -> str:
    """Return a side of a diff as a DAG file: "-" what was there, "+" what is there then. The task is in a DAG."""
    lines = [line[1:] for line in diff.splitlines() if line[:1] in (sign, " ")]
    head = ["from airflow.sdk import DAG", *(line for line in lines if line.startswith("from "))]
    return "\n".join([*head, 'with DAG("services", schedule=None):', *(line for line in lines if line.startswith(" "))])


def here(text: str, folder: Path) -> str:
    """Return a text of the page with folders in the place of buckets."""
    for bucket, name in (("s3://lake/checkpoints", "checkpoints"), ("s3a://lake-code/airflow", "code")):
        (folder / name).mkdir(mode=0o755, exist_ok=True)
        text = text.replace(bucket, str(folder / name))
    return text.replace("s3a://lake/jobs/delays.py", str(folder / "delays.py"))


def connected(folder: Path) -> dict[str, str]:
    """Run the command of the page in an Airflow without anything, and return what it has stored, as the variable of a task."""
    home = folder / "airflow"
    database = f"sqlite:///{home}/airflow.db"
    env = {**os.environ, "AIRFLOW_HOME": str(home), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database}
    stored = folder / "connections.json"
    (command,) = COMMAND
    export = f"airflow connections export --file-format json {stored}"
    for line in ("airflow db migrate", here(command, folder), export):
        subprocess.run(["bash", "-ec", line], env=env, check=True, timeout=300, stdin=subprocess.DEVNULL)
    connection = json.loads(stored.read_text())["checkpoint_default"]
    extra = json.loads(connection["extra"])
    assert extra == {"root": str(folder / "checkpoints"), "code": str(folder / "code")}
    return {
        "AIRFLOW_CONN_CHECKPOINT_DEFAULT": json.dumps({"conn_type": connection["conn_type"], "extra": extra}),
        "TASK_STATE": str(folder / "task-state"),
    }


def killed_and_continued(
    environment: Environment, diff: str, variables: Mapping[str, str], host: Host, folder: Path
) -> None:
    """Run two tries of the task as the page changes it. The driver of the first one is killed in its second stage."""
    file = folder / "dag.py"
    file.write_text(here(changed(diff, "+"), folder))
    host.crash_next("kill", "stage/delays/rows-written")
    variables = {**connected(folder), **variables}
    first = environment.run(f"{file}:delays", {}, variables)
    assert first.code == 1, first.log
    second = environment.run(f"{file}:delays", {}, variables, try_number=2)
    assert second.code == 0, second.log
    assert re.search(r"RESTORE services\.delays, run .*CKP101", second.log)
    said = host.started[1].said()
    assert "stage 'clean': reused" in said
    assert re.search(r"DAY \['--day', '\d{4}-\d\d-\d\d'\] 10", said)


@slow
@pytest.mark.timeout(900)
def test_five_minutes_with_livy(host: Host, tmp_path: Path) -> None:
    script(tmp_path)
    with Livy(host) as livy:
        variables = {"AIRFLOW_CONN_LIVY_DEFAULT": livy.connection}
        killed_and_continued(Environment(sys.executable), DIFFS[0], variables, host, tmp_path)


@slow
@pytest.mark.timeout(1800)
def test_five_minutes_with_kubernetes(host: Host, cncf_kubernetes: Environment, tmp_path: Path) -> None:
    (tmp_path / "delays.yaml").write_text(APPLICATION.format(script=script(tmp_path)))
    with Kubernetes(host) as kubernetes:
        variables = {"AIRFLOW_CONN_KUBERNETES_DEFAULT": kubernetes.connection}
        killed_and_continued(cncf_kubernetes, DIFFS[1], variables, host, tmp_path)


def test_dag_before_the_change_is_that_of_airflow_s_operator(tmp_path: Path) -> None:
    scope: dict[str, Any] = {}
    exec(compile(here(changed(DIFFS[0], "-"), tmp_path), "page", "exec"), scope)  # noqa: S102
    assert type(scope["delays"]).__name__ == "LivyOperator"
    assert scope["delays"].retries == 3


class MySubmitOperator(BaseOperator):
    """Stands for somebody's operator."""

    def __init__(self, *, wait: bool = False, conf: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.wait, self.conf, self.py_files = wait, conf, ["mine.py"]


def test_operator_of_the_page_is_handed_a_launch() -> None:
    (example,) = EXAMPLE
    scope: dict[str, Any] = {"MySubmitOperator": MySubmitOperator}
    exec(compile(example, "page", "exec"), scope)  # noqa: S102
    with DAG("services", schedule=None):
        operator = scope["CheckpointedMyOperator"](task_id="mine", conf={"spark.a": "b"})
    operator.hand_over(HandOver({"spark.checkpointed.launch": "1"}, "/archive.zip"))
    assert operator.wait is True
    assert operator.conf == {"spark.a": "b", "spark.checkpointed.launch": "1"}
    assert operator.py_files == ["mine.py", "/archive.zip"]


def test_all_blocks_of_the_page_are_run() -> None:
    """``test_openlineage.py`` takes the last."""
    assert (len(COMMAND), len(DIFFS), len(EXAMPLE), len(LINEAGE)) == (1, 2, 1, 1)
    assert PAGE.count("```") == 2 * 5


COLUMNS = {
    "driver killed": {checkpointed.killed_in_stage_three, checkpointed.killed_before_stage_three},
    "worker lost, driver adopted": {checkpointed.worker_lost_while_its_driver_lives},
    "adopted, then killed": {checkpointed.adopted_and_killed},
    "cleared": {checkpointed.cleared_while_running},
    "launch refused": {checkpointed.refused_launch},
    "finished before the worker was lost": {checkpointed.finished_before_the_worker_was_lost},
}


def test_table_of_what_was_tried_is_what_tests_try() -> None:
    """``test_livy.py`` and ``test_bash_operator.py`` have the other rows."""
    lines = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("|")]
    (head,) = (cells for cells in lines if cells[1:2] == ["driver killed"])
    for operator, events in checkpointed.TRIED.items():
        (row,) = (cells for cells in lines if cells[0] == operator and len(cells) == len(head))
        said = {column for column, cell in zip(head[1:], row[1:], strict=True) if cell.startswith("yes")}
        assert said == {column for column, steps in COLUMNS.items() if steps & {*events}}, operator
