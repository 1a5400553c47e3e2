"""The private parts of Airflow 3.3 and its Spark provider 6.3 that this package uses. Runs in Airflow.

Each name here is asserted to exist by ``tests/unit/test_airflow_internals.py``.
"""

from __future__ import annotations

import inspect
import subprocess
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf, ensure_secrets_loaded
from airflow.sdk.exceptions import AirflowRuntimeError, AirflowSecretsBackendAccessDenied, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse, GetConnection, GetTICount
from airflow.sdk.execution_time.context import (
    _mask_connection_secrets,
    _preset_connections,
    _process_connection_result_conn,
)
from airflow.sdk.execution_time.secrets import ExecutionAPISecretsBackend
from airflow.sdk.execution_time.supervisor import ensure_secrets_backend_loaded
from airflow.sdk.execution_time.xcom import XCom
from airflow.sdk.observability import stats

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
    from airflow.sdk import Connection


# -- connections -------------------------------------------------------------------------------------------------------


def find_connection(conn_id: str) -> Connection | None:
    """Return the connection; None only if every secrets backend answered that it does not exist.

    Airflow's own look-up logs the error of a backend at debug level and then says "isn't defined"; this one raises the error.
    """
    preset = (_preset_connections.get() or {}).get(conn_id)  # a connection that is being tested and not stored yet
    if preset is not None:
        return preset
    failure: Exception | None = None
    for backend in _secrets_backends():
        ask = _ask_api_server if isinstance(backend, ExecutionAPISecretsBackend) else backend.get_connection
        try:
            connection: Connection | None = ask(conn_id=conn_id)
        except AirflowSecretsBackendAccessDenied:  # no later backend may answer instead
            raise
        except Exception as error:  # noqa: BLE001 - a secrets backend raises any error of its client
            failure = failure or error
        else:
            if connection is not None:
                _mask_connection_secrets(connection)
                return connection
    if failure is not None:
        raise failure
    return None


def _secrets_backends() -> list[Any]:
    if hasattr(task_runner, "SUPERVISOR_COMMS"):  # a task, a trigger, a DAG being parsed
        return list(ensure_secrets_backend_loaded())
    return list(ensure_secrets_loaded())  # the API server; a command, where the other list would leave out the database


def _ask_api_server(conn_id: str) -> Connection | None:
    answer = task_runner.SUPERVISOR_COMMS.send(GetConnection(conn_id=conn_id))
    if isinstance(answer, ErrorResponse) and answer.error is ErrorType.CONNECTION_NOT_FOUND:
        # The API server says so too when its database does not answer. To this question it then answers with an error.
        counted = task_runner.SUPERVISOR_COMMS.send(GetTICount(dag_id=conn_id))
        if isinstance(counted, ErrorResponse):
            raise AirflowRuntimeError(counted)
        return None
    return _process_connection_result_conn(answer)


# -- links -------------------------------------------------------------------------------------------------------------


def push_link(ti: Any, key: str, value: str) -> None:
    """Store a link where Airflow looks for it: in its database, also where XComs of tasks lie elsewhere."""
    task_runner._xcom_push_to_db(ti, key, value)


def task_state(dag: str, run: str, task: str) -> str | None:
    """Return the state of a task, as a trigger may ask for it; None if it has none, or does not exist."""
    states = task_runner.RuntimeTaskInstance.get_task_states(dag_id=dag, task_ids=[task], run_ids=[run])
    state = states.get(run, {}).get(task)
    return str(state) if state is not None else None


def push_xcom(dag: str, run: str, task: str, key: str, value: Any) -> None:
    """Store an XCom of a task from its trigger, which has no task instance that could."""
    XCom.set(key, value, dag_id=dag, run_id=run, task_id=task)


# -- metrics -----------------------------------------------------------------------------------------------------------


def gauge(name: str, value: float, tags: dict[str, str], levels: Iterable[str]) -> None:
    """Send a gauge as Airflow sends its own: with tags, and if legacy names are on also with ``levels`` in its name."""
    stats.gauge(f"checkpoint.{name}", value, tags=tags)
    if conf.getboolean("metrics", "legacy_names_on"):
        before = [stats.normalize_name_for_stats(level.replace(".", "__"), log_warning=False) for level in levels]
        stats.gauge(".".join(("checkpoint", *before, name)), value)


# -- the Spark provider ------------------------------------------------------------------------------------------------


def spark_hook_arguments(operator: SparkSubmitOperator) -> dict[str, Any]:
    """Return the arguments that ``SparkSubmitOperator._get_hook`` passes to its hook: attributes, some with an underscore."""
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    names = list(inspect.signature(SparkSubmitHook.__init__).parameters)[1:]
    return {name: getattr(operator, name if hasattr(operator, name) else f"_{name}") for name in names}


def spark_submit_process(hook: SparkSubmitHook) -> subprocess.Popen[str] | None:
    return hook._submit_sp


def spark_driver_id(hook: SparkSubmitHook) -> str | None:
    """Return by which name the cluster manager knows the driver that was submitted, as the provider's own ``get_job_status`` takes it."""
    if hook._kubernetes_driver_pod:
        return f"{hook._connection['namespace']}:{hook._kubernetes_driver_pod}"
    return hook._yarn_application_id or hook._driver_id


def run_post_submit_commands(hook: SparkSubmitHook) -> None:
    """Run the task's ``post_submit_commands``, unless the hook has run them."""
    hook._run_post_submit_commands()


def masked(line: str) -> str:
    """Return a line of Spark's output without the values after words with "secret" or "password", as the hook's errors show it."""
    from airflow.providers.apache.spark.hooks import spark_submit

    return spark_submit._mask_sensitive_values(line)


def spark_connection(hook: SparkSubmitHook) -> dict[str, Any]:
    """Return ``master``, ``deploy_mode`` and more, as the hook read them from its connection and parameters."""
    return hook._connection
