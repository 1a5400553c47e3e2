"""Queries with every kind of state in every state store stay exact through kills and sleeps at any moment. Runs on Linux."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.integration.runtime.rounds import Rounds
from tests.jobs.matrix import FEW
from tests.support.runs import Home
from tests.support.s3server import S3Server


@pytest.fixture
def matrix(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    s3: S3Server | None = request.getfixturevalue("s3") if getattr(request, "param", "") == "S3" else None
    home = Home(tmp_path / "matrix", "matrix.py", s3=s3)
    home.env |= {"PYSPARK_PYTHON": sys.executable}  # calls StatefulProcessor, and needs protobuf
    return home


@pytest.mark.slow  # test_first_stream kills a query, test_loop_kills lets a driver sleep
@pytest.mark.timeout(1800)
def test_queries_stay_exact_through_a_kill_and_a_sleep(matrix: Home) -> None:
    with Rounds(matrix, seed=1, queries=FEW) as rounds:
        rounds.hurt(signal.SIGKILL, blind=False, saved=True)
        rounds.hurt(signal.SIGSTOP, blind=False, saved=False)
        rounds.finish()
        rounds.check_forks()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("matrix", ["disk", "S3"], indirect=True)
def test_queries_stay_exact_through_many_kills_and_sleeps(matrix: Home, part: int) -> None:
    """All parts: 30 kills and 30 sleeps."""
    with Rounds(matrix, seed=part) as rounds:
        for number in range(3):
            rounds.hurt(signal.SIGKILL, blind=False, saved=number == 0)
            rounds.hurt(signal.SIGSTOP, blind=number % 2 == part % 2, saved=False)
        rounds.finish()
        rounds.check_forks()
