"""Connections that belong to a team, for pages and commands, and what Airflow cannot read: Airflow's database in memory, and secrets
backends of users."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from airflow.configuration import conf
from airflow.models import import_all_models
from airflow.models.connection import Connection
from airflow.models.team import Team
from airflow.sdk import Connection as TaskConnection
from airflow.secrets.environment_variables import EnvironmentVariablesBackend
from airflow.secrets.metastore import MetastoreBackend
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from airflow_checkpoint_provider.errors import StoreMisconfigured
from airflow_checkpoint_provider.hooks import checkpoint_storage, yarn
from airflow_checkpoint_provider.hooks.checkpoint_storage import CheckpointStorageHook
from airflow_checkpoint_provider.hooks.connections import ConnectionMalformed, ConnectionUnreadable, find_connection

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
    with pytest.raises(ConnectionUnreadable, match=r"\(OSError\)"):
        find_connection("streams")


def test_without_teams_no_team_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "False")
    assert not conf.getboolean("core", "multi_team")
    monkeypatch.delattr(Connection, "get_team_name")
    assert find_connection("plain")
    assert find_connection("nowhere") is None


# -- what Airflow cannot read ------------------------------------------------------------------------------------------------

MISREAD = [
    "aws://AKIA:wJalr/K7MD@/?root=s3%3A%2F%2Flake",
    "aws://AKIA:wJalr#K7MD@/?root=s3%3A%2F%2Flake",
    "aws://AKIA:wJalr[K7MD@/?root=s3%3A%2F%2Flake",
    "aws://AKIA:wJalr@http://host?proxy=https://wJalr@other",  # one "://" too many: Airflow's error has all of it
    '{"conn_type": "aws", "password": "wJalr',
    '{"conn_type": "aws", "port": "wJalr"}',
    '{"conn_type": "aws", "root_wJalr": "/a"}',
    '{"conn_type": 5, "password": "wJalr"}',
    " ",
]


@pytest.fixture(params=[Connection, TaskConnection], ids=["command", "task"])
def written(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that writes the connection ``mine`` into the environment, for each of Airflow's two classes of connections."""
    environment = EnvironmentVariablesBackend()
    asked(monkeypatch, environment)
    environment._set_connection_class(request.param)
    return lambda text: monkeypatch.setenv("AIRFLOW_CONN_MINE", text)


def lines_of(error: BaseException) -> str:
    """Return what a log shows of an error."""
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("text", MISREAD)
def test_connection_that_airflow_cannot_read_fails_for_good_and_is_not_shown(
    written: Callable[[str], None], text: str
) -> None:
    written(text)
    with pytest.raises(
        StoreMisconfigured, match=r"connection 'mine' \((Value|JSONDecode|Type|Attribute|Index|Airflow)"
    ) as error:
        CheckpointStorageHook("mine").get_store()
    assert isinstance(error.value, ConnectionMalformed)
    assert error.value.permanent
    assert "percent-encode" in str(error.value)
    assert "wJalr" not in lines_of(error.value)


@pytest.mark.parametrize("extra", ["[1]", '"x"', "null", "5", "{bad", " ", "[" * 100_000])
def test_extra_that_is_no_object_fails_for_good(written: Callable[[str], None], extra: str) -> None:
    """In a task Airflow takes it for an empty one: it would pass over the root, and over the deploy mode of Spark."""
    written(json.dumps({"conn_type": "checkpoint_storage", "extra": extra}))
    with pytest.raises(ConnectionMalformed, match="'mine'"):
        CheckpointStorageHook("mine").get_store_of("orders")
    with pytest.raises(ConnectionMalformed, match="'mine'"):
        yarn.address_in("mine")


@pytest.mark.parametrize("extra", ["", None, {}, '{"root": "/a"}'])
def test_extra_that_is_empty_or_an_object_is_read(written: Callable[[str], None], extra: Any) -> None:
    written(json.dumps({"conn_type": "checkpoint_storage", "extra": extra}))
    assert find_connection("mine")


class Gateway:
    """A secrets backend whose server answers with a web page, or with another error that quotes what it has got."""

    def __init__(self, failure: Callable[[], object]) -> None:
        self.failure = failure

    def get_connection(self, conn_id: str) -> Connection | None:
        self.failure()
        return None


def quotes() -> None:
    raise ValueError("token wJalr is refused")


@pytest.mark.parametrize("failure", [lambda: json.loads("<html>wJalr"), quotes])
def test_error_of_a_secrets_backend_is_an_outage_and_its_text_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, failure: Callable[[], object], caplog: pytest.LogCaptureFixture
) -> None:
    asked(monkeypatch, Gateway(failure))
    with (
        caplog.at_level("INFO"),
        pytest.raises(ConnectionUnreadable, match=r"\((JSONDecode|Value)Error\).*DEBUG") as error,
    ):
        find_connection("mine")
    assert not error.value.permanent
    assert "wJalr" not in lines_of(error.value) + caplog.text
