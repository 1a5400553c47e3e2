"""The plugin: each process of Airflow imports it, so it brings nothing along; what it declares is what Airflow takes."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest
from airflow.sdk import BaseOperator

from airflow_checkpoint_provider import _airflow, operators, sensors
from airflow_checkpoint_provider.hooks.references import LINK_KEY, HistoryReference
from airflow_checkpoint_provider.operators._link import LINK, LinkedTask
from airflow_checkpoint_provider.ui.plugin import CheckpointsPlugin

TASKS = [getattr(module, name) for module in (operators, sensors) for name in module.__all__]
LOADED = """
import json, sys
import airflow.plugins_manager
before = set(sys.modules)
import airflow_checkpoint_provider.ui.plugin
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_import_brings_nothing_but_itself() -> None:
    ran = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=120, check=True)
    loaded = json.loads(ran.stdout.splitlines()[-1])
    assert [name for name in loaded if not name.startswith("airflow_checkpoint_provider")] == []
    assert [name for name in loaded if name.startswith("airflow_checkpoint_provider.")] == [
        "airflow_checkpoint_provider.ui",
        "airflow_checkpoint_provider.ui.plugin",
    ]


def test_airflow_finds_the_plugin() -> None:
    (entry,) = (entry for entry in entry_points(group="airflow.plugins") if entry.name == "checkpoints")
    assert entry.load() is CheckpointsPlugin


def test_each_view_has_its_own_route() -> None:
    routes = [view["url_route"] for view in CheckpointsPlugin.external_views]
    assert len(set(routes)) == len(routes)
    assert not any(view["href"].startswith("/") for view in CheckpointsPlugin.external_views)


@pytest.mark.parametrize("task", TASKS)
def test_each_task_has_the_link(task: type[BaseOperator]) -> None:
    assert issubclass(task, LinkedTask)
    assert [link.xcom_key for link in task.operator_extra_links] == [LINK_KEY]


TI = SimpleNamespace(dag_id="etl", task_id="task", run_id="run 1", map_index=-1)
TRIGGERED = {"job": "orders", "scope": "", "id": 7, "pointer": "s3://lake/jobs/orders/job/chk-7"}
SAVED = {"job": "orders", "scope": "run 1", "id": 7, "pointer": "s3://lake/savepoints/savepoint-orders-7-9f3c"}


@pytest.mark.parametrize(
    ("task", "history", "run"),
    [
        (
            operators.CheckpointedSparkSubmitOperator(task_id="task", application="a.py"),
            "etl.task/runs/run~201",
            "run 1",
        ),
        (
            operators.CheckpointedSparkSubmitOperator(task_id="task", application="a.py", job_id="a", scope="job"),
            "a/job",
            "run 1",
        ),
        (operators.TriggerCheckpointOperator(task_id="task", job="orders"), "orders/job", ""),
        (
            operators.RestoreOperator(task_id="task", job="orders", run="run 1", restore="latest"),
            "orders/runs/run~201",
            "",
        ),
        (operators.FinalizeCheckpointOperator(task_id="task", checkpoint=TRIGGERED), "orders/job", ""),
        (operators.DisposeSavepointOperator(task_id="task", pointer=SAVED), "orders/runs/run~201", ""),
        (sensors.CheckpointAcknowledgedSensor(task_id="task", checkpoint=TRIGGERED), "orders/job", ""),
        (sensors.CheckpointCompletedSensor(task_id="task", checkpoint=SAVED), "orders/runs/run~201", ""),
        (sensors.CheckpointCompletedSensor(task_id="task", job="orders"), "orders/job", ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, LinkedTask) else str(value),
)
def test_link_leads_to_the_history_of_the_task(task: LinkedTask, history: str, run: str) -> None:
    link = urlsplit(LINK.get_link(task, ti_key=TI))
    assert link.path == "plugin/checkpoints/checkpoints/job"
    assert HistoryReference.of(parse_qs(link.query)) == HistoryReference("checkpoint_default", f"jobs/{history}", run)


@pytest.mark.parametrize("checkpoint", [None, "chk-7", {"id": 7}])
def test_task_whose_parameter_names_no_history_has_no_link(checkpoint: object) -> None:
    task = operators.AbortCheckpointOperator(task_id="task", checkpoint=checkpoint)
    assert LINK.get_link(task, ti_key=TI) == ""


def test_link_knows_the_path_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.com/team/a/")
    task = operators.TriggerCheckpointOperator(task_id="task", job="orders")
    assert LINK.get_link(task, ti_key=TI).startswith("plugin/checkpoints/team/a/checkpoints/job?")


def test_reference_goes_through_an_address() -> None:
    reference = HistoryReference(
        "checkpoint_default", "jobs/a.b/runs/manual__2026-11-20T00~3a00", "manual__2026-11-20T00:00:00+00:00"
    )
    assert HistoryReference.of(parse_qs(reference.query)) == reference
    assert HistoryReference.of({"connection": ["c"]}) is None


def test_task_goes_on_without_its_link(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(*_: object) -> None:
        raise ConnectionError("the API server is away")

    class Task(LinkedTask):
        def reference(self, ti: object) -> HistoryReference:
            return HistoryReference("c", "jobs/a/job")

    monkeypatch.setattr(_airflow, "push_link", fails)
    Task(task_id="t").pre_execute({"ti": SimpleNamespace()})
    assert "The link to the checkpoints could not be written: the API server is away" in capsys.readouterr().out
