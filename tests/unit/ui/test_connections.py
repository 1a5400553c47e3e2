"""Which connections the pages show, and whether a task has ended: by Airflow's database, in memory."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from airflow.models import import_all_models
from airflow.models.connection import Connection
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import TaskInstanceState
from sqlalchemy import Engine, create_engine, insert
from sqlalchemy.orm import Session

from airflow_checkpoint_provider.ui import connections


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Engine:
    import_all_models()  # type: ignore[no-untyped-call]  # a table names others
    engine = create_engine("sqlite://")
    for model in (Connection, TaskInstance):
        model.metadata.create_all(engine, [model.__table__])

    @contextmanager
    def create_session() -> Iterator[Session]:
        with Session(engine) as session:
            yield session

    monkeypatch.setattr(connections, "create_session", create_session)
    monkeypatch.delenv("AIRFLOW__CHECKPOINTS__CONNECTIONS", raising=False)
    return engine


def test_connections_are_the_default_one_and_those_of_the_type_in_the_database(
    database: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connections.shown() == ["checkpoint_default"]
    with Session(database) as session:
        session.add_all(
            [
                Connection(conn_id="streams", conn_type="checkpoint_storage"),
                Connection(conn_id="lake", conn_type="checkpoint_storage"),
                Connection(conn_id="other", conn_type="http"),
            ]
        )
        session.commit()
    assert connections.shown() == ["checkpoint_default", "lake", "streams"]
    monkeypatch.setenv("AIRFLOW__CHECKPOINTS__CONNECTIONS", "lake")
    assert connections.shown() == ["lake"]


@pytest.mark.parametrize(
    ("state", "ended"),
    [
        (None, False),
        (TaskInstanceState.RUNNING, False),
        (TaskInstanceState.UP_FOR_RETRY, False),
        (TaskInstanceState.SUCCESS, True),
        (TaskInstanceState.FAILED, True),
        (TaskInstanceState.SKIPPED, True),
    ],
)
def test_task_has_ended_in_its_last_states(database: Engine, state: TaskInstanceState | None, ended: bool) -> None:
    assert not connections.has_ended("d", "r", "t", -1)
    with Session(database) as session:
        session.execute(
            insert(TaskInstance.__table__).values(
                id=uuid.uuid4(), dag_id="d", run_id="r", task_id="t", map_index=-1, state=state, pool="p", pool_slots=1,
                try_number=1, dag_version_id=None, span_status="not started",
            )
        )  # fmt: skip
        session.commit()
    assert connections.has_ended("d", "r", "t", -1) is ended
    assert not connections.has_ended("d", "r", "t", 0)
