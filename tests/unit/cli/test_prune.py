"""``prune``: what nothing needs any more goes, and only that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_checkpoint_provider.checkpoint.names import group_path
from airflow_checkpoint_provider.storage import LocalStore
from tests.support.recorded import Recorded, three_stages
from tests.unit.cli.conftest import FLIGHTS, Command


@pytest.fixture
def died(store: LocalStore) -> Recorded:
    """A run that failed for good; its last attempt left rows that nobody acknowledged."""
    recorded = Recorded(store)
    three_stages(recorded)
    store.create(f"{recorded.keys.group(group_path('delays', 1, 'lost'))}/part-0.parquet", b"rows")
    recorded.ended("02:51:00", "failed", 137, "task")
    return recorded


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and "journal" not in path.parts}


def test_it_says_what_it_would_delete(died: Recorded, root: Path, checkpoints: Command) -> None:
    before = files(root)
    done = checkpoints("prune", FLIGHTS, "--dry-run")
    assert (done.code, done.lines) == (
        0,
        [f"{FLIGHTS}, run scheduled__2026-11-20: 1 leftover of attempts that are over", "nothing was changed: this was --dry-run"],
    )  # fmt: skip
    assert files(root) == before


def test_leftovers_go_and_what_is_kept_stays(died: Recorded, root: Path, checkpoints: Command) -> None:
    before = files(root)
    done = checkpoints("prune", FLIGHTS, "--yes")
    assert (done.code, done.lines[-1]) == (0, "done")
    (gone,) = before - files(root)
    assert gone.endswith("1-lost/part-0.parquet")
    assert died.coordinator.journal.catch_up().restore_point() is not None
    assert checkpoints("prune", FLIGHTS, "--yes").lines == ["nothing to delete"]


def test_what_ended_with_a_run_whose_task_never_came_back(store: LocalStore, checkpoints: Command) -> None:
    """The driver finished, and the worker that would have deleted the run's state was lost."""
    recorded = Recorded(store)
    three_stages(recorded)
    recorded.ended("03:00:00")
    done = checkpoints("prune", FLIGHTS, "--yes", "-o", "json")
    (one,) = json.loads(done.out)
    assert one["checkpoints"] == ["chk-2", "chk-3"]
    assert recorded.coordinator.journal.catch_up().retained == ()


def test_a_living_attempt_keeps_what_is_its_own(store: LocalStore, checkpoints: Command) -> None:
    recorded = Recorded(store)
    three_stages(recorded)
    store.create(f"{recorded.keys.group(group_path('delays', 1, 'being written'))}/part-0.parquet", b"rows")
    assert checkpoints("prune", FLIGHTS, "--yes").lines == ["nothing to delete"]


def test_it_asks(died: Recorded, root: Path, checkpoints: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    before = files(root)
    done = checkpoints("prune", FLIGHTS)
    assert (done.code, files(root)) == (2, before)
    assert "--dry-run" in done.err
