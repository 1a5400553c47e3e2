"""Drivers that load tables of a real PostgreSQL are killed, or sleep with locks in their hands: each row is there once. Runs on Linux."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_checkpoint_provider.protocol.handover import ExitCode
from tests.support.launches import Launches
from tests.support.postgres import OWNER, PASSWORD, Postgres, jars
from tests.support.runs import PATIENCE, Home
from tests.support.waiting import wait_until

TABLES = """
drop schema public cascade; create schema public;
create table orders (id bigint, shop bigint); create table report (shop bigint, count bigint)
"""
REPORT = ["0|667", "1|667", "2|666"]
# Filled and not sealed; inside the database transaction of a commit; committed, and its table not dropped
CHAIN = ("sink/write-1/filled", "sink/commit-1/published", "sink/commit-2/before-emptying")
POINTS = [
    *(f"sink/begin-{number}/{step}" for number in (1, 2) for step in ("before", "done")),
    *(f"sink/write-2/{step}" for step in ("before", "noted", "before-staging", "staging-made", "filled", "sealed")),
    *(
        f"sink/commit-{number}/{step}"
        for number in (1, 2, 3)
        for step in ("before", "before-publication", "published", "before-emptying", "emptied", "done")
    ),
]


@pytest.fixture
def home(postgres: Postgres, tmp_path: Path) -> Iterator[Home]:
    postgres.sql(TABLES)
    home = Home(tmp_path / "home", "loaded.py")
    home.env |= {
        "SPARK_DIST_CLASSPATH": f"{jars()}/*",
        "JDBC_URL": postgres.url,
        "JDBC_USER": OWNER,
        "JDBC_PASSWORD": PASSWORD,
    }
    yield home
    stored = [path for path in home.folder.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]
    assert stored == []  # journal, logs, Spark's event log


def is_once(postgres: Postgres) -> None:
    """Readers see each row at most once."""
    assert postgres.sql("select id from orders group by id having count(*) > 1") == []
    assert postgres.sql("select * from report order by 1") in ([], REPORT)


def check(postgres: Postgres) -> None:
    has_rows(postgres)
    assert postgres.staging() == []


def has_rows(postgres: Postgres) -> None:
    assert postgres.sql("select count(*), count(distinct id) from orders") == ["2000|2000"]
    assert postgres.sql("select * from report order by 1") == REPORT


def survive(home: Home, postgres: Postgres, *points: str) -> None:
    for point in points:
        home.killed(point)
        is_once(postgres)
    ended = home.run()
    assert ended.code == 0, ended.log
    check(postgres)


@pytest.mark.slow  # tests/integration/sinks/test_postgresql.py, without Spark
@pytest.mark.timeout(900)
def test_rows_are_loaded_once_after_kills(home: Home, postgres: Postgres) -> None:
    survive(home, postgres, *CHAIN)


@pytest.mark.slow  # tests/integration/sinks/test_postgresql.py, without Spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("point", POINTS)
def test_rows_are_loaded_once_after_a_kill_at_any_step(home: Home, postgres: Postgres, point: str) -> None:
    survive(home, postgres, point)


@pytest.mark.slow  # tests/integration/sinks/test_postgresql.py, without Spark
@pytest.mark.timeout(600)
def test_undisturbed_run_passes_all_steps(home: Home, postgres: Postgres) -> None:
    points = home.folder / "points"
    ended = home.run(("record", str(points)))
    assert ended.code == 0, ended.log
    assert {*POINTS, *CHAIN} <= set(points.read_text().split())
    check(postgres)


@pytest.mark.slow  # test_commit_that_slept_before_any_step
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("point", ["sink/commit-1/before", "sink/commit-1/published"])
def test_driver_that_slept_in_a_commit_publishes_nothing_twice(home: Home, postgres: Postgres, point: str) -> None:
    """The server ends the session of one that sleeps with locks, so that its successor can commit."""
    launches = Launches(home.store)
    with home.started(("stop", point), confs=launches.plan()) as zombie:
        wait_until(zombie.is_stopped, PATIENCE, zombie.said)
        successor = home.run(confs=launches.plan(2))
        assert successor.code == 0, successor.log
        check(postgres)
        zombie.send(signal.SIGCONT)
        ended = zombie.wait()
    assert ended.code == ExitCode.OVER, ended.log
    has_rows(postgres)
    other_run = home.run()  # appends its own rows
    assert other_run.code == 0, other_run.log
    assert postgres.sql("select count(*), count(distinct id) from orders") == ["4000|2000"]
    assert postgres.staging() == []  # what the sleeper was preparing is gone


@pytest.mark.slow  # test_missing_driver_is_refused_with_its_package
@pytest.mark.timeout(600)
def test_driver_without_the_jar_says_what_to_add(home: Home) -> None:
    del home.env["SPARK_DIST_CLASSPATH"]
    ended = home.run()
    assert ended.code == ExitCode.FAILED, ended.log
    assert 'Give the task packages="org.postgresql:postgresql:42.7.7"' in ended.log
