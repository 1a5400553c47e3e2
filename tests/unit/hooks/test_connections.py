"""Connections that belong to a team, for pages and commands: Airflow's database in memory, and secrets backends of users."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from airflow.configuration import conf
from airflow.models import import_all_models
from airflow.models.connection import Connection
from airflow.models.team import Team
from airflow.secrets.environment_variables import EnvironmentVariablesBackend
from airflow.secrets.metastore import MetastoreBackend
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from airflow_checkpoint_provider.hooks import checkpoint_storage
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.connections import ConnectionUnreadable, find_connection

BACKENDS = "airflow.configuration.ensure_secrets_loaded"


def stored(name: str, root: str, team: str | None = None) -> Connection:
    extra = json.dumps({"root": root})
    return Connection(conn_id=name, conn_type="checkpoint_storage", extra=extra, team_name=team)


@pytest.fixture(autouse=True)
def database(monkeypatch: pytest.MonkeyPatch) -> None:
    """``plain`` belongs to no team, ``streams`` and the default connection to ``team_a``."""
    import_all_models()  # type: ignore[no-untyped-call]  # a table names others
    engine = create_engine("sqlite://")
    Connection.metadata.create_all(engine, [Connection.__table__, Team.__table__])

    @contextmanager
    def create_session(*_: Any, **__: Any) -> Iterator[Session]:
        with Session(engine) as session:
            yield session
            session.commit()

    monkeypatch.setattr("airflow.utils.session.create_session", create_session)
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "True")
    with create_session() as session:
        session.add_all([Team(name="team_a"), Team(name="team_b")])
        for name, team in (("plain", None), ("streams", "team_a"), ("checkpoint_default", "team_a")):
            session.add(stored(name, f"/of/{name}", team))
    asked(monkeypatch, EnvironmentVariablesBackend(), MetastoreBackend())


def asked(monkeypatch: pytest.MonkeyPatch, *backends: Any) -> None:
    for backend in backends:
        if hasattr(backend, "_set_connection_class"):
            backend._set_connection_class(Connection)
    monkeypatch.setattr(BACKENDS, lambda: list(backends))


class Vault:
    """A secrets backend of a user, written before Airflow had teams."""

    def get_connection(self, conn_id: str) -> Connection | None:
        return stored(conn_id, "/of/vault") if conn_id == "vaulted" else None


class TeamVault:
    """A secrets backend that takes whatever Airflow passes, and has a connection for one team."""

    def get_connection(self, conn_id: str, **about: Any) -> Connection | None:
        mine = conn_id == "vaulted" and about.get("team_name") == "team_b"
        return stored(conn_id, "/of/team") if mine else None


@pytest.mark.parametrize("name", ["plain", "streams", "checkpoint_default"])
def test_connection_of_a_team_is_found_outside_of_its_tasks(name: str) -> None:
    assert CheckpointStorageHook(name).get_store_beside().uri == f"file:///of/{name}"


def test_variable_of_the_team_wins_as_it_does_for_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    variable = json.dumps({"conn_type": "checkpoint_storage", "extra": {"root": "/of/variable"}})
    monkeypatch.setenv("AIRFLOW_CONN__TEAM_A___STREAMS", variable)
    assert CheckpointStorageHook("streams").get_store().uri == "file:///of/variable"


def test_backend_that_knows_no_teams_is_asked_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked(monkeypatch, Vault(), MetastoreBackend())
    assert CheckpointStorageHook("vaulted").get_store().uri == "file:///of/vault"
    assert CheckpointStorageHook("streams").get_store().uri == "file:///of/streams"
    assert find_connection("nowhere") is None


def test_connection_that_a_backend_has_for_one_team_is_not_absent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else the default connection would lead pages and commands to another storage."""
    monkeypatch.setattr(checkpoint_storage, "get_airflow_home", lambda: str(tmp_path))
    variable = json.dumps({"conn_type": "checkpoint_storage", "extra": {"root": "/of/b"}})
    monkeypatch.setenv("AIRFLOW_CONN__TEAM_B___CHECKPOINT_DEFAULT", variable)
    asked(monkeypatch, EnvironmentVariablesBackend(), TeamVault())
    for name in ("checkpoint_default", "vaulted"):
        with pytest.raises(ConnectionUnreadable, match=r"only tasks of team 'team_b' find it.*Store the connection in"):
            CheckpointStorageHook(name).get_store_beside()


def test_database_that_does_not_say_the_team_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: Any, **__: Any) -> Any:
        raise OSError("no database")

    monkeypatch.setattr(Connection, "get_team_name", down)
    with pytest.raises(ConnectionUnreadable, match="no database"):
        find_connection("streams")


def test_without_teams_no_team_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "False")
    assert not conf.getboolean("core", "multi_team")
    monkeypatch.delattr(Connection, "get_team_name")
    assert find_connection("plain")
    assert find_connection("nowhere") is None
