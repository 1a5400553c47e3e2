"""For tests of services: a host, and the environments of the providers that submit to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.providers import Environment, environment_with
from tests.support.services.hosts import Host
from tests.support.services.tiny_submit import TINY


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with Host(tmp_path / "host") as host:
        yield host


@pytest.fixture
def tiny_host(tmp_path: Path) -> Iterator[Host]:
    """Yield a host whose drivers are scripts without Spark."""
    with Host(tmp_path / "tiny", spark_submit=TINY) as host:
        yield host


@pytest.fixture
def app(tmp_path: Path) -> str:
    """Return the path of a script that waits until it is killed."""
    file = tmp_path / "waits.py"
    file.write_text("import time; print('HERE', flush=True); time.sleep(600)")
    return str(file)


@pytest.fixture(scope="session")
def amazon() -> Environment:
    return environment_with("amazon")


@pytest.fixture(scope="session")
def cncf_kubernetes() -> Environment:
    return environment_with("cncf-kubernetes")


@pytest.fixture(scope="session")
def databricks() -> Environment:
    return environment_with("databricks")


@pytest.fixture(scope="session")
def google() -> Environment:
    return environment_with("google")


@pytest.fixture(scope="session")
def openlineage() -> Environment:
    return environment_with("openlineage")
