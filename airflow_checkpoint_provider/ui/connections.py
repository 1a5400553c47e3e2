"""The connections whose checkpoints the pages show, and the history of a task. Runs in Airflow (API server); reads its database."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from airflow.configuration import conf
from airflow.models.connection import Connection
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from airflow.utils.state import State
from sqlalchemy import select

from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.operators._link import KEY, Place
from airflow_checkpoint_provider.storage import Store


def shown() -> list[str]:
    """Return the connections of ``[checkpoints] connections``. By default: the default one, and those in the database."""
    configured: list[str] = conf.getlist("checkpoints", "connections", fallback=[])
    if configured:
        return configured
    with create_session() as session:
        stored = session.scalars(
            select(Connection.conn_id).where(Connection.conn_type == CheckpointStorageHook.conn_type)
        )
        return sorted({CheckpointStorageHook.default_conn_name, *stored})


def open_store(connection: str) -> Store:
    """Return the store of a connection. Without the default connection: the folder of jobs with a local Spark master."""
    return CheckpointStorageHook(connection).get_store_beside()


def place_of(dag: str, run: str, task: str, map_index: int) -> Place | None:
    """Return the history that a task works on, as its link says; None if the task has not said it yet."""
    query = XComModel.get_many(run_id=run, key=KEY, task_ids=task, dag_ids=dag, map_indexes=map_index, limit=1)
    with create_session() as session:
        entry = session.scalars(query).first()
        link = XComModel.deserialize_value(entry) if entry else None
    return Place.of(parse_qs(urlsplit(link).query)) if isinstance(link, str) else None


def has_ended(dag: str, run: str, task: str, map_index: int) -> bool:
    """Return whether a task instance has ended, so that it says nothing more."""
    with create_session() as session:
        query = select(TaskInstance.state).where(
            TaskInstance.dag_id == dag,
            TaskInstance.run_id == run,
            TaskInstance.task_id == task,
            TaskInstance.map_index == map_index,
        )
        return session.scalar(query) in State.finished
