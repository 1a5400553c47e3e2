"""For tests of services: a host, and the environments of the providers that submit to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.providers import Environment, environment_with
from tests.support.services.hosts import Host


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with Host(tmp_path / "host") as host:
        yield host


@pytest.fixture(scope="session")
def amazon() -> Environment:
    return environment_with("amazon")


@pytest.fixture(scope="session")
def cncf_kubernetes() -> Environment:
    return environment_with("cncf-kubernetes")


@pytest.fixture(scope="session")
def databricks() -> Environment:
    return environment_with("databricks")
