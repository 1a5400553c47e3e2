"""Which connections the pages open, and whether a task has ended: by Airflow's database, in memory."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from airflow.models import import_all_models
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import TaskInstanceState
from sqlalchemy import Engine, create_engine, insert
from sqlalchemy.orm import Session

from airflow_checkpoint_provider.hooks.connections import ConnectionNotNamed
from airflow_checkpoint_provider.ui import connections


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Engine:
    import_all_models()  # type: ignore[no-untyped-call]  # a table names others
    engine = create_engine("sqlite://")
    TaskInstance.metadata.create_all(engine, [TaskInstance.__table__])

    @contextmanager
    def create_session() -> Iterator[Session]:
        with Session(engine) as session:
            yield session

    monkeypatch.setattr(connections, "create_session", create_session)
    return engine


def test_pages_open_the_default_connection_or_those_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW__CHECKPOINTS__CONNECTIONS", raising=False)
    assert connections.named() == ["checkpoint_default"]
    monkeypatch.setenv("AIRFLOW__CHECKPOINTS__CONNECTIONS", "lake, streams")
    assert connections.named() == ["lake", "streams"]
    connections.check_named("streams")
    with pytest.raises(ConnectionNotNamed, match="`connections = checkpoint_default,other`"):
        connections.check_named("other")


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
