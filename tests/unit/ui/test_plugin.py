"""The plugin: each process of Airflow imports it, so it brings nothing along; what it declares is what Airflow takes."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
from airflow.sdk import BaseOperator

from airflow_checkpoint_provider import operators, sensors
from airflow_checkpoint_provider.operators._link import KEY, Linked, Place
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
    assert issubclass(task, Linked)
    assert [link.xcom_key for link in task.operator_extra_links] == [KEY]


def test_place_goes_through_an_address() -> None:
    place = Place("checkpoint_default", "jobs/a.b/runs/manual__2026-11-20T00~3a00", "manual__2026-11-20T00:00:00+00:00")
    from urllib.parse import parse_qs

    assert Place.of(parse_qs(place.query)) == place
    assert Place.of({"connection": ["c"]}) is None
