"""A checkpointed job beside the real listener of OpenLineage, with the confs that Airflow's provider gives to each try. Runs on Linux."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.integration.services.checkpointed import PATIENCE, SCRIPT, STAGES, CheckpointedTask, words
from tests.support.drivers import ROOT, fast_confs
from tests.support.jars import NoJars, fetched
from tests.support.processes import command, job
from tests.support.providers import Environment
from tests.support.services.hosts import Host
from tests.support.services.lineage import NAMESPACE, Lineage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # test_command_line.py has the confs alone
OPERATOR = "airflow_checkpoint_provider.operators:CheckpointedSparkSubmitOperator"
LISTENER = "io.openlineage.spark.agent.OpenLineageSparkListener"
SPARK = {"AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[2]"}'}
KEY = "Key-1-of-the-test"
PAGE = (ROOT / "docs" / "orchestrate" / "any-operator.md").read_text()
CONFIGURATION = dedent(re.findall(r"^ *```yaml\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL)[0])


@pytest.fixture
def jar() -> str:
    try:
        (jar,) = fetched("openlineage").glob("*.jar")
    except NoJars as error:
        pytest.skip(str(error))
    return str(jar)


def parents(events: list[Mapping[str, Any]]) -> list[Any]:
    """Return the tasks of Airflow that events of Spark name as their parents, each once."""
    found = [event["run"]["facets"].get("parent") for event in events]
    named = [(parent["job"]["name"], parent["run"]["runId"]) for parent in found if parent]
    return list(dict.fromkeys(parent for parent in named if parent[0].startswith("services.")))


def asked(folder: Path, jar: str, *, transport: bool) -> dict[str, Any]:
    """Return the arguments of the operator. ``transport`` says whether Airflow adds the confs of OpenLineage's transport."""
    confs = {**fast_confs(folder), "spark.log.level": "WARN", "spark.extraListeners": LISTENER}
    return {
        "application": SCRIPT, "application_args": words(folder), "jars": jar, "conf": confs,
        "openlineage_inject_parent_job_info": True, "openlineage_inject_transport_info": transport,
    }  # fmt: skip


def test_retry_is_another_run_of_the_same_task_and_continues(
    openlineage: Environment, host: Host, jar: str, tmp_path: Path
) -> None:
    with Lineage(host) as lineage:
        variables = {**SPARK, **lineage.variables}
        task = CheckpointedTask(
            openlineage, lineage, OPERATOR, asked(tmp_path, jar, transport=True), variables, tmp_path
        )
        task.close("three")
        with task.running(1) as process:
            task.wait_at("three")
            task.wait_stored("two")
            for pid in job(SCRIPT, tmp_path):
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


@pytest.mark.parametrize("transport", [False, True], ids=["in a file", "in confs"])
def test_key_of_a_file_is_in_no_argument(
    openlineage: Environment, host: Host, jar: str, tmp_path: Path, transport: bool
) -> None:
    """The file is Airflow's, too. With the confs that Airflow adds, everybody on the machine reads the key, and it is wrong."""
    file = tmp_path / "openlineage.yml"
    with Lineage(host) as lineage:
        file.write_text(CONFIGURATION.replace("https://lineage.example.com", lineage.url).replace("...", KEY))
        file.chmod(0o600)
        variables = {**SPARK, **NAMESPACE, "OPENLINEAGE_CONFIG": str(file)}
        task = CheckpointedTask(
            openlineage, lineage, OPERATOR, asked(tmp_path, jar, transport=transport), variables, tmp_path
        )
        task.close("three")
        with task.running(1) as process:
            task.wait_at("three")
            shown = any(KEY in word for pid in job(SCRIPT, tmp_path) for word in command(pid))
            task.open("three")
            assert process.wait(PATIENCE) == 0, task.log(1)
    assert [shown, KEY in task.log(1)] == [transport, transport]
    assert [name for name, _ in parents(list(lineage.events))] == ["services.submit"]
    # Airflow hands on a whole header, before which the listener puts the word again. If this fails, mend the page.
    assert lineage.keys == {f"Bearer Bearer {KEY}" if transport else f"Bearer {KEY}"}
    assert not [
        found
        for found in (tmp_path / "checkpoints").rglob("*")
        if found.is_file() and KEY.encode() in found.read_bytes()
    ]
