"""Clusters for the tests of this folder: a test names by a parameter in which it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from tests.support.clusters import Cluster
from tests.support.jars import NoJars


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    start: Callable[[Path], AbstractContextManager[Cluster]] = request.param
    with ExitStack() as stack:
        try:
            started = stack.enter_context(start(tmp_path))
        except NoJars as error:
            pytest.skip(str(error))
        yield started
