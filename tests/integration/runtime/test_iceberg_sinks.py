"""Sinks that write to Iceberg tables: rows are there once, whoever sleeps at which step. Runs on Linux."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from airflow_checkpoint_provider.coordinator.coordinator import open_history
from airflow_checkpoint_provider.errors import InvalidConfig
from airflow_checkpoint_provider.protocol.keys import History
from airflow_checkpoint_provider.protocol.query_details import ICEBERG
from airflow_checkpoint_provider.spark import IcebergSink
from airflow_checkpoint_provider.spark.queries.writer import TABLES
from tests.integration.runtime.tables import asleep, on_iceberg
from tests.support.iceberg import Lake
from tests.support.jars import NoJars
from tests.support.launches import Launches
from tests.support.runs import JOBS, Home

ROWS = 20
STORIES = re.findall(r"@story\ndef (\w+)", (JOBS / "iceberg_sinks.py").read_text())
Outcomes = dict[str, str]
PATIENCE = 1200  # seconds for one driver, which tells up to thirty stories


def job(folder: Path, script: str, release: str = "4.1", **env: str) -> Home:
    try:
        home = on_iceberg(folder / "home", Lake(folder / "lake"), script, release)
    except NoJars as error:
        pytest.skip(str(error))
    home.env |= env
    return home


def group(title: str) -> str:
    """The stories that share a driver: each that sleeps has its own."""
    return title if title.startswith("slept") else title.partition("_")[0] if title.startswith("inside") else ""


CASES = [
    (release, title) for release in TABLES[ICEBERG][1] for title in STORIES if release == "4.1" or not group(title)
]


@cache
def told(folder: Path, release: str, of: str) -> Outcomes:
    """What one driver, on a release of Spark, tells of each story of a group."""
    wanted = [title for title in STORIES if group(title) == of]
    home = job(folder / f"{release}{of}", "iceberg_sinks.py", release, STORIES=" ".join(wanted))
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
    return job(tmp_path, "published_iceberg.py")


def check(found: Any) -> None:
    assert found == {"orders": list(range(ROWS)), "report": list(range(ROWS)), "branches": ["main"], "waiting": []}


def read(home: Home, **env: str) -> Any:
    """Return what a reader finds."""
    home.env |= {"SALES": "0", **env}
    ended = home.run()
    assert ended.code == 0, ended.log
    return ended.result


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "points",
    [
        ("sink/write-1/branch-made", "sink/write-1/prepared", "sink/commit-1/before", "sink/commit-2/saved"),
        ("sink/write-2/written", "sink/commit-1/before-saving", "sink/commit-1/saved", "sink/commit-1/done"),
    ],
)
def test_rows_are_there_once_after_kills(home: Home, points: tuple[str, ...]) -> None:
    for point in points:
        home.killed(point)
    ended = home.run()
    assert ended.code == 0, ended.log
    check(ended.result)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_rows_of_a_completed_checkpoint_are_read_while_they_wait(home: Home) -> None:
    home.killed("sink/commit-1/before-saving")
    history = History("published_iceberg").prefix
    newest = open_history(home.store, history).journal.catch_up().retained[-1]
    found = read(home, WAITING=f"{home.store.uri}/{history}/chk-{newest.id}")
    assert (found["orders"], found["waiting"]) == ([], list(range(15)))
    home.env |= {"SALES": str(ROWS)}
    del home.env["WAITING"]
    check(home.run().result)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_driver_that_wakes_up_after_its_retry_adds_nothing(home: Home) -> None:
    launches = Launches(home.store, "published_iceberg")
    with asleep(home, "sink/commit-1/before-saving", launches.plan()):
        ended = home.run(confs=launches.plan(2))
        assert ended.code == 0, ended.log
    check(read(home))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_driver_of_yesterday_adds_nothing_to_the_overwrite_of_today(home: Home) -> None:
    yesterday, today = Launches(home.store, "published_iceberg"), Launches(home.store, "today")
    home.env["SALES"] = "15"
    with asleep(home, "sink/commit-2/before-saving", yesterday.plan()):
        home.env["SALES"] = str(ROWS)
        ended = home.run(confs=today.plan())
        assert ended.code == 0, ended.log
    assert read(home)["report"] == list(range(ROWS))


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "ignore"},
        {"table": ""},
        {"table": "orders"},
        {"mode": "overwrite", "run_column": "run"},
        {"run_column": ""},
    ],
)
def test_wrong_option_is_refused_where_it_is_written(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        IcebergSink(**{"table": "lake.sales.orders", **wrong})
