"""What a driver finds prepared in a target, and by whom. Runs anywhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_checkpoint_provider.protocol.keys import Keys
from airflow_checkpoint_provider.sinks.log import RunOfSink
from airflow_checkpoint_provider.sinks.published_files import PublishedFiles
from airflow_checkpoint_provider.spark.sinks import leftovers
from airflow_checkpoint_provider.spark.sinks.base import Leftover
from airflow_checkpoint_provider.storage import MemoryStore
from tests.support.targets import MONDAY, files_of, name_of, staged, visible

OURS = Keys("jobs/b/job")


@dataclass
class Opened:
    """The sink of this job's driver."""

    files: PublishedFiles

    def leftovers(self) -> list[Leftover]:
        return [Leftover(left.name, left.by.history) for left in self.files.leftovers()]

    def abort(self, names: list[str]) -> tuple[str, ...]:
        return self.files.abort(names, 0)


def abort_leftovers(root: MemoryStore, files: PublishedFiles, carried: set[str]) -> None:
    attempt: Any = SimpleNamespace(keys=OURS, store=root, epoch=2)
    leftovers.abort_leftovers(attempt, "report", cast(Any, Opened(files)), carried)


@pytest.mark.parametrize("carried", [True, False])
def test_row_of_another_history_stays_if_this_job_has_started_from_it(carried: bool) -> None:
    """The other history is closed, or has given its savepoint away: it does not hold the row any more."""
    root, target = MemoryStore("lake"), MemoryStore("target")
    waiting = staged(files_of(target, MONDAY), name_of(1), "row")
    us: RunOfSink = replace(MONDAY, history=OURS.folder(root.uri), run="tuesday")
    ours = files_of(target, us)
    abort_leftovers(root, ours, {waiting.name} if carried else set())
    assert ours.commit(waiting) == carried
    assert visible(target) == (["row"] if carried else [])
