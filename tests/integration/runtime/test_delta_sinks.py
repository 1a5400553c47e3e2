"""Sinks that write to Delta tables: rows are there once, whoever sleeps at which step. Runs on Linux."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.protocol.query_details import DELTA
from airflow_checkpoint_provider.spark import DeltaSink
from airflow_checkpoint_provider.spark.queries.writer import TABLES
from tests.integration.runtime.tables import asleep, on_delta
from tests.support.delta import rows_in_table
from tests.support.launches import Launches
from tests.support.runs import JOBS, Home
from tests.support.sparks import INSTALLED

ROWS = 20
STORIES = re.findall(r"@story\ndef (\w+)", (JOBS / "delta_sinks.py").read_text())
Outcomes = dict[str, str]
PATIENCE = 1200  # seconds for one driver, which tells up to thirty stories


def group(title: str) -> str:
    """The stories that share a driver."""
    return "_".join(title.split("_")[:2]) if title.startswith("slept") else ""


CASES = [
    (release, title)
    for release in TABLES[DELTA][1]
    for title in STORIES
    if release == INSTALLED or group(title) in ("", "slept_inside")
]


@cache
def told(folder: Path, release: str, of: str) -> Outcomes:
    """What one driver, on a release of Spark, tells of each story of a group."""
    wanted = [title for title in STORIES if group(title) == of]
    home = on_delta(folder / f"{release}{of}", "delta_sinks.py", release, STORIES=" ".join(wanted))
    ended = home.run(patience=PATIENCE)
    assert ended.code == 0, ended.log
    found: Outcomes = ended.result
    return found


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stories")


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE + 100)
@pytest.mark.parametrize(("release", "title"), CASES)
def test_story(folder: Path, release: str, title: str) -> None:
    assert told(folder, release, group(title))[title] == "ok"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return on_delta(tmp_path / "home", "published_table.py")


def check(home: Home, rows: int = ROWS) -> None:
    assert rows_in_table(home.out / "orders") == list(range(rows))
    assert rows_in_table(home.out / "report") == list(range(rows))
    assert list(home.out.glob("*/_checkpoint-staging/*/*")) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "points",
    [
        ("sink/write-1/prepared", "sink/commit-1/before", "sink/commit-2/saved"),
        ("sink/write-2/before", "sink/commit-1/before-saving", "sink/commit-1/saved", "sink/commit-1/done"),
    ],
)
def test_rows_are_there_once_after_kills(home: Home, points: tuple[str, ...]) -> None:
    for point in points:
        home.killed(point)
    ended = home.run()
    assert ended.code == 0, ended.log
    check(home)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_driver_that_wakes_up_after_its_retry_adds_nothing(home: Home) -> None:
    launches = Launches(home.store, "published_table")
    with asleep(home, "sink/commit-1/before-saving", launches.plan()):
        ended = home.run(confs=launches.plan(2))
        assert ended.code == 0, ended.log
    check(home)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_driver_of_yesterday_adds_nothing_to_the_overwrite_of_today(home: Home) -> None:
    yesterday, today = Launches(home.store, "published_table"), Launches(home.store, "today")
    home.env["SALES"] = "15"
    with asleep(home, "sink/commit-2/before-saving", yesterday.plan()):
        home.env["SALES"] = str(ROWS)
        ended = home.run(confs=today.plan())
        assert ended.code == 0, ended.log
    assert rows_in_table(home.out / "report") == list(range(ROWS))


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "ignore"},
        {"path": ""},
        {"partition_by": "day"},
        {"mode": "overwrite", "run_column": "run"},
        {"run_column": ""},
        {"run_column": 5},
    ],
)
def test_wrong_option_is_refused_where_it_is_written(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        DeltaSink(**{"path": "/data/out", **wrong})
