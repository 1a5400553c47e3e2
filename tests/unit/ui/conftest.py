"""Recorded histories that several tests of the pages look at."""

from __future__ import annotations

import pytest

from tests.support.recorded import Recorded, second_attempt, three_stages


@pytest.fixture
def running() -> Recorded:
    recorded = Recorded()
    three_stages(recorded)
    return recorded


@pytest.fixture
def finished(running: Recorded) -> Recorded:
    running.aborted(4, "02:55:00", "expired", "slow disk")
    running.ended("02:56:00", "failed", 137, "task")
    second_attempt(running)
    return running
