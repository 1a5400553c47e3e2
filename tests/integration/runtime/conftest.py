"""Attempts of one script within this process: they share its Spark session, so they cannot be killed, and cost little."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_checkpoint_provider.checkpoint.coordinator import Coordinator
from airflow_checkpoint_provider.checkpoint.entry import By
from airflow_checkpoint_provider.checkpoint.journal import Journal
from airflow_checkpoint_provider.checkpoint.names import History, Keys
from airflow_checkpoint_provider.spark import CheckpointedJob
from airflow_checkpoint_provider.storage import LocalStore


class Broken(Exception):
    """What the script raised."""


class Script:
    """A script that is run again and again, perhaps changed meanwhile. Alone: its runs last until one ends well."""

    def __init__(self, spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spark, self.root, self._path = spark, folder / "checkpoints", folder / "app" / "job.py"
        self._path.parent.mkdir()
        self.change("first")
        monkeypatch.setattr(sys, "argv", [str(self._path)])

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
        return len(self.spark.sparkContext.statusTracker().getJobIdsForGroup(f"checkpointed-{uid}"))

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


@pytest.fixture
def script(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    return Script(spark, tmp_path, monkeypatch)
