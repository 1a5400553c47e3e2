"""The private parts of Airflow and its Spark provider that this package uses, and the releases with which it was tried. Runs in Airflow.

No private name is imported before it is used, so a name that a newer release no longer has costs one feature, not the package. Beside each
name stands what replaces it. What nothing replaces is refused with ``PartMissing``. ``tests/unit/test_airflow_internals.py`` asserts that each
name exists, ``tests/unit/test_airflow_changed.py`` takes each one away.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import re
import subprocess
import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import airflow
from airflow.configuration import conf
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_checkpoint_provider.errors import PartMissing
from airflow_checkpoint_provider.policies import releases

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
    from airflow.sdk import Connection

CHANGED = (ImportError, AttributeError, TypeError)
"""The errors of a private name that was removed, moved, or takes other arguments."""


# -- releases ----------------------------------------------------------------------------------------------------------

NEWEST_AIRFLOW, NEWEST_PROVIDER = (3, 3), (6, 3)
"""The newest releases with which the tests run."""
DISCARDING = (3, 4)
"""From this release on a clear of task instances deletes what Airflow has stored for the task, unless the person keeps it."""


def clear_may_discard() -> bool:
    return releases.minor(airflow.__version__) >= DISCARDING


def untried() -> dict[str, str]:
    """Return what is newer than all releases with which this package was tried, and the newest of those: ``{"Airflow 3.5.0": "3.3"}``."""
    installed = (("Airflow", airflow.__version__, NEWEST_AIRFLOW), ("Spark provider", _provider(), NEWEST_PROVIDER))
    return {
        f"{part} {version}": releases.text(newest)
        for part, version, newest in installed
        if releases.minor(version) > newest
    }


def _provider() -> str:
    from airflow.providers.apache.spark import __version__

    return __version__


def _missing(name: str) -> PartMissing:
    airflow_tried, provider_tried = releases.text(NEWEST_AIRFLOW), releases.text(NEWEST_PROVIDER)
    return PartMissing(
        f"Airflow {airflow.__version__} with Spark provider {_provider()} has no {name}, or another one than this package needs to submit."
        f" Nothing was submitted. Install Airflow {airflow_tried} and its Spark provider {provider_tried}, with which this package was"
        " tried, or a newer version of this package"
    )


# -- loops -------------------------------------------------------------------------------------------------------------


def in_loop(context: Any) -> bool:
    """Return whether a task runs once for each pass of a loop, as Airflow 3.4 can do: its context then has the index of the pass."""
    return isinstance(getattr(context.get("loop"), "index", None), int)


# -- connections -------------------------------------------------------------------------------------------------------


def find_connection(conn_id: str) -> Connection | None:
    """Return the connection; None only if every secrets backend answered that it does not exist.

    Airflow's own look-up logs the error of a backend at debug level and then says "isn't defined"; this one raises the error. If Airflow
    has changed, its own look-up is asked, and only a connection that it finds is believed.
    """
    try:
        return _ask_each_backend(conn_id)
    except CHANGED:
        with contextlib.suppress(AirflowNotFoundException):
            found: Connection = BaseHook.get_connection(conn_id)
            return found
        raise


def _ask_each_backend(conn_id: str) -> Connection | None:
    from airflow.sdk.execution_time.context import _mask_connection_secrets, _preset_connections

    preset = (_preset_connections.get() or {}).get(conn_id)  # a connection that is being tested and not stored yet
    if preset is not None:
        return preset
    in_task, backends = _secrets_backends()
    teams = not in_task and conf.getboolean("core", "multi_team", fallback=False)
    connection = _first_answer(backends, conn_id, _team_of(conn_id) if teams else None)
    if connection is not None:
        _mask_connection_secrets(connection)
    elif teams:
        _refuse_other_teams(backends, conn_id)
    return connection


def _first_answer(backends: list[Any], conn_id: str, team: str | None) -> Connection | None:
    from airflow.sdk.exceptions import AirflowSecretsBackendAccessDenied
    from airflow.sdk.execution_time.secrets import ExecutionAPISecretsBackend

    failure: Exception | None = None
    for backend in backends:
        ask = _ask_api_server if isinstance(backend, ExecutionAPISecretsBackend) else backend.get_connection
        try:
            connection: Connection | None = _ask(ask, conn_id, team)
        except AirflowSecretsBackendAccessDenied:  # no later backend may answer instead
            raise
        except Exception as error:  # noqa: BLE001 - a secrets backend raises any error of its client
            failure = failure or error
        else:
            if connection is not None:
                return connection
    if failure is not None:
        raise failure
    return None


READERS = ("_deserialize_connection_value", "from_json", "from_uri", "_parse_from_uri", "_validate_extra")
"""The functions by which Airflow reads what is written for a connection: JSON, a URI, an extra."""


def is_misread(error: Exception) -> bool:
    """Return whether Airflow has got what is written for a connection, and cannot read it.

    The type of the error does not tell: a backend whose server answers with a web page raises a ``JSONDecodeError``, too. If Airflow's
    functions have other names, the answer is False.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(
        frame.f_code.co_name in READERS and str(frame.f_globals["__name__"]).startswith("airflow.") for frame in frames
    )


class OtherTeam(LookupError):
    """A secrets backend has the connection for tasks of a team only."""


def _team_of(conn_id: str) -> str | None:
    """Return the team to which the connection in Airflow's database belongs. For tasks, the API server adds the team of the task."""
    from airflow.models.connection import Connection as Stored

    team: str | None = Stored.get_team_name(conn_id)
    return team


def _ask(ask: Any, conn_id: str, team: str | None) -> Any:
    """Ask a secrets backend. One that was written before Airflow had teams takes no ``team_name``."""
    return ask(conn_id=conn_id, team_name=team) if team and _knows_teams(ask) else ask(conn_id=conn_id)


def _knows_teams(ask: Any) -> bool:
    parameters = inspect.signature(ask).parameters.values()
    return any(one.name == "team_name" or one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)


def _refuse_other_teams(backends: list[Any], conn_id: str) -> None:
    """Raise ``OtherTeam`` if the tasks of a team find the connection: it is not absent, and only a task says for which team it asks."""
    from airflow.models.team import Team

    asks = [backend.get_connection for backend in backends if _knows_teams(backend.get_connection)]
    for team in sorted(Team.get_all_team_names()):
        if any(_ask(ask, conn_id, team) is not None for ask in asks):
            raise OtherTeam(f"only tasks of team {team!r} find it, in a secrets backend")


def _secrets_backends() -> tuple[bool, list[Any]]:
    """Return whether this is the process of a task, a trigger or a DAG that is being parsed, and its secrets backends."""
    from airflow.configuration import ensure_secrets_loaded
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.secrets import ExecutionAPISecretsBackend
    from airflow.sdk.execution_time.supervisor import ensure_secrets_backend_loaded

    if hasattr(task_runner, "SUPERVISOR_COMMS"):
        backends = list(ensure_secrets_backend_loaded())
        if not any(isinstance(backend, ExecutionAPISecretsBackend) for backend in backends):
            raise AttributeError("no secrets backend of this task is an ExecutionAPISecretsBackend")
        return True, backends
    if "SUPERVISOR_COMMS" not in task_runner.__annotations__:
        raise AttributeError("airflow.sdk.execution_time.task_runner has no SUPERVISOR_COMMS")
    # the API server; a command, where the other list would leave out the database
    return False, list(ensure_secrets_loaded())


def _ask_api_server(conn_id: str) -> Connection | None:
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import ErrorResponse, GetConnection, GetTaskStates
    from airflow.sdk.execution_time.context import _process_connection_result_conn

    answer = task_runner.SUPERVISOR_COMMS.send(GetConnection(conn_id=conn_id))
    if isinstance(answer, ErrorResponse) and answer.error is ErrorType.CONNECTION_NOT_FOUND:
        # The API server says so too when its database does not answer. To this question it then answers with an error. Tasks, triggers
        # and the DAG processor all know its answer.
        states = task_runner.SUPERVISOR_COMMS.send(GetTaskStates(dag_id=conn_id, run_ids=[conn_id]))
        if isinstance(states, ErrorResponse):
            raise AirflowRuntimeError(states)
        return None
    return _process_connection_result_conn(answer)


# -- links -------------------------------------------------------------------------------------------------------------


def push_link(ti: Any, key: str, value: str) -> None:
    """Store a link where Airflow looks for it: in its database, also where XComs of tasks lie elsewhere. If Airflow has changed, store it
    with the XComs of tasks."""
    try:
        from airflow.sdk.execution_time.task_runner import _xcom_push_to_db

        _xcom_push_to_db(ti, key, value)
    except CHANGED:
        ti.xcom_push(key=key, value=value)


DELETED = "deleted"
"""What ``task_state`` returns for an instance that does not exist any more: it was deleted, perhaps with its DAG run."""


def task_state(dag: str, run: str, task: str, map_index: int | None = None) -> str | None:
    """Return the state of a task, or of an instance of a mapped task, as a task or a trigger may ask for it; None if it has none, as after
    a clear. Raise the errors of Airflow's client if there is no answer.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states = RuntimeTaskInstance.get_task_states(dag_id=dag, task_ids=[task], run_ids=[run], map_index=map_index)
    state = states.get(run, {}).get(task if map_index is None else f"{task}_{map_index}", DELETED)
    return str(state) if state is not None else None


def push_xcom(dag: str, run: str, task: str, key: str, value: Any, map_index: int | None = None) -> None:
    """Store an XCom of a task from its trigger, which has no task instance that could."""
    from airflow.sdk.execution_time.xcom import XCom

    index = -1 if map_index is None else map_index
    XCom.set(key, value, dag_id=dag, run_id=run, task_id=task, map_index=index)


# -- mapped tasks ------------------------------------------------------------------------------------------------------


def of_instance(task: Any, context: Any) -> Any:
    """Return the context of one instance of a mapped task, as its own process has it: with its task, whose templates are not rendered, and
    its params. Raise any error if Airflow does not know the arguments here.
    """
    from airflow.sdk.definitions.param import process_params

    arguments, _ = task._expand_mapped_kwargs(context)
    instance = task.unmap(arguments)
    conf = getattr(context.get("dag_run"), "conf", None)
    return {**context, "task": instance, "params": process_params(task.dag, instance, conf, suppress_exception=False)}


# -- metrics -----------------------------------------------------------------------------------------------------------

LONGEST_LEVEL = 80
"""Letters of a level in the name of a gauge. Airflow sends no name of more than 250."""


def gauge(name: str, value: float, tags: dict[str, str], levels: Iterable[str]) -> None:
    """Send a gauge as Airflow sends its own: with tags, and if legacy names are on also with ``levels`` in its name.

    If Airflow has changed, ``metrics.py`` logs that gauges cannot be sent.
    """
    from airflow.sdk.observability import stats

    stats.gauge(f"checkpoint.{name}", value, tags=tags)
    if conf.getboolean("metrics", "legacy_names_on"):
        stats.gauge(".".join(("checkpoint", *map(_in_a_name, levels), name)), value)


def _in_a_name(level: str) -> str:
    """Return a level of a gauge's name. If letters are replaced, or it is cut, a digest keeps it apart from others."""
    dotless = level.replace(".", "__")
    clean = re.sub(r"[^a-zA-Z0-9_-]", "_", dotless)[:LONGEST_LEVEL]
    return clean if clean == dotless else f"{clean}_{hashlib.sha256(level.encode()).hexdigest()[:8]}"


# -- the Spark provider ------------------------------------------------------------------------------------------------


def check_attributes(theirs: type, instance: object, *names: str) -> None:
    """Raise ``PartMissing`` unless an instance of ``theirs`` has these attributes, which ours reads or sets."""
    for name in names:
        if not hasattr(instance, name):
            raise _missing(f"{theirs.__name__}.{name}")


def check_overridden(ours: type, theirs: type, *names: str) -> None:
    """Raise ``PartMissing`` unless ``theirs`` has these methods with the parameters of ``ours``: else nothing would call ours."""
    for name in names:
        method = getattr(theirs, name, None)
        if method is None or _parameters(method) != _parameters(getattr(ours, name)):
            raise _missing(f"{theirs.__name__}.{name}")


def check_calls(theirs: type, caller: str, called: str) -> None:
    """Raise ``PartMissing`` unless the method ``caller`` of ``theirs`` names ``called``: else nothing would call ours, though it is there."""
    code = getattr(inspect.unwrap(getattr(theirs, caller)), "__code__", None)  # Airflow wraps `execute`
    if called not in getattr(code, "co_names", ()):
        raise _missing(f"{theirs.__name__}.{caller} that calls {called}")


def _parameters(method: Any) -> list[str]:
    return list(inspect.signature(method).parameters)


def check_resolved(connection: dict[str, Any], asked: list[str]) -> None:
    """Raise ``PartMissing`` unless the hook's ``_resolve_connection`` has asked for its connection, and says where it leads."""
    if not asked:
        raise _missing("SparkSubmitHook._resolve_connection that calls get_connection")
    for name in ("master", "deploy_mode"):
        if name not in connection:
            raise _missing(f"SparkSubmitHook._connection[{name!r}]")


def spark_hook_arguments(operator: SparkSubmitOperator) -> dict[str, Any]:
    """Return the arguments that ``SparkSubmitOperator._get_hook`` passes to its hook: attributes, some with an underscore."""
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    arguments = {}
    for name in _parameters(SparkSubmitHook.__init__)[1:]:
        attribute = name if hasattr(operator, name) else f"_{name}"
        if not hasattr(operator, attribute):
            raise _missing(f"SparkSubmitOperator.{attribute}")
        arguments[name] = getattr(operator, attribute)
    return arguments


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


def yarn_diagnostics(hook: SparkSubmitHook, application: str) -> str:
    """Return what YARN says about the end of an application; empty if it does not answer, or if the provider has changed."""
    with contextlib.suppress(
        *CHANGED, ValueError, RuntimeError
    ):  # what the provider raises for an answer that it cannot use
        return str(hook._query_yarn_application_status(application)[2])
    return ""


def masked(line: str) -> str:
    """Return a line of Spark's output without the values after words with "secret" or "password", as the hook's errors show it. If the
    provider has changed, end the line there."""
    try:
        from airflow.providers.apache.spark.hooks.spark_submit import _mask_sensitive_values

        return _mask_sensitive_values(line)
    except CHANGED:
        return re.sub(r"(secret|password).*", r"\1 ******", line, flags=re.IGNORECASE | re.DOTALL)


def spark_connection(hook: SparkSubmitHook) -> dict[str, Any]:
    """Return ``master``, ``deploy_mode`` and more, as the hook read them from its connection and parameters."""
    return hook._connection
