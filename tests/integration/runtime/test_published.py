"""The driver of a job with sinks is killed at each of their steps: readers never see a row twice, and in the end all of them once."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.support.launches import Launches
from tests.support.runs import PATIENCE, Home
from tests.support.waiting import wait_until

PREPARING = ("before", "staged", "rows-written", "prepared")
COMMITTING = ("before", "before-publication", "published", "before-emptying", "emptied", "done")
POINTS = [
    *(f"sink/begin-{number}/{step}" for number in (1, 2) for step in ("before", "done")),
    *(f"sink/write-{number}/{step}" for number in (1, 2, 3) for step in PREPARING),
    *(f"sink/commit-{number}/{step}" for number in (1, 2, 3) for step in COMMITTING),
    *(f"checkpoint/{number}/{step}" for number in (2, 3) for step in ("acknowledged", "sealed", "completed")),
    # The second one is confirmed only if the third is not completed before
    *(f"checkpoint/3/{step}" for step in ("before-commit-confirmation", "commits-confirmed")),
]
ORDERS = sorted(({"id": number} for number in range(2_000)), key=str)
REPORT = [{"shop": 0, "count": 667}, {"shop": 1, "count": 667}, {"shop": 2, "count": 666}]
YESTERDAY = 1_800  # orders
CHAIN = ("sink/write-1/rows-written", "sink/commit-1/before-publication")
IN_S3 = [point for point in POINTS if point.startswith(("sink/write-3", "sink/commit-"))]


@pytest.fixture
def home(tmp_path: Path, request: pytest.FixtureRequest) -> Home:
    s3 = request.getfixturevalue("s3") if getattr(request, "param", "") == "s3" else None
    return Home(tmp_path / "home", "published.py", s3=s3)


@pytest.fixture
def launches(home: Home) -> Launches:
    return Launches(home.store)


def is_once(home: Home) -> None:
    """Readers see each row at most once."""
    orders = [row["id"] for row in home.published("orders")]
    assert len(orders) == len(set(orders))
    assert len(home.published("report")) in (0, 3)


def check(home: Home) -> None:
    check_rows(home)
    assert home.staged() == []
    state = home.coordinator().state
    assert [state.sink(uid).uncommitted for uid in ("orders", "report")] == [0, 0]


def survive(home: Home, *points: str) -> None:
    for point in points:
        home.killed(point)
        is_once(home)
    ended = home.run()
    assert ended.code == 0, ended.log
    check(home)


@pytest.mark.slow  # test_loop_kills.py kills a driver and lets one sleep; test_sinks.py: retries in one process
@pytest.mark.timeout(600)
def test_rows_are_published_once_after_kills(home: Home) -> None:
    survive(home, *CHAIN)


@pytest.mark.slow  # as the one above
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("home", "point"),
    [*(("local", point) for point in POINTS), *(("s3", point) for point in IN_S3)],
    indirect=["home"],
)
def test_rows_are_published_once_after_a_kill_at_any_step(home: Home, point: str) -> None:
    survive(home, point)


@pytest.mark.slow  # as the tests whose steps it counts
@pytest.mark.timeout(600)
def test_steps_are_all_steps_of_an_undisturbed_run(home: Home) -> None:
    points = home.folder / "points"
    ended = home.run(("record", str(points)))
    assert ended.code == 0, ended.log
    passed = [point for point in points.read_text().split() if point.startswith("sink/")]
    assert sorted(set(passed)) == sorted(point for point in POINTS if point.startswith("sink/"))
    check(home)


# -- drivers that sleep ------------------------------------------------------------------------------------------------


@pytest.mark.slow  # test_sleepers.py sleeps before each request of a commit, test_loop_kills.py lets a driver sleep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", [point for point in POINTS if point.startswith(("sink/write", "sink/commit"))])
def test_driver_that_slept_publishes_nothing_after_it_was_replaced(home: Home, launches: Launches, point: str) -> None:
    with home.started(("stop", point), confs=launches.plan(1)) as asleep:
        wait_until(asleep.is_stopped, PATIENCE, asleep.said)
        successor = home.run(confs=launches.plan(2))
        assert successor.code == 0, successor.log
        check_rows(home)
        asleep.send(signal.SIGCONT)
        asleep.wait()
    check_rows(home)


@pytest.mark.slow  # test_two_processes.py
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "point",
    ["sink/commit-1/before", "sink/commit-1/before-publication", *(f"sink/commit-3/{step}" for step in COMMITTING)],
)
def test_driver_of_yesterday_that_slept_takes_nothing_from_today(home: Home, launches: Launches, point: str) -> None:
    """Orders of both runs are there, each once; the report is today's."""
    home.env["SALES"] = str(YESTERDAY)
    with home.started(("stop", point), confs=launches.plan()) as asleep:
        wait_until(asleep.is_stopped, PATIENCE, asleep.said)
        home.env["SALES"] = str(len(ORDERS))
        today = home.run(confs=Launches(home.store, "today").plan())
        assert today.code == 0, today.log
        check_today(home)
        asleep.send(signal.SIGCONT)
        woken = asleep.wait()
    check_today(home)
    if woken.code:  # before its report was in the log
        assert "a run that began later has overwritten it" in woken.log
        home.env["SALES"] = str(YESTERDAY)
        home.run(confs=launches.plan(2))
    assert check_today(home) == YESTERDAY
    assert home.staged() == []


def check_today(home: Home) -> int:
    """Return how many orders of yesterday are there, beside all of today."""
    orders = Counter(row["id"] for row in home.published("orders"))
    assert len(orders) == len(ORDERS)
    assert set(orders.values()) <= {1, 2}
    assert sorted(home.published("report"), key=str) == sorted(REPORT, key=str)
    twice = {number for number, times in orders.items() if times == 2}
    assert all(number < YESTERDAY for number in twice)
    return len(twice)


def check_rows(home: Home) -> None:
    assert home.published("orders") == ORDERS
    assert sorted(home.published("report"), key=str) == sorted(REPORT, key=str)
