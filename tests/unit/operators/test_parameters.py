"""What the operator refuses where it is written, and what it accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_checkpoint_provider.checkpoint import CheckpointConfig
from airflow_checkpoint_provider.errors import InvalidConfig, InvalidName, NotSupportedYet
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator
from airflow_checkpoint_provider.operators._mapped import JobOfTask
from airflow_checkpoint_provider.protocol.keys import History
from tests.unit.operators.submissions import TaskInstance


def operator(max_active_runs: int = 16, **options: Any) -> CheckpointedSparkSubmitOperator:
    with DAG("etl", schedule=None, max_active_runs=max_active_runs):
        return CheckpointedSparkSubmitOperator(**{"task_id": "job", "application": "job.py", **options})


@pytest.mark.parametrize("options", [{"deferrable": True, "deploy_mode": "client"}])
def test_unsupported_parameter_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(NotSupportedYet, match=next(iter(options))):
        operator(**options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("deferrable", False),
        ("deferrable", True),
        ("item", None),
        ("allow_non_restored_state", False),
        ("allow_non_restored_state", ["totals"]),
        ("allow_non_restored_state", "keep"),
        ("allow_non_restored_state", {"weekly": "keep", "old": "drop"}),
        ("checkpointing", CheckpointConfig(timeout="2 min")),
        ("on_clear", "restart"),
        ("restore", "none"),
        ("restore", "s3://lake/savepoints/savepoint-orders-7-abc"),
        ("restore", {"job": "orders", "scope": "", "id": 7, "pointer": "s3://lake/savepoint-orders-7-abc"}),
        ("restore", "{{ params.restore }}"),
        ("job_id", "other-job"),
    ],
)
def test_supported_value_is_accepted(name: str, value: Any) -> None:
    assert getattr(operator(**{name: value}), name, value) == value


@pytest.mark.parametrize(
    "application",
    [
        "etl.jar",
        "etl.JAR",
        "s3://apps/etl.jar?versionId=7",
        "etl.jar#main",
        "{{ params.folder }}/etl.jar",
        "model.R",
        "model.r",
        # spark-submit takes each of these for a jar
        *(
            "job.PY",
            "job.py ",
            "job.py?v=1",
            "jobs.zip",
            "jobs.egg",
            "notebook.ipynb",
            "%sh ls",
            "job",
            "hdfs:///apps/",
        ),
    ],
)
def test_application_that_is_no_python_script_is_refused_where_it_is_written(application: str) -> None:
    with pytest.raises(NotSupportedYet, match=r"runs PySpark jobs.* must end with \.py"):
        operator(application=application)


def test_java_class_is_refused_where_it_is_written() -> None:
    with pytest.raises(
        NotSupportedYet, match=r"java_class='com\.example\.Etl': .*runs PySpark jobs.*SparkSubmitOperator"
    ):
        operator(application="{{ params.jar }}", java_class="com.example.Etl")


@pytest.mark.parametrize(
    "options",
    [
        {"application": "{{ var.value.get('SCRIPT', '/jobs/old.jar') }}"},
        {"application": "{% if params.new %}new.py{% else %}old.py{% endif %}"},
        {"application": "local:///opt/jobs/job.py"},
        {"application": "job.py", "jars": "driver.jar", "packages": "org.example:etl:1"},
        {"application": ""},
    ],
)
def test_application_that_may_be_a_python_script_is_accepted(options: dict[str, Any]) -> None:
    operator(**options)


def test_deferrable_of_default_args_is_not_refused_in_client_mode() -> None:
    """It may be meant for the other tasks. At the task itself it is refused."""
    with DAG("etl", schedule=None, default_args={"deferrable": True}):
        CheckpointedSparkSubmitOperator(task_id="job", application="job.py", deploy_mode="client")


def test_ids_of_airflow_that_are_no_job_id_are_accepted() -> None:
    for dag_id in ("_etl", "d" * 250, "täglich"):
        with DAG(dag_id, schedule=None):
            CheckpointedSparkSubmitOperator(task_id="t" * 250, application="job.py")


@pytest.mark.parametrize(
    ("first", "second"), [("tally", "tally"), (None, "etl.first"), ("etl.second", None), ("etl.second", "etl.second")]
)
def test_two_tasks_with_one_job_id_are_refused(first: str | None, second: str | None) -> None:
    with DAG("etl", schedule=None):
        CheckpointedSparkSubmitOperator(task_id="first", application="job.py", job_id=first)
        with pytest.raises(InvalidConfig, match=r"tasks 'first' and 'second' of DAG 'etl' have one job id, '"):
            CheckpointedSparkSubmitOperator(task_id="second", application="job.py", job_id=second)


def test_tasks_without_a_job_id_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A DAG file is parsed every few seconds, and may have hundreds of them."""
    described, of = list[str](), JobOfTask.of

    def counted(task: Any, dag: DAG) -> JobOfTask:
        described.append(task.task_id)
        return of(task, dag)

    monkeypatch.setattr(JobOfTask, "of", counted)
    with DAG("etl", schedule=None):
        for number in range(20):
            CheckpointedSparkSubmitOperator(task_id=f"job_{number}", application="job.py")
            CheckpointedSparkSubmitOperator.partial(task_id=f"each_{number}", application="job.py").expand(item=["a"])
    assert len(described) == 40


def test_two_tasks_with_one_job_id_and_two_scopes_are_accepted() -> None:
    with DAG("etl", schedule=None) as dag:
        for region in ("north", "south"):
            CheckpointedSparkSubmitOperator(
                task_id=region, application="job.py", job_id="tally", scope=f"{region}-{{{{ ds }}}}"
            )
    assert dag.task_ids == ["north", "south"]


def test_job_scope_needs_max_active_runs_of_one() -> None:
    with pytest.raises(InvalidConfig, match=r"max_active_runs=1 .*it is 2"):
        operator(max_active_runs=2, scope="job")
    assert operator(max_active_runs=1, scope="job", restore=7).scope == "job"


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"on_clear": "again"}, InvalidConfig, 'on_clear=\'again\': write "auto", "restart" or "continue"'),
        ({"checkpointing": {"timeout": 1}}, InvalidConfig, "checkpointing="),
        (
            {"allow_non_restored_state": "totals"},
            InvalidConfig,
            "allow_non_restored_state='totals': write True, False, \"keep\", a list of the uids to drop",
        ),
        (
            {"allow_non_restored_state": {"totals": "remove"}},
            InvalidConfig,
            "allow_non_restored_state={'totals': 'remove'}: write True, False",
        ),
        ({"allow_non_restored_state": {"": "keep"}}, InvalidName, "uid ''"),
        ({"allow_non_restored_state": [""]}, InvalidName, "uid ''"),
        ({"job_id": "{{ ds }}"}, InvalidName, "'{{ ds }}' is not a job id"),
        ({"job_id": ""}, InvalidName, "'' is not a job id"),
        ({"scope": "Jobs"}, InvalidConfig, 'job: scope=\'Jobs\': write "run", "job", or a template'),
        ({"scope": " job"}, InvalidConfig, "job: scope=' job'"),
        ({"scope": None}, InvalidConfig, "job: scope=None"),
        ({"restore": "lastest"}, InvalidName, "restore='lastest' is not a place to start from"),
        ({"restore": "run-start"}, InvalidName, "restore='run-start' is not a place to start from"),
        ({"restore": {"job": "orders"}}, InvalidConfig, "restore={'job': 'orders'} is not a place to start from"),
        ({"restore": "chk-7"}, InvalidConfig, "restore='chk-7': with scope=\"run\" each run has its own history"),
    ],
)
def test_invalid_parameter_is_refused(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said.replace("{", r"\{").replace("(", r"\(")):
        operator(**options)


def test_scope_and_restore_are_templates_and_job_id_is_not() -> None:
    assert {"scope", "restore", "conf", "application_args"} <= set(CheckpointedSparkSubmitOperator.template_fields)
    assert "job_id" not in CheckpointedSparkSubmitOperator.template_fields


def test_item_that_is_rendered_to_none_means_no_other_history() -> None:
    """Without an item the task would write the history of the whole job."""
    with DAG("etl", schedule=None, render_template_as_native_obj=True):
        task = CheckpointedSparkSubmitOperator(task_id="job", application="job.py", item="{{ none }}")
    task.item = task.render_template(task.item, {})
    assert task.item is None
    with pytest.raises(InvalidName, match="item=None is not text"):
        task.history_of(TaskInstance())


def test_history_is_shown_with_the_rendered_templates(folder: Path) -> None:
    task = operator(conn_id="local", scope="{{ ti.run_id }}", job_id="orders")
    context: Any = {"ti": TaskInstance(), "task": task}
    task.render_template_fields(context)
    assert task.history == f"file://{folder}/checkpoints/{History('orders', 'manual__1').prefix}"
    assert "history" in CheckpointedSparkSubmitOperator.template_fields


@pytest.mark.usefixtures("folder")
def test_unknown_connection_does_not_fail_the_rendering() -> None:
    task = operator(conn_id="local", checkpoint_conn_id="mistyped")
    context: Any = {"ti": TaskInstance(), "task": task}
    task.render_template_fields(context)
    assert task.history is None
