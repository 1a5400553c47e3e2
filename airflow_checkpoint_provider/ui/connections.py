"""The connections that the pages open, and the history of a task. Runs in Airflow (API server); reads its database."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from airflow.configuration import conf
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from airflow.utils.state import State
from sqlalchemy import select

from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.connections import ConnectionNotNamed
from airflow_checkpoint_provider.hooks.references import LINK_KEY, HistoryReference
from airflow_checkpoint_provider.storage import Store


def named() -> list[str]:
    """Return the connections that the pages open: those of ``[checkpoints] connections``, or the default one."""
    configured: list[str] = conf.getlist("checkpoints", "connections", fallback=[])
    return configured or [CheckpointStorageHook.default_conn_name]


def check_named(connection: str) -> None:
    """Raise ``ConnectionNotNamed`` for a connection that the pages do not open. The error says which line is missing."""
    if connection not in named():
        default = CheckpointStorageHook.default_conn_name
        raise ConnectionNotNamed(
            f"Connection {connection!r} is not one that these pages open. An administrator of Airflow can name it in the"
            f" configuration of the API server: in section [checkpoints], the line `connections = {default},{connection}`. If"
            f" there is such a line, add `,{connection}` to it"
        )


def open_store(connection: str) -> Store:
    """Return the store of a connection. Without the default connection: the folder of jobs with a local Spark master."""
    return CheckpointStorageHook(connection).get_store_beside()


def reference_of(dag: str, run: str, task: str, map_index: int) -> HistoryReference | None:
    """Return the history that a task works on, as its link says; None if the task has not pushed a link yet."""
    query = XComModel.get_many(run_id=run, key=LINK_KEY, task_ids=task, dag_ids=dag, map_indexes=map_index, limit=1)
    with create_session() as session:
        entry = session.scalars(query).first()
        link = XComModel.deserialize_value(entry) if entry else None
    return HistoryReference.of(parse_qs(urlsplit(link).query)) if isinstance(link, str) else None


def has_ended(dag: str, run: str, task: str, map_index: int) -> bool:
    """Return whether a task instance has ended, so that it pushes no link any more."""
    with create_session() as session:
        query = select(TaskInstance.state).where(
            TaskInstance.dag_id == dag,
            TaskInstance.run_id == run,
            TaskInstance.task_id == task,
            TaskInstance.map_index == map_index,
        )
        return session.scalar(query) in State.finished
