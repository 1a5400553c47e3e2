"""Clusters for the tests of this folder: a test names by a parameter in which it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.support.clusters import Cluster


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    start: Callable[[Path], AbstractContextManager[Cluster]] = request.param
    with start(tmp_path) as started:
        yield started
