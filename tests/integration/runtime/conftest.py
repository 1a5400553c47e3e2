"""Attempts of a script: in this process, where they share its Spark session, or as drivers that can be killed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.coordinator.coordinator import Coordinator
from airflow_checkpoint_provider.coordinator.entry import By
from airflow_checkpoint_provider.coordinator.journal import Journal
from airflow_checkpoint_provider.protocol.checkpoint_records import Checkpoint
from airflow_checkpoint_provider.protocol.handover import PREFIX, job_group
from airflow_checkpoint_provider.protocol.keys import History, Keys
from airflow_checkpoint_provider.spark import CheckpointedJob
from airflow_checkpoint_provider.storage import LocalStore
from tests.support.launches import Launches
from tests.support.runs import Ended, Home
from tests.support.s3server import S3Server

Launch = Callable[..., CheckpointedJob]


class Broken(Exception):
    """What the script raised."""


class Script:
    """A script that is run again and again, perhaps changed meanwhile. Alone: its runs last until one ends well."""

    def __init__(self, spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spark, self.root, self._path = spark, folder / "checkpoints", folder / "app" / "job.py"
        self._path.parent.mkdir()
        self.change("first")
        monkeypatch.setattr(sys, "argv", [str(self._path)])
        monkeypatch.setattr(
            sys.modules["__main__"], "__file__", str(self._path), raising=False
        )  # a process of xdist has none

    def change(self, text: str) -> None:
        """The application is another one from now on."""
        self._path.write_text(text)

    def attempt(self, **options: Any) -> CheckpointedJob:
        return CheckpointedJob(self.spark, **{"root": str(self.root), **options})

    @contextmanager
    def failing(self, **options: Any) -> Iterator[CheckpointedJob]:
        """An attempt that fails at the end of its block, so that the next one goes on with the run."""
        with suppress(Broken), self.attempt(**options) as job:
            yield job
            raise Broken

    def computed(self, uid: str) -> int:
        """How many of Spark's jobs computed stage ``uid`` in this session."""
        return len(self.spark.sparkContext.statusTracker().getJobIdsForGroup(job_group(uid)))

    def recomputes(self, uid: str) -> Callable[[], bool]:
        """A question: was stage ``uid`` computed since now?"""
        before = self.computed(uid)
        return lambda: self.computed(uid) > before

    def lose_beats(self) -> None:
        """As if the process of the last attempt were gone; here it is this one, which lives on."""
        shutil.rmtree(self.root / History("job").prefix / "heartbeat")

    def coordinator(self) -> Coordinator:
        """A reader's; its state is caught up."""
        coordinator = Coordinator(Journal(LocalStore(self.root), Keys(History("job").prefix), By("test", "", "")))
        coordinator.journal.catch_up()
        return coordinator

    def checkpoint(self, number: int) -> Checkpoint:
        checkpoint = self.coordinator().state.checkpoint(number)
        assert checkpoint
        return checkpoint


@pytest.fixture
def script(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    return Script(spark, tmp_path, monkeypatch)


@pytest.fixture
def launches(tmp_path: Path) -> Launches:
    return Launches(LocalStore(str(tmp_path / "checkpoints")))


@pytest.fixture
def launched(spark: SparkSession, script: Script, launches: Launches) -> Iterator[Launch]:
    """The script with the confs of a launch, as spark-submit sets them."""
    conf = spark.sparkContext._conf
    assert conf._jconf is not None

    def launch(confs: dict[str, str] | None = None, **options: object) -> CheckpointedJob:
        for name, value in (confs if confs is not None else launches.plan()).items():
            conf.set(name, value)
        return CheckpointedJob(spark, **options)  # type: ignore[arg-type]

    yield launch
    for name, _ in conf.getAll():
        if name.startswith(PREFIX):
            conf._jconf.remove(name)


@dataclass(frozen=True)
class Undisturbed:
    """What a run of ``tests/jobs/totals.py`` comes to that nobody disturbs, and the points that it passes."""

    ended: Ended
    report: list[dict[str, Any]]
    points: list[str]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("undisturbed")
    points = folder / "points"
    home = Home(folder)
    ended = home.run(("record", str(points)), submit=True)
    assert ended.code == 0, ended.log
    return Undisturbed(ended, home.report(), points.read_text().split())


@pytest.fixture
def home(tmp_path: Path, request: pytest.FixtureRequest) -> Home:
    """Its checkpoints are below it; in a bucket, where a test is parametrized so."""
    s3: S3Server | None = request.getfixturevalue("s3") if getattr(request, "param", "") == "s3" else None
    return Home(tmp_path / "home", s3=s3)


@pytest.fixture
def stream(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    """A streaming job; its checkpoints are below it, or in a bucket, where a test is parametrized so."""
    s3: S3Server | None = request.getfixturevalue("s3") if getattr(request, "param", "") == "S3" else None
    return Home(tmp_path / "stream", "stream.py", s3=s3)


@pytest.fixture(autouse=True)
def _each_attempt_as_in_a_driver_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver opens one job; here all attempts of a test share a process."""
    begin = CheckpointedJob.__enter__

    @wraps(begin)
    def begin_anew(job: CheckpointedJob) -> CheckpointedJob:
        CheckpointedJob._finished = False
        return begin(job)

    monkeypatch.setattr(CheckpointedJob, "__enter__", begin_anew)
