"""The driver of a job with a table by key is killed, or sleeps, at each of its steps, in two runs one after the other."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from tests.integration.runtime.conftest import Script
from tests.support.launches import Launches
from tests.support.runs import PATIENCE, Home
from tests.support.waiting import wait_until

OVER = 79
FIRST, SECOND = "1,2,3", "3,4,5"  # the days of two runs: one of them is done already
DAYS = (1, 2, 3, 4, 5)
POINTS = [
    *(f"loop/days/turn-{number}/{step}" for number in (1, 2) for step in ("before", "finished")),
    *(
        f"loop/days/barrier-{number}/{step}"
        for number in (1, 2)
        for step in ("before", "frames-written", "taken-over", "begun")
    ),
    *(f"frame/totals-{number}/written" for number in (1, 2)),
    *(f"checkpoint/{number}/{step}" for number in (1, 2) for step in ("acknowledged", "sealed", "completed")),
]
IN_S3 = [point for point in POINTS if point.startswith(("loop/days/barrier-2", "frame/", "checkpoint/2"))]


def totals(days: tuple[int, ...]) -> list[list[int]]:
    """The table after these days, by plain Python."""
    found: dict[int, list[int]] = {}
    for day in days:
        for shop in range(1, 41):
            if shop % 4 != day % 4:
                found[shop] = [found.get(shop, [0])[0] + shop * day, day]
        if day in found and found[day][1] < day:
            del found[day]
    return [[shop, *found[shop]] for shop in sorted(found)]


def history(days: tuple[int, ...]) -> list[tuple[int, int]]:
    return [(day, sum(shop * day for shop in range(1, 41) if shop % 4 != day % 4)) for day in days]


def published_history(home: Home) -> list[tuple[int, int]]:
    return sorted((row["day"], row["sales"]) for row in home.published("history"))


@pytest.fixture
def home(tmp_path: Path, request: pytest.FixtureRequest) -> Home:
    s3 = request.getfixturevalue("s3") if getattr(request, "param", "") == "s3" else None
    return Home(tmp_path / "home", "keyed.py", s3=s3)


def finish(home: Home, days: tuple[int, ...]) -> None:
    """The next driver ends well, with the table that nobody has disturbed."""
    ended = home.run()
    assert ended.code == 0, ended.log
    assert ended.result["rows"] == totals(days)
    rows = [[row["shop"], row["sales"], row["newest"]] for row in home.published("report")]
    assert sorted(rows) == totals(days)
    assert published_history(home) == history(days)


def survive(home: Home, point: str) -> None:
    for days, run in ((DAYS[:3], FIRST), (DAYS, SECOND)):
        home.env["DAYS"] = run
        home.killed(point)
        finish(home, days)


@pytest.mark.slow  # test_keyed.py: retries in one process; test_loop_kills.py kills a driver
@pytest.mark.timeout(600)
def test_table_by_key_survives_a_kill(home: Home) -> None:
    home.env["DAYS"] = FIRST
    home.killed("loop/days/barrier-2/taken-over")
    finish(home, DAYS[:3])


@pytest.mark.slow  # test_table_by_key_survives_a_kill
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("home", "point"),
    [*(("local", point) for point in POINTS), *(("s3", point) for point in IN_S3)],
    indirect=["home"],
)
def test_table_by_key_survives_kills_in_two_runs(home: Home, point: str) -> None:
    survive(home, point)


@pytest.mark.slow  # test_loop_kills.py lets drivers of loops sleep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", ["loop/days/barrier-2/before", "frame/totals-2/written", "checkpoint/2/acknowledged"])
def test_driver_that_slept_changes_nothing_after_it_was_replaced(home: Home, point: str) -> None:
    launches = Launches(home.store)
    home.env["DAYS"] = FIRST
    with home.started(("stop", point), confs=launches.plan(1)) as asleep:
        wait_until(asleep.is_stopped, PATIENCE, asleep.said)
        ended = home.run(confs=launches.plan(2))
        assert ended.code == 0, ended.log
        assert ended.result["rows"] == totals(DAYS[:3])
        asleep.send(signal.SIGCONT)
        assert asleep.wait().code == OVER
    assert published_history(home) == history(DAYS[:3])


@pytest.mark.slow  # test_keyed.py has the same with a few rows
@pytest.mark.timeout(900)
def test_a_million_keys(script: Script, spark: SparkSession) -> None:
    """All of them, then changes of each tenth, then the rows of the next run."""
    many = 1_000_000
    with script.attempt() as job:
        table = job.keyed_state("table", "id")
        for turn in job.iterate("turns", range(3), every=1):
            if turn == 0:
                table.upsert(job.spark.range(many).selectExpr("id", "id AS n"))
            elif turn == 1:
                table.upsert(job.spark.range(0, many, 10).selectExpr("id", "-id AS n"))
            else:
                table.delete(job.spark.range(0, many, 7))
    with script.attempt() as job:
        rows = job.keyed_state("table", "id").df
        found = rows.agg(F.count("*"), F.sum("n"), F.count_distinct("id")).collect()[0]
    left = [number for number in range(many) if number % 7]
    assert tuple(found) == (len(left), sum(-number if number % 10 == 0 else number for number in left), len(left))
