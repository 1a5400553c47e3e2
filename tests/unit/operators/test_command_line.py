"""The command line with which the operator submits. A recorder stands in for ``spark-submit``; there is no cluster here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.spark.operators import spark_submit as spark_submit_operator
from airflow.sdk.api.datamodels._generated import DagRunType
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_checkpoint_provider import __version__
from airflow_checkpoint_provider.checkpoint import CheckpointConfig, KeepAll
from airflow_checkpoint_provider.operators._base import GENERATION_KEY
from airflow_checkpoint_provider.protocol.keys import History
from tests.support.state_store import TaskStateStore
from tests.unit.operators.conftest import MASTERS, DagRun, TaskInstance, confs, execute, values

REDACTED = re.compile(r"(?i)secret|password|token|access[.]?key")  # Spark's own expression for what its pages hide


@pytest.mark.parametrize("master", MASTERS)
def test_confs_hold_the_launch_and_no_secret(folder: Path, master: str) -> None:
    store = TaskStateStore()
    argv = execute(folder, store=store, conn_id=master, conf={"spark.ui.enabled": "false"})
    found = confs(argv)
    task = json.loads(found.pop("spark.checkpointed.task"))
    assert task["token"].pop("generation") == store.get(GENERATION_KEY)["number"]
    assert task == {"token": {"dag": "etl", "run": "manual__1", "task": "job", "item": None}, "try": 1}
    assert found == {
        "spark.ui.enabled": "false",
        "spark.checkpointed.root": f"file://{folder}/checkpoints",
        "spark.checkpointed.history": History("etl.job", "manual__1").prefix,
        "spark.checkpointed.job": "etl.job",
        "spark.checkpointed.launch": "1",
        "spark.checkpointed.version": __version__,
    }
    assert not any(REDACTED.search(name) for name in found)


def test_xcom_names_the_history_while_the_driver_runs(folder: Path) -> None:
    script = folder / "bin" / "spark-submit"
    script.write_text("#!/bin/sh\nexit 1\n")
    ti = TaskInstance()
    with pytest.raises(AirflowException):
        execute(folder, ti=ti)
    history = f"file://{folder}/checkpoints/{History('etl.job', 'manual__1').prefix}"
    assert ti.xcoms == {
        "launch": {"job": "etl.job", "run": "manual__1", "attempt": None, "history": history, "restored": None}
    }


def test_driver_is_submitted_although_the_xcom_cannot_be_written(folder: Path) -> None:
    class Lost(TaskInstance):
        def xcom_push(self, key: str, value: object) -> None:
            raise RuntimeError("the API server does not answer")

    assert "job.py" in execute(folder, ti=Lost())


@pytest.mark.parametrize("master", MASTERS)
def test_archive_is_added_to_the_users_py_files(folder: Path, master: str) -> None:
    argv = execute(folder, conn_id=master, py_files="theirs.py,more.zip")
    (files,) = values(argv, "--py-files")
    theirs, more, ours = files.split(",")
    assert (theirs, more) == ("theirs.py", "more.zip")
    assert Path(ours).name.startswith(f"airflow_checkpoint_provider-{__version__}-")
    assert Path(ours).exists()


def test_checkpointing_of_the_task_reaches_the_driver(folder: Path) -> None:
    config = CheckpointConfig(timeout=120.0, retention=KeepAll())
    found = confs(execute(folder, checkpointing=config))["spark.checkpointed.checkpointing"]
    assert CheckpointConfig.from_json(json.loads(found)) == config


@pytest.mark.parametrize(
    ("given", "handed_over"),
    [
        (False, None),
        ([], None),
        (True, "true"),
        ("keep", '"keep"'),
        (("a", "ü"), r'{"a": "drop", "\u00fc": "drop"}'),
        ({"weekly": "keep", "old": "drop"}, '{"weekly": "keep", "old": "drop"}'),
    ],
)
def test_allow_non_restored_state_reaches_the_driver(folder: Path, given: Any, handed_over: str | None) -> None:
    """If the task gives no value, that of the script counts."""
    found = confs(execute(folder, allow_non_restored_state=given))
    assert found.get("spark.checkpointed.allow_non_restored_state") == handed_over


@pytest.mark.parametrize("durable", [None, True, False])
def test_yarn_launch_needs_no_tracking_parameter(folder: Path, durable: bool | None) -> None:
    argv = execute(folder, conn_id="yarn", durable=durable)
    assert (values(argv, "--master"), values(argv, "--deploy-mode")) == (["yarn"], ["cluster"])


def test_second_try_has_its_own_launch(folder: Path) -> None:
    """Also where it runs in the process of the first, as with ``dag.test()``."""
    execute(folder)
    assert confs(execute(folder, ti=TaskInstance(try_number=2)))["spark.checkpointed.launch"] == "2"


def test_confs_of_openlineage_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def inject(properties: dict[str, str], context: Any) -> dict[str, str]:
        return {**properties, "spark.openlineage.parentJobName": context["ti"].task_id}

    monkeypatch.setattr(spark_submit_operator, "inject_parent_job_information_into_spark_properties", inject)
    found = confs(execute(folder, openlineage_inject_parent_job_info=True))
    assert found["spark.openlineage.parentJobName"] == "job"
    assert found["spark.checkpointed.launch"] == "1"


def test_mapped_task_is_refused_before_the_submit(folder: Path) -> None:
    with pytest.raises(AirflowFailException, match="Write one task per item"):
        execute(folder, ti=TaskInstance(map_index=0))
    assert not (folder / "argv").exists()


def test_backfill_with_job_scope_is_refused(folder: Path) -> None:
    with pytest.raises(AirflowFailException, match="backfill"):
        execute(folder, DagRun(run_type=DagRunType.BACKFILL), scope="job")
    execute(folder, DagRun(run_type=DagRunType.BACKFILL), scope="run")
