"""One JVM for the tests of a file, and a table in a schema of its own for each of them. Runs on Linux."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import py4j.java_gateway
import py4j.protocol
import pytest

from tests.integration.sinks.tables import Target
from tests.support.postgres import Client, Postgres

numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read errors without PySpark: it asks the JVM of its session about them, which another test of this process may have left."""
    monkeypatch.setattr(py4j.java_gateway, "get_return_value", py4j.protocol.get_return_value)


@pytest.fixture(scope="module")
def client(postgres: Postgres) -> Iterator[Client]:
    with Client(postgres) as client:
        yield client


@pytest.fixture
def targets(postgres: Postgres, client: Client) -> Callable[[], Target]:
    def new() -> Target:
        schema = f"lab{next(numbers)}"
        client.sql(
            f"create schema {schema}; create table {schema}.rows (id bigint primary key, day text not null default 'x', run text)"
        )
        return Target(postgres, client, schema)

    return new


@pytest.fixture
def target(targets: Callable[[], Target]) -> Target:
    return targets()
