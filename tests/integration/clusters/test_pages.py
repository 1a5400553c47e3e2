"""The pages on cluster managers: their connections lead there, and their commands run. Runs on Linux."""

from __future__ import annotations

import re
import shlex
from contextlib import ExitStack
from pathlib import Path

import pytest

from airflow_checkpoint_provider.errors import NotInstalled
from airflow_checkpoint_provider.hooks.spark_submit import CheckpointedSparkSubmitHook
from tests.support.drivers import ROOT
from tests.support.first_job import Reader, read
from tests.support.kubernetes import with_kubernetes
from tests.support.processes import free_port
from tests.support.waiting import wait_until

STANDALONE, KUBERNETES = (
    (ROOT / "docs/orchestrate" / f"on-{name}.md").read_text() for name in ("standalone", "kubernetes")
)
PORT = "7077"


def commands(page: str) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("page", "master", "mode"),
    [
        (STANDALONE, "spark://127.0.0.1:7077", None),
        (KUBERNETES, "k8s://https://kubernetes.default:443", "cluster"),
    ],
    ids=["standalone", "kubernetes"],
)
def test_connection_leads_to_the_cluster(
    monkeypatch: pytest.MonkeyPatch, page: str, master: str, mode: str | None
) -> None:
    (connection,) = (shlex.split(command)[-1] for command in commands(page) if "connections add" in command)
    with_kubernetes(monkeypatch)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", connection)
    hook = CheckpointedSparkSubmitHook()
    assert (hook.master, hook.deploy_mode) == (master, mode)


def test_kubernetes_without_its_provider_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "k8s://https://127.0.0.1"}')
    with pytest.raises(NotInstalled, match="pip install apache-airflow-providers-cncf-kubernetes"):
        CheckpointedSparkSubmitHook()


def test_confs_of_a_volume_are_those_of_driver_and_executors() -> None:
    (text,) = re.findall(r"^```python\n(.*?)^```", KUBERNETES, re.MULTILINE | re.DOTALL)
    found: dict[str, dict[str, str]] = {}
    exec(text, found)  # noqa: S102 - the page of this project
    volumes = "spark.kubernetes.{}.volumes.persistentVolumeClaim.lake."
    assert {name: value for name, value in found["conf"].items() if name.startswith(volumes.format("executor"))} == {
        f"{volumes.format('executor')}mount.path": "/lake",
        f"{volumes.format('executor')}options.claimName": "lake",
        f"{volumes.format('executor')}mount.readOnly": "false",
    }
    assert len(found["conf"]) == 6


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path, "jobs/after.py")


@pytest.mark.slow  # test_tasks.py starts such a cluster, too
@pytest.mark.timeout(1800)
def test_job_runs_on_the_standalone_cluster_of_the_page(reader: Reader) -> None:
    own = str(free_port())
    master, worker, _, submit = (command.replace(PORT, own) for command in commands(STANDALONE))
    reader.run("sed -i 's/sleep(60)/sleep(0)/' jobs/after.py")
    with ExitStack() as stack:
        log = reader.folder / "log"
        stack.enter_context(reader.started(f"exec {master}", log))
        wait_until(lambda: "I have been elected leader" in read(log), 120, lambda: read(log))
        stack.enter_context(reader.started(f"exec {worker}", reader.folder / "worker"))
        said = reader.run(submit)
    assert "chk-2 completed at stage 'totals'" in said
    assert list((reader.folder / "totals").glob("*.parquet"))
