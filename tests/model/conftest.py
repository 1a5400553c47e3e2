"""Models run without time and chance. Runs anywhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model.explore import timeless


@pytest.fixture(autouse=True)
def no_time() -> Iterator[None]:
    with timeless():
        yield
