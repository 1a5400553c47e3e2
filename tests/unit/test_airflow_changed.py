"""A private name of Airflow or its Spark provider is gone or changed: what it was for is done in the public way, or refused by name."""

from __future__ import annotations

import ast
import inspect
import logging
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.dag_processing.processor import ToDagProcessor
from airflow.jobs.triggerer_job_runner import ToTriggerRunner
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time import comms, task_runner
from pydantic import TypeAdapter

from airflow_checkpoint_provider import _airflow, metrics
from airflow_checkpoint_provider.coordinator.liveness import Beat, QueryProgress
from airflow_checkpoint_provider.errors import PartMissing, WrongUse
from airflow_checkpoint_provider.hooks.connections import ConnectionMalformed, ConnectionUnreadable, find_connection
from airflow_checkpoint_provider.hooks.spark_submit import CheckpointedSparkSubmitHook
from airflow_checkpoint_provider.operators import CheckpointedSparkSubmitOperator
from airflow_checkpoint_provider.operators._task_history import read_history
from airflow_checkpoint_provider.protocol.state import State
from tests.support.newer_airflow import changed, replace

TASK = "airflow.sdk.execution_time"
CONNECTIONS = [  # what the look-up in a task needs
    f"{TASK}.comms.ErrorResponse",
    f"{TASK}.comms.GetConnection",
    f"{TASK}.comms.GetTaskStates",
    f"{TASK}.context._mask_connection_secrets",
    f"{TASK}.context._preset_connections",
    f"{TASK}.context._process_connection_result_conn",
    f"{TASK}.secrets.ExecutionAPISecretsBackend",
    f"{TASK}.supervisor.ensure_secrets_backend_loaded",
    f"{TASK}.task_runner.SUPERVISOR_COMMS",
    "airflow.sdk.exceptions.AirflowSecretsBackendAccessDenied",
    "airflow.sdk.exceptions.ErrorType",
    "airflow.configuration.ensure_secrets_loaded",
]
ANOTHER = type("AnotherSecretsBackend", (), {})
METHODS = ["_resolve_connection", "_build_spark_submit_command", "_process_spark_submit_log"]
READ_EARLY = ["_conn_id", "_conf", "_properties_file", "_env_vars", "_deploy_mode"]
SET_LATE = ["_connection", "_submit_sp", "_py_files", "_env"]

connections = pytest.mark.parametrize("name", CONNECTIONS)
gone_or_changed = pytest.mark.parametrize("replacement", [None, changed], ids=["gone", "changed"])


@pytest.fixture(autouse=True)
def spark_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[1]"}')


ANSWERS = {"task": comms.ToTask, "trigger": ToTriggerRunner, "DAG processor": ToDagProcessor}
"""The answers that each kind of process can read."""


class Supervisor:
    """Answers a process as its supervisor does. ``lake`` exists; whether ``nowhere`` does, it says only while the ``database`` answers."""

    def __init__(self, database: bool, process: str = "task") -> None:
        self.database, self.answers = database, TypeAdapter[Any](cast(Any, ANSWERS[process]))

    def send(self, asked: Any) -> Any:
        return self.answers.validate_python(self._answer(asked).model_dump(by_alias=True))

    def _answer(self, asked: Any) -> Any:
        if isinstance(asked, comms.GetTaskStates):
            return (
                comms.TaskStatesResult(task_states={})
                if self.database
                else comms.ErrorResponse(error=ErrorType.API_SERVER_ERROR)
            )
        if asked.conn_id != "lake":
            return comms.ErrorResponse(error=ErrorType.CONNECTION_NOT_FOUND)
        nothing = dict.fromkeys(("schema", "login", "password", "port", "extra"))
        return comms.ConnectionResult.model_validate(
            {"conn_id": "lake", "conn_type": "spark", "host": "far", **nothing}
        )


@pytest.fixture
def in_task(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes this process one of a task, or of another kind, whose database answers or not."""
    return lambda *how: monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Supervisor(*how), raising=False)


# -- connections -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("process", ANSWERS)
def test_unchanged_airflow_tells_absent_from_unreadable(in_task: Callable[..., None], process: str) -> None:
    in_task(True, process)
    found = find_connection("lake")
    assert found is not None
    assert found.host == "far"
    assert find_connection("nowhere") is None
    in_task(False, process)
    with pytest.raises(ConnectionUnreadable, match="API server, database and secrets backends"):
        find_connection("nowhere")


@connections
@gone_or_changed
def test_connection_is_found_in_the_public_way(
    name: str, replacement: object, in_task: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_task(True)
    replace(monkeypatch, name, replacement)
    found = find_connection("lake")
    assert found is not None
    assert found.host == "far"


@connections
@gone_or_changed
def test_unreadable_connection_is_never_taken_for_an_absent_one(
    name: str, replacement: object, in_task: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_task(False)
    replace(monkeypatch, name, replacement)
    with pytest.raises(ConnectionUnreadable, match="Nothing was assumed"):
        find_connection("nowhere")


@pytest.mark.parametrize("name", CONNECTIONS[:-1])
def test_absent_connection_is_refused_with_the_name_that_is_gone(
    name: str, in_task: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_task(True)
    replace(monkeypatch, name)
    with pytest.raises(ConnectionUnreadable, match=f"{name.rpartition('.')[2]}.*Add the connection if it is absent"):
        find_connection("nowhere")


def test_another_backend_of_the_api_server_is_not_believed(
    in_task: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may say "absent" when it cannot read."""
    in_task(False)
    replace(monkeypatch, f"{TASK}.secrets.ExecutionAPISecretsBackend", ANOTHER)
    with pytest.raises(ConnectionUnreadable, match="ExecutionAPISecretsBackend"):
        find_connection("nowhere")


@gone_or_changed
def test_process_outside_of_tasks_refuses_too(replacement: object, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "airflow.configuration.ensure_secrets_loaded", replacement)
    assert find_connection("spark_default")
    with pytest.raises(ConnectionUnreadable, match="Add the connection if it is absent"):
        find_connection("nowhere")


# -- mapped tasks, links, metrics, lines of Spark --------------------------------------------------------------------------------------


@gone_or_changed
def test_link_is_pushed_as_an_xcom(replacement: object, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, f"{TASK}.task_runner._xcom_push_to_db", replacement)
    pushed: dict[str, str] = {}
    _airflow.push_link(SimpleNamespace(xcom_push=pushed.update), "link", "there")
    assert pushed == {"key": "link", "value": "there"}


@gone_or_changed
def test_instance_of_a_mapped_task_is_not_known(replacement: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notification then has no facts, and says so."""
    with DAG("etl", schedule=None, max_active_runs=1):
        task = CheckpointedSparkSubmitOperator.partial(task_id="job", application="job.py").expand(item=["eu"])
    replace(monkeypatch, "airflow.sdk.definitions.param.process_params", replacement)
    with pytest.raises(WrongUse, match="map index 0 of task 'job' works on"):
        read_history({"task": task, "ti": SimpleNamespace(task_id="job", map_index=0)})


@gone_or_changed
def test_gauges_that_cannot_be_sent_are_said_once(
    replacement: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    replace(monkeypatch, "airflow.sdk.observability.stats.gauge", replacement)
    sender = metrics.Gauges("orders", "etl", "orders")
    sender.update(State())
    sender.update_queries(Beat(queries=(QueryProgress(uid="counts", batch=1),)))
    said = [
        one for one in map(logging.LogRecord.getMessage, caplog.records) if one.startswith("metrics cannot be sent")
    ]
    assert len(said) == 1


@gone_or_changed
def test_line_with_a_secret_ends_before_it(replacement: object, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "airflow.providers.apache.spark.hooks.spark_submit._mask_sensitive_values", replacement)
    assert _airflow.masked("a=1 db.Password=tell-nobody day=1\n") == "a=1 db.Password ******"
    assert _airflow.masked("INFO of Spark") == "INFO of Spark"


# -- the Spark provider ------------------------------------------------------------------------------------------------


def without(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Let the constructor of ``owner`` set no attribute of this name."""
    construct = owner.__init__  # type: ignore[misc]

    def constructed(self: object, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        vars(self).pop(name)

    constructed.__signature__ = inspect.signature(construct)  # type: ignore[attr-defined]
    monkeypatch.setattr(owner, "__init__", constructed)


@pytest.mark.parametrize("name", METHODS)
def test_method_of_the_hook_that_is_gone_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(SparkSubmitHook, name)
    with pytest.raises(PartMissing, match=rf"no SparkSubmitHook\.{name}.*Nothing was submitted"):
        CheckpointedSparkSubmitHook()


@pytest.mark.parametrize("name", METHODS)
def test_method_of_the_hook_that_is_changed_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkSubmitHook, name, changed)
    with pytest.raises(PartMissing, match=rf"no SparkSubmitHook\.{name}.*Nothing was submitted"):
        CheckpointedSparkSubmitHook()


@pytest.mark.parametrize("name", SET_LATE)
def test_attribute_of_the_hook_that_is_gone_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, SparkSubmitHook, name)
    with pytest.raises(PartMissing, match=rf"no SparkSubmitHook\.{name},"):
        CheckpointedSparkSubmitHook()


@pytest.mark.parametrize("name", READ_EARLY)
def test_attribute_that_is_read_while_the_hook_is_made_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def store(self: object, key: str, value: object) -> None:
        vars(self).update({} if key == name else {key: value})

    monkeypatch.setattr(SparkSubmitHook, "__setattr__", store, raising=False)
    with pytest.raises(PartMissing, match=rf"no SparkSubmitHook\.{name},"):
        CheckpointedSparkSubmitHook()


@pytest.mark.parametrize("name", ["master", "deploy_mode"])
def test_hook_that_does_not_say_where_it_leads_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = SparkSubmitHook._resolve_connection

    def resolved(self: SparkSubmitHook) -> dict[str, Any]:
        return {key: value for key, value in resolve(self).items() if key != name}

    monkeypatch.setattr(SparkSubmitHook, "_resolve_connection", resolved)
    with pytest.raises(PartMissing, match=name):
        CheckpointedSparkSubmitHook()


def test_hook_that_looks_up_its_connection_in_another_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """That way may take an unreadable connection for an absent one, whose master is yarn."""
    monkeypatch.setattr(SparkSubmitHook, "_resolve_connection", lambda self: {"master": "yarn", "deploy_mode": None})
    with pytest.raises(PartMissing, match="calls get_connection"):
        CheckpointedSparkSubmitHook()


def test_hook_that_swallows_each_error_does_not_turn_an_unreadable_connection_into_yarn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resolved(self: SparkSubmitHook) -> dict[str, Any]:
        try:
            return {"master": self.get_connection(self._conn_id).host, "deploy_mode": None}
        except Exception:  # noqa: BLE001 - a newer provider might
            return {"master": "yarn", "deploy_mode": None}

    monkeypatch.setattr(SparkSubmitHook, "_resolve_connection", resolved)
    assert CheckpointedSparkSubmitHook().master == "local[1]"
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", "{not json")
    with pytest.raises(ConnectionMalformed):
        CheckpointedSparkSubmitHook()


def operator() -> CheckpointedSparkSubmitOperator:
    return CheckpointedSparkSubmitOperator(task_id="job", application="job.py")


@gone_or_changed
def test_operator_without_its_seam_is_not_imported(replacement: object, monkeypatch: pytest.MonkeyPatch) -> None:
    if replacement is None:
        monkeypatch.delattr(SparkSubmitOperator, "_get_hook")
    else:
        monkeypatch.setattr(SparkSubmitOperator, "_get_hook", replacement)
    with pytest.raises(PartMissing, match=r"no SparkSubmitOperator\._get_hook"):
        operator()


def test_operator_that_makes_a_hook_of_its_own_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its driver would not know of its launch, though the seam is there."""

    def execute(self: SparkSubmitOperator, context: Any) -> None:
        SparkSubmitHook(conf=self.conf, conn_id=self._conn_id).submit(self.application)

    monkeypatch.setattr(SparkSubmitOperator, "execute", execute)
    with pytest.raises(
        PartMissing, match=r"no SparkSubmitOperator\.execute that calls _get_hook.*Nothing was submitted"
    ):
        operator()


@pytest.mark.parametrize("name", ["_hook", "_conn_id", "_java_class"])
def test_attribute_of_the_operator_that_is_gone_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, SparkSubmitOperator, name)
    with pytest.raises(PartMissing, match=rf"no SparkSubmitOperator\.{name},"):
        operator()


def test_argument_of_the_hook_that_the_operator_does_not_hold_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook's default would be a driver with less memory, for example."""
    without(monkeypatch, SparkSubmitOperator, "_driver_memory")
    with pytest.raises(PartMissing, match=r"no SparkSubmitOperator\._driver_memory"):
        operator()._get_hook()


# -- the import of the package ------------------------------------------------------------------------------------------

IMPORTED = """
import importlib, pkgutil, sys
import airflow.sdk.execution_time.supervisor, airflow.sdk.observability.stats, airflow.providers.apache.spark.operators.spark_submit
for dotted in sys.argv[1:]:
    path, _, name = dotted.rpartition(".")
    owner = sys.modules.get(path) or getattr(sys.modules[path.rpartition(".")[0]], path.rpartition(".")[2])
    vars(owner).pop(name, None) if hasattr(owner, "__file__") else delattr(owner, name)
import airflow_checkpoint_provider as package
for folder in ("hooks", "operators", "sensors", "triggers", "assets", "task_groups", "cli", "ui"):
    module = importlib.import_module(f"{package.__name__}.{folder}")
    for found in pkgutil.walk_packages(module.__path__, f"{module.__name__}."):
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if not str(error.name).startswith(("airflow.providers.", "kubernetes")):  # an operator whose service is not used here
                raise
importlib.import_module(f"{package.__name__}._airflow")
importlib.import_module(f"{package.__name__}.metrics")
print("imported")
"""


def test_module_of_private_names_imports_none_of_them_at_once() -> None:
    at_once = [node for node in ast.parse(inspect.getsource(_airflow)).body if isinstance(node, ast.ImportFrom)]
    taken = {f"{node.module}.{name.name}" for node in at_once for name in node.names if node.module != "__future__"}
    assert {name for name in taken if name.startswith("airflow.")} == {
        "airflow.configuration.conf",
        "airflow.sdk.BaseHook",
        "airflow.sdk.exceptions.AirflowNotFoundException",
    }


def test_package_is_imported_without_any_of_these_names() -> None:
    """Only names that Airflow itself does not need to start."""
    spark = "airflow.providers.apache.spark"
    names = [
        *(
            name
            for name in CONNECTIONS
            if name.startswith((f"{TASK}.context.", f"{TASK}.secrets.", f"{TASK}.supervisor."))
        ),
        f"{TASK}.task_runner._xcom_push_to_db",
        "airflow.sdk.observability.stats.gauge",
        f"{spark}.hooks.spark_submit._mask_sensitive_values",
        *(f"{spark}.hooks.spark_submit.SparkSubmitHook.{name}" for name in METHODS),
        f"{spark}.operators.spark_submit.SparkSubmitOperator._get_hook",
    ]
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *names], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["imported"], done.stderr
