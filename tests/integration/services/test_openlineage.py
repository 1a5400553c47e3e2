"""A checkpointed job beside the real listener of OpenLineage, with the confs that Airflow's provider gives to each try. Runs on Linux."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.integration.services.checkpointed import PATIENCE, SCRIPT, STAGES, CheckpointedTask, words
from tests.support.drivers import fast_confs
from tests.support.jars import NoJars, fetched
from tests.support.processes import command, find
from tests.support.providers import Environment
from tests.support.services.hosts import Host
from tests.support.services.lineage import Lineage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # test_command_line.py has the confs alone
OPERATOR = "airflow_checkpoint_provider.operators:CheckpointedSparkSubmitOperator"
LISTENER = "io.openlineage.spark.agent.OpenLineageSparkListener"


@pytest.fixture
def jar() -> str:
    try:
        (jar,) = fetched("openlineage").glob("*.jar")
    except NoJars as error:
        pytest.skip(str(error))
    return str(jar)


def drivers(folder: Path) -> list[int]:
    """Return the Pythons and JVMs of the job."""
    return list(find(lambda pid: {SCRIPT, str(folder)} <= set(command(pid))))


def parents(events: list[Mapping[str, Any]]) -> list[Any]:
    """Return the tasks of Airflow that events of Spark name as their parents, each once."""
    found = [event["run"]["facets"].get("parent") for event in events]
    named = [(parent["job"]["name"], parent["run"]["runId"]) for parent in found if parent]
    return list(dict.fromkeys(parent for parent in named if parent[0].startswith("services.")))


def test_retry_is_another_run_of_the_same_task_and_continues(
    openlineage: Environment, host: Host, jar: str, tmp_path: Path
) -> None:
    confs = {**fast_confs(tmp_path), "spark.log.level": "WARN", "spark.extraListeners": LISTENER}
    asked = {
        "application": SCRIPT, "application_args": words(tmp_path), "jars": jar, "conf": confs,
        "openlineage_inject_parent_job_info": True, "openlineage_inject_transport_info": True,
    }  # fmt: skip
    spark = '{"conn_type": "spark", "host": "local[2]"}'
    with Lineage(host) as lineage:
        variables = {"AIRFLOW_CONN_SPARK_DEFAULT": spark, **lineage.variables}
        task = CheckpointedTask(openlineage, lineage, OPERATOR, asked, variables, tmp_path)
        task.close("three")
        with task.running(1) as process:
            task.wait_at("three")
            for pid in drivers(tmp_path):
                os.kill(pid, signal.SIGKILL)
            assert process.wait(PATIENCE) == 1, task.log(1)
        task.open("three")
        before = len(lineage.events)
        second = task.run(2)
    assert second.code == 0, second.log
    assert [name for name in STAGES if f"stage '{name}': reused" in second.log] == ["one", "two"]
    assert [(found["attempt"], found["seen"]) for found in task.results] == [(2, STAGES)]
    assert "application unchanged since attempt 1" in second.log
    first_run, second_run = parents([*lineage.events[:before]]), parents(list(lineage.events[before:]))
    assert [name for name, _ in first_run + second_run] == ["services.submit", "services.submit"]
    assert first_run != second_run
    assert {event["eventType"] for event in lineage.events[before:]} >= {"START", "COMPLETE"}
