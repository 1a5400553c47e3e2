"""Models run without time and chance, in one store. Runs anywhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model.explore import timeless
from tests.model.savers import in_one_store


@pytest.fixture(autouse=True)
def no_time() -> Iterator[None]:
    with timeless(), in_one_store():
        yield
