"""The parameters that the operator of a job refuses when its DAG is parsed. Runs in Airflow (DAG processor, worker)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from airflow.sdk import DAG

from airflow_checkpoint_provider.errors import InvalidConfig, NotSupportedYet
from airflow_checkpoint_provider.hooks.references import known_at_parse
from airflow_checkpoint_provider.protocol.handover import PREFIX
from airflow_checkpoint_provider.protocol.preflight import PreflightRequest

_TEMPLATE_ENDS = ("}}", "%}", "#}")


def refuse_fixed_key(task_id: str, scope: object) -> None:
    """Raise ``InvalidConfig`` for a scope that is neither a word that we know nor a template: perhaps a typing error."""
    if scope not in ("run", "job") and known_at_parse(scope):
        raise InvalidConfig(
            f'{task_id}: scope={scope!r}: write "run", "job", or a template such as "{{{{ ds }}}}", whose text is the key of a history. For a'
            ' history with a fixed key, give the task its own job_id= and scope="job"'
        )


def refuse_shared_scope(task_id: str, scope: object, dag: DAG) -> None:
    """Raise ``InvalidConfig`` for a history that all runs share, in a DAG of which several runs may be active."""
    if scope == "job" and dag.max_active_runs != 1:
        raise InvalidConfig(
            f'{task_id}: scope="job" needs max_active_runs=1 on DAG {dag.dag_id} (it is {dag.max_active_runs}):'
            " two runs cannot continue from one state at the same time"
        )


def refuse_deferral_in_client_mode(deferrable: object, deploy_mode: str | None) -> None:
    """Raise ``NotSupportedYet`` for ``deferrable=True`` of a task in client mode. None: the deploy mode is not known yet."""
    if deferrable and deploy_mode not in (None, "cluster"):
        raise NotSupportedYet(
            f'deferrable={deferrable!r}: in client mode the driver is a child of this task. Write deploy_mode="cluster", or leave it out'
        )


def refuse_other_languages(application: object, java_class: object) -> None:
    """Raise ``NotSupportedYet`` for an application that is no Python script, as far as that is written literally."""
    if java_class:
        raise NotSupportedYet(
            f"java_class={java_class!r}: {_ONLY_PYTHON}. Leave java_class= out, or submit the job by SparkSubmitOperator"
        )
    literal = isinstance(application, str) and application and not application.rstrip().endswith(_TEMPLATE_ENDS)
    if literal and not str(application).endswith(".py"):  # how spark-submit tells a Python script, byte by byte
        raise NotSupportedYet(
            f"application={application!r}: {_ONLY_PYTHON}. Its name must end with .py: spark-submit takes .R and .r for R, and everything"
            " else for a jar. Submit a job in another language by SparkSubmitOperator"
        )


_ONLY_PYTHON = "CheckpointedSparkSubmitOperator runs PySpark jobs"


def refuse_no_application(application: object) -> None:
    """Raise ``InvalidConfig`` for a rendered application that is no text, or empty."""
    if not isinstance(application, str) or not application:
        raise InvalidConfig(
            f"application={application!r}: write the path of the Python script that opens the CheckpointedJob"
        )


def refuse_inside_preflight(environment: Mapping[str, str]) -> None:
    """Raise ``InvalidConfig`` in a task that ``checkpoints preflight`` has started: it would submit the job.

    A variable that is left over from another preflight, or that holds anything else, is ignored.
    """
    request = None
    with contextlib.suppress(InvalidConfig):
        request = PreflightRequest.of(environment)
    if request and Path(request.answer).parent.is_dir():
        raise InvalidConfig(
            "this task runs inside of `checkpoints preflight`, and would submit the job itself. Write the command that starts the script"
            " after --, such as spark-submit"
        )


def refuse_own_confs(conf: object) -> None:
    """Raise ``InvalidConfig`` for confs that the task writes itself: it would replace them."""
    own = [name for name in conf if str(name).startswith(PREFIX)] if isinstance(conf, Mapping) else []
    if own:
        raise InvalidConfig(
            f"conf= has {own[0]}, but the task writes the confs {PREFIX}* itself. Leave it out, and write job_id=, checkpoint_conn_id=,"
            " restore=, checkpointing= or allow_non_restored_state= at the task"
        )
