"""For the tests of the services: a host on which a tiny script stands in for Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.services.hosts import Host
from tests.support.services.tiny_submit import TINY


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with Host(tmp_path / "host", spark_submit=TINY) as host:
        yield host
