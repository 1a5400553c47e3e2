"""The command line with which the operator submits. A recorder stands in for ``spark-submit``; there is no cluster here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.spark.operators import spark_submit as spark_submit_operator
from airflow.sdk import DAG
from airflow.sdk.api.datamodels._generated import DagRunType
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_checkpoint_provider import __version__
from airflow_checkpoint_provider.checkpoint import CheckpointConfig, KeepAll
from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.hooks import spark_submit
from airflow_checkpoint_provider.hooks.spark_submit import CheckpointedSparkSubmitHook
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator, TriggerCheckpointOperator
from airflow_checkpoint_provider.operators._base import GENERATION_KEY
from airflow_checkpoint_provider.protocol.handover import LINE_MARK
from airflow_checkpoint_provider.protocol.keys import History, job_id_of
from airflow_checkpoint_provider.protocol.preflight import PREFLIGHT_VARIABLE, PreflightRequest
from tests.support.state_store import TaskStateStore
from tests.unit.operators.submissions import MASTERS, DagRun, TaskInstance, confs, execute, values

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


def _configured(folder: Path, where: str, monkeypatch: pytest.MonkeyPatch, **confs: str) -> dict[str, Any]:
    """Return the options of a task that has ``confs`` in one of the places where spark-submit finds them."""
    named = {f"spark.submit.{name}": value for name, value in confs.items()}
    if where == "conf":
        return {"conf": named}
    file = folder / "spark-defaults.conf"
    file.write_text("".join(f"{name} = {value}\n" for name, value in named.items()))
    if where == "properties_file":
        return {"properties_file": str(file)}
    if where == "env_vars":
        return {"env_vars": {"SPARK_CONF_DIR": str(folder)}}
    monkeypatch.setenv("SPARK_CONF_DIR", str(folder))
    return {}


PLACES = ["conf", "properties_file", "env_vars", "environment of the worker"]


@pytest.mark.parametrize("where", PLACES)
def test_archive_is_added_to_the_py_files_of_a_conf(folder: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--py-files`` replaces them."""
    options = _configured(folder, where, monkeypatch, pyFiles="/x/theirs.py,/x/more.zip")
    (files,) = values(execute(folder, **options), "--py-files")
    theirs, more, ours = files.split(",")
    assert (theirs, more) == ("/x/theirs.py", "/x/more.zip")
    assert Path(ours).name.startswith("airflow_checkpoint_provider-")


@pytest.mark.parametrize("where", PLACES)
def test_py_files_of_the_task_replace_those_of_a_conf_as_without_checkpoints(
    folder: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = _configured(folder, where, monkeypatch, pyFiles="/x/theirs.py")
    (files,) = values(execute(folder, **options, py_files="mine.py"), "--py-files")
    assert files.split(",")[0] == "mine.py"
    assert "theirs" not in files


def test_every_option_but_the_py_files_is_the_one_of_the_parent(folder: Path) -> None:
    """Nothing else is added that could replace a conf of the user."""
    options: dict[str, Any] = {
        "conf": {"spark.files": "a", "spark.app.name": "b", "spark.jars": "c", "spark.archives": "d"},
        "name": None,
    }
    argv = execute(folder, **options)
    names = {word for word in argv if word.startswith("--")}
    assert names == {"--master", "--conf", "--py-files"}
    assert {name: found for name, found in confs(argv).items() if not name.startswith("spark.checkpointed.")} == (
        options["conf"]
    )


@pytest.mark.parametrize("name", ["root", "job", "restore", "launch", "checkpointing"])
def test_conf_that_the_task_writes_itself_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"conf= has spark\.checkpointed\.{name}.* job_id=, "):
        execute(folder, conf={f"spark.checkpointed.{name}": "x"})


@pytest.mark.parametrize(("deploy_mode", "invalid"), [("client", False), ("client", True), ("cluster", False)])
def test_preflight_that_is_left_over_in_the_worker_does_not_reach_the_driver(
    folder: Path, monkeypatch: pytest.MonkeyPatch, deploy_mode: str, invalid: bool
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_CLIENT", json.dumps({"conn_type": "spark", "host": "yarn"}))
    monkeypatch.setenv(PREFLIGHT_VARIABLE, "{" if invalid else preflight(folder / "gone"))
    execute(folder, conn_id="client", deploy_mode=deploy_mode)
    lines = (folder / "environ").read_text().splitlines()
    assert [line for line in lines if line.startswith(PREFLIGHT_VARIABLE)] == [f"{PREFLIGHT_VARIABLE}="]


def test_task_inside_of_a_preflight_submits_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after ``checkpoints preflight etl.job -- airflow tasks test …``."""
    monkeypatch.setenv(PREFLIGHT_VARIABLE, preflight(folder))
    with pytest.raises(
        AirflowFailException, match="inside of `checkpoints preflight`, and would submit the job itself"
    ):
        execute(folder)
    assert not (folder / "environ").exists()


def preflight(waiting: Path) -> str:
    """Return the request of a command that waits for an answer in a folder."""
    request = PreflightRequest("file:///root", "jobs/etl/job", "latest", str(waiting / "answer"))
    return request.to_environment()[PREFLIGHT_VARIABLE]


def _hook(**options: Any) -> CheckpointedSparkSubmitHook:
    task = CheckpointedSparkSubmitOperator(task_id="job", application="job.py", conn_id="client", **options)
    return task._made_hook()


@pytest.fixture
def on_yarn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that leaves the deploy mode to others."""
    monkeypatch.setenv("AIRFLOW_CONN_CLIENT", json.dumps({"conn_type": "spark", "host": "yarn"}))


@pytest.mark.usefixtures("on_yarn")
@pytest.mark.parametrize("where", PLACES)
def test_deploy_mode_of_a_conf_is_that_of_the_task(folder: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = _configured(folder, where, monkeypatch, deployMode="cluster")
    assert _hook(**options).deploy_mode == "cluster"
    argv = execute(folder, conn_id="client", **options)
    assert values(argv, "--deploy-mode") == ["cluster"]
    assert LINE_MARK not in (folder / "environ").read_text()


@pytest.mark.usefixtures("on_yarn")
@pytest.mark.parametrize("where", PLACES)
def test_deploy_mode_of_the_task_wins_over_a_conf_as_in_spark_submit(
    folder: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = _configured(folder, where, monkeypatch, deployMode="cluster")
    assert _hook(**options, deploy_mode="client").deploy_mode == "client"


def test_deploy_mode_of_the_connection_wins_over_a_conf(folder: Path) -> None:
    assert values(execute(folder, conn_id="yarn", conf={"spark.submit.deployMode": "client"}), "--deploy-mode") == [
        "cluster"
    ]


@pytest.mark.usefixtures("on_yarn")
def test_deploy_mode_of_the_environment_comes_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_MODE", "cluster")
    assert _hook().deploy_mode == "cluster"
    assert _hook(conf={"spark.submit.deployMode": "client"}).deploy_mode == "client"


def test_variables_of_a_pod_are_not_those_of_spark_submit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Kubernetes ``env_vars`` reach the driver only."""
    kubernetes = {"conn_type": "spark", "host": "k8s://https://127.0.0.1", "port": 6443}
    monkeypatch.setenv("AIRFLOW_CONN_CLIENT", json.dumps(kubernetes))
    assert _hook(env_vars={"DEPLOY_MODE": "cluster"}).deploy_mode is None


@pytest.mark.parametrize("master", MASTERS)
def test_folder_for_the_checkpoints_of_pods_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str], master: str
) -> None:
    execute(folder, conn_id=master)
    said = capsys.readouterr().out
    wanted = f"The checkpoints lie in the folder {folder}/checkpoints, and pods share no folder by themselves."
    assert (wanted in said, "[CKP520]" in said) == (master == "kubernetes",) * 2


def test_cluster_mode_without_a_connection_is_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent then assumes the master yarn."""
    monkeypatch.setattr(spark_submit, "find_connection", lambda conn_id: None)
    argv = execute(folder, conn_id="nowhere", conf={"spark.submit.deployMode": "cluster"})
    assert (values(argv, "--master"), values(argv, "--deploy-mode")) == (["yarn"], ["cluster"])


def test_driver_of_a_standalone_cluster_is_tracked_if_a_conf_chose_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There spark-submit ends before its driver."""
    standalone = {"conn_type": "spark", "host": "spark://master.example", "port": 7077}
    monkeypatch.setenv("AIRFLOW_CONN_CLIENT", json.dumps(standalone))
    hook = _hook(conf={"spark.submit.deployMode": "cluster"})
    assert hook._should_track_driver_status
    assert hook._connection["rest_endpoint"] == "http://master.example:6066"


def test_master_of_a_conf_is_no_master_of_the_task(folder: Path) -> None:
    """The parent always writes ``--master``, and that wins."""
    argv = execute(folder, conn_id="yarn", conf={"spark.master": "local[2]"})
    assert values(argv, "--master") == ["yarn"]


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
    with pytest.raises(AirflowFailException, match="a mapped task needs item="):
        execute(folder, ti=TaskInstance(map_index=0))
    assert not (folder / "argv").exists()


def test_backfill_with_job_scope_is_refused(folder: Path) -> None:
    with pytest.raises(AirflowFailException, match="backfill"):
        execute(folder, DagRun(run_type=DagRunType.BACKFILL), scope="job")
    execute(folder, DagRun(run_type=DagRunType.BACKFILL), scope="run")
    execute(folder, DagRun(run_type=DagRunType.BACKFILL), scope="{{ ds_nodash[:6] }}")  # it may fill a past month


@pytest.mark.usefixtures("on_yarn")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "in client mode the driver is a child of this task"),
        ({"deferrable": False}, None),
    ],
)
def test_default_that_defers_other_tasks_does_not_hold_in_client_mode(
    folder: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any], said: str | None
) -> None:
    execute(folder, conn_id="client", default_args={"deferrable": True}, **options)
    lines = [line for line in capsys.readouterr().out.splitlines() if "not deferred" in line]
    assert len(lines) == (said is not None)
    assert said is None or said in lines[0]


@pytest.mark.parametrize(
    ("application", "said"),
    [
        ("/opt/etl.jar", "application='/opt/etl.jar': CheckpointedSparkSubmitOperator runs PySpark jobs"),
        ("", "application='': write the path of the Python script"),
        (None, "application=None: write the path of the Python script"),
    ],
)
def test_application_that_a_template_gave_is_refused_before_the_submit(
    folder: Path, application: Any, said: str
) -> None:
    with DAG("etl", schedule=None):
        task = CheckpointedSparkSubmitOperator(task_id="job", application="{{ params.script }}", conn_id="local")
    task.application = application  # as Airflow renders it
    context = {"ti": TaskInstance(), "dag_run": DagRun(), "task_state_store": TaskStateStore()}
    with pytest.raises(AirflowFailException, match=re.escape(said)):
        task.execute(context)
    assert not (folder / "argv").exists()


@pytest.mark.parametrize("dag_id", ["_etl", "d" * 230, "täglich", "etl.daily"])
def test_job_id_that_is_made_of_other_ids_is_the_one_of_all_tasks(folder: Path, dag_id: str) -> None:
    ti = TaskInstance(dag_id=dag_id)
    with DAG(dag_id, schedule=None):
        task = CheckpointedSparkSubmitOperator(task_id="job", application="job.py", conn_id="local")
        trigger = TriggerCheckpointOperator(task_id="trigger", job=task)
    task.execute({"ti": ti, "dag_run": DagRun(), "task_state_store": TaskStateStore()})
    found = confs((folder / "argv").read_text().splitlines())
    job = job_id_of(dag_id, "job")
    assert found["spark.checkpointed.job"] == job
    assert trigger.history(TaskInstance(dag_id=dag_id, task_id="trigger")).job == job
