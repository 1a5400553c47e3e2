"""Queries with every kind of state in every state store stay exact through kills and sleeps at any moment. Runs on Linux."""

from __future__ import annotations

import itertools
import random
import signal
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.jobs.matrix import OPERATORS, STORES
from tests.support.launches import Launches
from tests.support.runs import Home, Running
from tests.support.s3server import S3Server
from tests.support.streams import ROWS, add_files, expected, expected_keys, rows_in, sink_log
from tests.support.waiting import wait_until

PATIENCE = 300  # seconds until a driver with all queries is where it shall be
QUERIES = [f"{operator}-{store}" for operator, store in itertools.product(OPERATORS, STORES)]
HURT = 4.0  # seconds, at most, that a driver works until it is killed or put to sleep


@pytest.fixture(params=["disk", pytest.param("S3", marks=pytest.mark.slow)])
def matrix(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    s3: S3Server | None = request.getfixturevalue("s3") if request.param == "S3" else None
    return Home(tmp_path / "matrix", "matrix.py", s3=s3)


def check(home: Home, files: int) -> None:
    """Raise unless each query has written each of its rows once, batch by batch without a gap."""
    keys, ids = expected_keys(files), expected(files)
    wanted = {"dedup": ("key", keys), "join": ("id", ids), "count": ("count", [ROWS] * (files - 1))}
    for name in QUERIES:
        column, answer = wanted[name.partition("-")[0]]
        assert rows_in(home.out / name, column) == answer, name
        batches = sorted(sink_log(home.out / name))
        assert batches[-1] - batches[0] == len(batches) - 1, name


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rounds", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_queries_stay_exact_through_kills_and_sleeps(matrix: Home, rounds: int) -> None:
    """One driver is killed, the next one sleeps and wakes when another one works, and so on. The input grows meanwhile."""
    launches, rng = Launches(matrix.store, "matrix", of_run=False), random.Random(rounds)
    matrix.env["STREAM_FOREVER"] = "1"
    with ExitStack() as drivers:
        asleep: Running | None = None
        for number in range(rounds + 1):
            add_files(Path(f"{matrix.out}-in"), *range(4 * number, 4 * number + 4))
            if number == rounds:
                del matrix.env["STREAM_FOREVER"]
            running = drivers.enter_context(matrix.started(confs=launches.plan(number + 1)))
            wait_until(partial(has_started, running), PATIENCE, running.said)
            if asleep:
                asleep.send(signal.SIGCONT)
            if number < rounds:
                time.sleep(rng.uniform(0.0, HURT))
                running.send(signal.SIGSTOP if number % 2 else signal.SIGKILL)
                asleep = running if number % 2 else None
        ended = running.wait()
    assert ended.code == 0, ended.log
    check(matrix, 4 * (rounds + 1))


def has_started(running: Running) -> bool:
    assert running.process.poll() is None or "STARTED" in running.said(), running.said()
    return "STARTED" in running.said()
